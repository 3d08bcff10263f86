"""The notebook of examples/, executed."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

NOTEBOOK = ROOT / "examples" / "attention.ipynb"


def test_it_is_stored_without_outputs():
    """They would change with each run, and may hold paths of whoever ran it."""
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
    assert sum(cell["cell_type"] == "markdown" for cell in cells) >= 5


@pytest.mark.slow
@pytest.mark.recipe
def test_it_runs_in_an_empty_folder(tmp_path, monkeypatch):
    pytest.importorskip("nbmake")
    notebook = tmp_path / NOTEBOOK.name
    notebook.write_text(NOTEBOOK.read_text("utf-8"), "utf-8")
    for name, value in {"UPDATES": "2", "CHECKPOINT": "", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "pytest", "--nbmake", "--nbmake-timeout=600", "--overwrite"]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    done = subprocess.run(
        [*command, *options, notebook], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    kinds = [
        kind for cell in cells for out in cell.get("outputs", ()) for kind in out.get("data", ())
    ]
    assert kinds.count("image/png") == 2
    assert "layer 0, head 1:" in str(cells)
