"""A clean checkout, wherever tests need one."""

import shutil
from pathlib import Path

from conftest import ROOT

IGNORED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "build")
MADE = shutil.ignore_patterns("[!.]*", ".writer.lock")
FOLDERS = "fairseq_ext scripts docs tests benchmarks data-bin .ci .github examples".split()


def copy_repository(out: Path) -> Path:
    """What git would hold, without what else lies around."""
    out.mkdir()
    for path in ROOT.iterdir():
        if path.name in FOLDERS:
            ignored = MADE if path.name == "data-bin" else IGNORED
            shutil.copytree(path, out / path.name, ignore=ignored)
        elif path.is_file() and path.name != ".git" and not path.name.startswith(".cov"):
            shutil.copy(path, out / path.name)
    return out
