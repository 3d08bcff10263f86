"""A clean checkout, wherever tests need one."""

import shutil
from pathlib import Path

from conftest import ROOT

IGNORED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "build")
FOLDERS = "fairseq_ext scripts docs tests benchmarks data-bin .ci .github examples".split()


def copy_repository(out: Path) -> Path:
    """What git would hold, without what else lies around."""
    out.mkdir()
    for path in ROOT.iterdir():
        if path.name in FOLDERS:
            shutil.copytree(path, out / path.name, ignore=IGNORED)
        elif path.is_file() and path.name != ".git" and not path.name.startswith(".cov"):
            shutil.copy(path, out / path.name)
    for made in (out / "data-bin").iterdir():
        if made.name != ".gitkeep":
            shutil.rmtree(made)
    return out
