"""Archives for installation: what is in them, and that an installed wheel does all the work."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT
from repository import copy_repository


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> tuple[Path, Path, Path]:
    """The repository, its source archive, and the wheel that is built from that archive."""
    folder = tmp_path_factory.mktemp("dist")
    repository = copy_repository(folder / "repository")
    source = folder / build("sdist", repository, folder)
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / source.name.removesuffix(".tar.gz")
    return repository, source, folder / build("wheel", unpacked, folder)


def build(kind: str, source: Path, out: Path) -> str:
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts"), "python"), "-c", code],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_whatever_setup_asks_for_is_pinned():
    asked = re.findall(r'"([\w-]+)(?:\[\w+\])?[=>]=\d', (ROOT / "setup.py").read_text("utf-8"))
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    assert {"torch", "mkdocs", "ipykernel", "triton"} <= {*asked}
    assert not {spell(name) for name in asked} - {spell(name) for name in pinned}
    assert len({spell(name) for name in pinned}) == len(pinned)


def spell(name: str) -> str:
    """The name of a package as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("address", ["", "https://example.org/them/it"])
def test_links_of_the_index_page_lead_somewhere(address, tmp_path):
    """It is README, beside which nothing of the repository lies; its address is one setting."""
    text = (ROOT / "setup.py").read_text("utf-8")
    (tmp_path / "setup.py").write_text(text.replace('ADDRESS = ""', f'ADDRESS = "{address}"', 1))
    for path in ("README.md", "fairseq_ext/__init__.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    command = [sys.executable, "setup.py", "-q", "egg_info"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    about = (tmp_path / "fairseq_ext.egg-info" / "PKG-INFO").read_text("utf-8")
    targets = re.findall(r"\]\(([^)]*)\)", about)
    assert targets and all(target.startswith("https://") for target in targets)
    assert (f"]({address}/blob/main/docs/results/index.md)" in about) == bool(address)
    assert (f"]({address}/raw/main/docs/pictures/two_heads.png)" in about) == bool(address)
    assert "Results" in about and ("[Results](" in about) == bool(address)
    assert "License-Expression: MIT" in about


@pytest.mark.slow
def test_the_source_archive_is_the_repository(archives):
    repository, source, _ = archives
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    made = {name for name in files(repository) if ".egg-info/" in name}
    assert files(repository) - made - names == {".gitignore"}
    for needed in ("constraints.txt", "docs/data.md", "tests/fixtures/old_checkpoints/dna.tar.xz"):
        assert needed in names


@pytest.mark.slow
def test_the_wheel_is_the_package_and_its_recipes(archives):
    repository, _, wheel = archives
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        executed = archive.read("fairseq_ext/recipes/quickstart.sh")
    package = {f"fairseq_ext/{name}" for name in files(repository / "fairseq_ext")}
    of_checkouts = {"test.sh", "soak.sh", "fairseq_tests.sh"}
    scripts = files(repository / "scripts") - of_checkouts
    carried = {"fairseq_ext/LICENSE"}  # by exported folders with code
    assert names == package | carried | {f"fairseq_ext/recipes/{name}" for name in scripts}
    assert executed == (ROOT / "scripts" / "quickstart.sh").read_bytes()


def install(wheel: Path, folder: Path) -> dict[str, str]:
    """A new environment that holds the wheel and sees the packages that it requires; its PATH."""
    venv.create(folder, symlinks=True, with_pip=True)
    python, ours = folder / "bin" / "python", Path(sysconfig.get_path("scripts"))
    packages = subprocess.check_output(
        [python, "-c", "import site; print(*site.getsitepackages())"], text=True
    ).strip()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        there = Path(packages, path.name)
        if not there.exists() and not re.match("fairseq|__editable__|pip", path.name):
            there.symlink_to(path)
    for path in Path(sysconfig.get_path("purelib")).glob("fairseq*"):
        if path.name in ("fairseq", "fairseq_cli"):  # it finds plugins that lie beside it
            shutil.copytree(path, Path(packages, path.name), copy_function=os.symlink)
    for script in ours.glob("fairseq-*"):
        if script.name != "fairseq-ext":
            text = re.sub(r"^#!.*", f"#!{python}", script.read_text())
            (folder / "bin" / script.name).write_text(text)
            (folder / "bin" / script.name).chmod(0o755)
    command = [python, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*command, "--ignore-installed", wheel], check=True)
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "FAIRSEQ_EXT_SKIP_INSTALL", "FAIRSEQ_EXT_CORPORA")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    return clean | {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.recipe
def test_an_installed_wheel_trains_generates_and_scores(archives, tmp_path):
    """In an empty folder, by recipes and by the commands of the README."""
    environment = install(archives[2], tmp_path / "env")
    place = tmp_path / "empty"
    place.mkdir()

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(tmp_path / "env") in run("python", "-c", "import fairseq_ext as f; print(f)")
    assert "prepare_wmt14 " in run("fairseq-ext", "recipe")
    said = run("fairseq-ext", "recipe", "quickstart", "--help")
    assert "Usage: fairseq-ext recipe quickstart [" in said
    said = run("fairseq-ext", "recipe", "quickstart", "--corpus", "builtin", "--updates", "2")
    assert re.search(r"^transformer_dna_tiny +1 +[\d,]+ +2 ", said, re.M)
    assert sorted(path.name for path in place.iterdir()) == ["checkpoints", "data-bin"]
    flags = "--user-dir fairseq_ext --arch transformer_hna_tiny --optimizer adam --lr 1e-3"
    rest = "--max-tokens 500 --max-update 1 --save-dir run --disable-validation --num-workers 0"
    run("fairseq-train", "data-bin/builtin.en-de", *flags.split(), *rest.split())
    path = "--user-dir fairseq_ext --path run/checkpoint_last.pt --max-len-b 5 --results-path out"
    run("fairseq-generate", "data-bin/builtin.en-de", *path.split(), "--remove-bpe")
    scored = run("fairseq-ext", "score", "out/generate-test.txt")
    assert re.search(r"^out/generate-test.txt +500 ", scored, re.M)
