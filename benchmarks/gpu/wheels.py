"""Collect wheels for a machine with a GPU and without a network, and install them there.

`collect FOLDER` downloads what fairseq_ext needs, for Python 3.12 on x86-64 Linux, with the
versions of constraints.txt: all but torch, and the large packages of GPU_IMAGE, which an image with
torch has. `install FOLDER` installs those that the environment lacks. `check` names what is not
there.
"""

import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TORCH = {"torch", "torchaudio", "triton"}
GPU_IMAGE = {"contourpy", "cython", "fonttools", "lxml", "matplotlib", "numpy", "pillow"}
GPU_IMAGE |= {"scikit-learn", "scipy", "setuptools"}
BESIDES = ("fairscale", "pytest")
ABI = {"python_version": "3.12", "python_full_version": "3.12.3", "extra": ""}
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (34, 28, 27, 17)] + ["manylinux2014_x86_64"]
PLATFORMS.append("manylinux1_x86_64")
MOST = 64 * 2**20  # bytes of all wheels


def needed(names: Sequence[str]) -> Iterator[Requirement]:
    """Yield the requirements of installed distributions, and of what they require."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate(ABI):
                continue
            other = canonicalize_name(requirement.name)
            yield requirement
            if other not in seen | TORCH:
                seen.add(other)
                waiting.append(other)


def collect(folder: Path) -> None:
    """Download the wheels, or make them of sources that have no wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    names = {canonicalize_name(requirement.name) for requirement in needed(["fairseq_ext"])}
    for name in sorted(names | {*BESIDES, "iniconfig", "pluggy", "pygments"} - TORCH - GPU_IMAGE):
        wanted = f"{name}=={pins[name]}" if name in pins else name
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        target = ["--python-version", "3.12", "--implementation", "cp", "--only-binary", ":all:"]
        target += [word for platform in PLATFORMS for word in ("--platform", platform)]
        common = ["--no-deps", "--dest", str(folder), wanted]
        if subprocess.run(
            [*pip, "download", *target, *common], stderr=subprocess.DEVNULL
        ).returncode:
            source = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), wanted]
            subprocess.run([*pip, "wheel", *source], check=True)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    (folder / "COMMIT").write_text(commit.stdout)
    size = sum(path.stat().st_size for path in folder.glob("*.whl"))
    print(f"{len(list(folder.glob('*.whl')))} wheels, {size / 2**20:.1f} MiB, in {folder}")
    if size > MOST:
        sys.exit(f"error: that is more than {MOST / 2**20:.0f} MiB")


def install(folder: Path) -> None:
    """Install wheels of distributions that the environment lacks, and check the result."""
    wheels = [path for path in sorted(folder.glob("*.whl")) if not is_installed(path)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    if wheels:
        subprocess.run([*pip, *map(str, wheels)], check=True)
    pip += ["--no-build-isolation", "--editable", str(ROOT)]
    subprocess.run(pip, check=True)


def is_installed(wheel: Path) -> bool:
    try:
        metadata.version(wheel.name.split("-")[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def check() -> None:
    """Exit with a sentence that names requirements which are not met."""
    missing = []
    for requirement in needed(["fairseq_ext"]):
        name = canonicalize_name(requirement.name)
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing += [str(requirement)] * (name not in {"torchaudio", "cython"})
            continue
        if name in ("fairseq-fixed", "numpy", "scikit-learn", "scipy") and not (
            requirement.specifier.contains(version, prereleases=True)
        ):
            missing.append(f"{requirement} (there is {version})")
    if missing:
        sys.exit(f"error: this machine lacks {', '.join(sorted({*missing}))}; add wheels of them")


def main() -> None:
    parser = ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("verb", choices=("collect", "install", "check"))
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args()
    check() if args.verb == "check" else globals()[args.verb](args.folder)


if __name__ == "__main__":
    main()
