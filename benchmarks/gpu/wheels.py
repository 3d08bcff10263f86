"""Collect wheels for a machine with a GPU and without a network, and install them there.

`collect FOLDER` downloads what fairseq_ext needs, for Python 3.12 on x86-64 Linux, with the
versions of constraints.txt: all but torch, and the large packages of GPU_IMAGE, which an image with
torch has. `install FOLDER` installs those that the environment lacks in that version. `check` names
requirements that are not met.
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
BESIDES = {"fairscale", "iniconfig", "pluggy", "pygments", "pytest"}  # for FSDP and tests
NEEDLESS = {"cython", "torchaudio", "torch"}  # not imported; torch is the machine's
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
    for name in sorted((names | BESIDES) - TORCH - GPU_IMAGE):
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
    """Install fairseq_ext, and wheels that the environment lacks in their version."""
    wheels = [path for path in sorted(folder.glob("*.whl")) if not is_installed(path)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    if wheels:
        subprocess.run([*pip, *map(str, wheels)], check=True)
    pip += ["--no-build-isolation", "--editable", str(ROOT)]
    subprocess.run(pip, check=True)


def is_installed(wheel: Path) -> bool:
    name, version = wheel.name.split("-")[:2]
    return installed_version(name) == version


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check(folder: None = None) -> None:
    """Exit with a sentence that names requirements which are not met."""
    missing = set()
    for requirement in needed(["fairseq_ext"]):
        version = installed_version(requirement.name)
        if canonicalize_name(requirement.name) in NEEDLESS:
            continue
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            missing.add(f"{requirement} (there is {version or 'none'})")
    if missing:
        sys.exit(f"error: this machine lacks {', '.join(sorted(missing))}; add wheels of them")


VERBS = {"collect": collect, "install": install, "check": check}


def main() -> None:
    parser = ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("folder", type=Path, nargs="?")
    args = parser.parse_args()
    VERBS[args.verb](args.folder)


if __name__ == "__main__":
    main()
