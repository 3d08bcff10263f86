"""The benchmark of reading pictures' features: a tiny run, refusals and the example of its help."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import measure  # noqa: E402
import pictures  # noqa: E402

from fairseq_ext.errors import UsageError  # noqa: E402


@pytest.mark.slow
def test_pictures(tmp_path):
    """Made-up pictures are deleted afterwards."""
    path, folder = tmp_path / "results.json", tmp_path / "data"
    folder.mkdir()
    done = subprocess.run(
        [
            *("python", ROOT / "benchmarks" / "pictures.py", "--json", path, "--folder", folder),
            *"--pictures 12 --boxes 3 --width 8 --questions 4 --rounds 1".split(),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, measure.TOO_NOISY), done.stderr
    found = json.loads(path.read_text())
    ratios = {row["label"]: row["ratios"] for table in found["tables"] for row in table["rows"]}
    assert ratios.keys() == {"epoch", "4 questions"}
    assert ratios["epoch"].keys() == {"end", "most"}
    assert ratios["4 questions"].keys() == {measure.AGAIN, "loading", "loading from the disk"}
    assert not list(folder.iterdir())


def test_too_few_pictures(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pictures", "--pictures", "0"])
    with pytest.raises(SystemExit) as refused:
        pictures.main()
    assert refused.value.code == 2
    assert "'0' is not a whole number from 1 upwards" in capsys.readouterr().err


def test_no_such_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pictures", "--folder", "/nowhere"])
    with pytest.raises(UsageError, match="--folder is /nowhere"):
        pictures.main()


def test_help_shows_an_example_that_parses(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pictures", "--help"])
    with pytest.raises(SystemExit):
        pictures.parse()
    example = re.search(r"python benchmarks/pictures\.py (.*)", capsys.readouterr().out)
    monkeypatch.setattr(sys, "argv", ["pictures", *example[1].split()])
    assert pictures.parse().rounds
