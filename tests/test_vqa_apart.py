"""Questions about pictures stand apart: without their folder, everything else is as before."""

import json
import os
import shutil
import subprocess
import sys

from conftest import PLUGIN, ROOT

ASK = """
import json
import fairseq_ext.registry
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
tables = MODEL_REGISTRY, ARCH_MODEL_REGISTRY, CRITERION_REGISTRY, TASK_REGISTRY
names = [name for table in tables for name in table]
"""
TRY = """
import sys
from fairseq_ext import cli
from fairseq_ext.testing.mechanisms import build_tiny_model
build_tiny_model("transformer_dna_tiny")
for verb in [], ["predict"], ["columns"], ["weights"]:
    try:
        cli.main([*verb, "--help"])
    except SystemExit as ended:
        assert not ended.code
assert not [name for name in sys.modules if name.startswith("fairseq_ext.vqa")]
"""
SAY = """
print(json.dumps([fairseq_ext.__file__, names]))
"""


def start(folder, code):
    """Start a program with the package that lies in a folder."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def read_answer(process, folder):
    """Return the registered names, in order, and what was printed before them."""
    said, _ = process.communicate()
    assert process.returncode == 0
    before, _, last = said.rstrip().rpartition("\n")
    file, names = json.loads(last)
    assert file == str(folder / "fairseq_ext" / "__init__.py")
    return names, before


def test_without_their_folder_all_else_works(tmp_path):
    skipped = shutil.ignore_patterns("vqa", "__pycache__")
    shutil.copytree(PLUGIN, tmp_path / "fairseq_ext", ignore=skipped)
    running = {ROOT: start(ROOT, ASK + SAY), tmp_path: start(tmp_path, ASK + TRY + SAY)}
    (whole, _), (apart, helps) = (read_answer(running[folder], folder) for folder in running)
    removed = [name for name in whole if name not in apart]
    assert [name for name in whole if name not in removed] == apart
    assert {"vqa", "vqa_pythia", "vqa_multi_view_hna"} <= {*removed}
    assert all(name.startswith("vqa") for name in removed)
    assert helps.count("usage: fairseq-ext ") == 4
