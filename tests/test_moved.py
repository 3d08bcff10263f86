"""Import paths of earlier versions still work, from one table."""

import pickle
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
from conftest import PLUGIN, ROOT

from fairseq_ext import moved
from fairseq_ext.attention import AttentionContext
from fairseq_ext.mechanisms.guidance.plan import plan_guidance
from fairseq_ext.moved.finder import MovedFinder, MovedLoader
from fairseq_ext.tools.old_names import find_old_names

# Every module of 0.2.0, those of the documentation with the names that are described there.
OLD = (ROOT / "tests" / "fixtures" / "old_names.txt").read_text("utf-8").splitlines()
USE_OLD_PATHS = ("test_moved.py", "test_attention_names.py", "test_inspector.py")
VQA = find_spec("fairseq_ext.vqa") is not None


def is_there(path: str) -> bool:
    return VQA or not moved.MOVED.get(path, path).startswith("vqa")


@pytest.mark.parametrize("line", OLD)
def test_every_path_of_the_last_version_is_importable(line):
    module, _, names = line.partition(": ")
    if not is_there(module):
        with pytest.raises(ModuleNotFoundError, match="fairseq_ext.vqa"):
            import_module(f"fairseq_ext.{module}")
        return
    there = import_module(f"fairseq_ext.{module}")
    assert not [name for name in names.split() if not hasattr(there, name)]


@pytest.mark.parametrize("old", moved.MOVED)
def test_entries_lead_to_what_is_there(old):
    """In one step; and what an entry calls old is not there."""
    new = moved.MOVED[old]
    assert new not in moved.MOVED and new.partition(":")[0] not in moved.MOVED
    place = PLUGIN.joinpath(*old.partition(":")[0].split("."))
    assert ":" in old or not (place.with_suffix(".py").exists() or (place / "__init__.py").exists())
    if is_there(old):
        module, _, name = new.partition(":")
        assert hasattr(import_module(f"fairseq_ext.{module}"), name or "__name__")


@pytest.mark.parametrize(
    ("module", "name", "new"),
    [
        ("attention", "Frame", AttentionContext),
        ("attention.inputs", "Frame", AttentionContext),
        ("guidance.plan", "plan_guidance", plan_guidance),
    ],
)
def test_old_paths_give_the_same_object_and_warn_where_they_are_used(module, name, new):
    old = f"fairseq_ext.{module}"
    import_module(old)
    with pytest.warns(DeprecationWarning, match=f"{old}.* is now fairseq_ext") as warned:
        exec(compile(f"from {old} import {name} as it", "theirs.py", "exec"), found := {})
    assert found["it"] is new
    assert [each.filename for each in warned] == ["theirs.py"]


@pytest.mark.parametrize(
    "line", ["import fairseq_ext.guidance.plan", "from fairseq_ext.guidance import plan"]
)
def test_an_old_module_warns_once_when_it_is_imported(line):
    sys.modules.pop("fairseq_ext.guidance.plan", None)
    vars(import_module("fairseq_ext.guidance")).pop("plan", None)
    with pytest.warns(DeprecationWarning, match="is now fairseq_ext.mechanisms") as warned:
        exec(compile(line, "theirs.py", "exec"), {})
    assert [each.filename for each in warned] == ["theirs.py"]


def test_names_that_never_were_are_missing():
    for module in ("fairseq_ext", "fairseq_ext.attention", "fairseq_ext.guidance.plan"):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            import_module(module).nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="fairseq_ext.guidance.nothing"):
        import_module("fairseq_ext.guidance.nothing")


def test_pickles_with_old_paths_are_read():
    assert pickle.loads(b"cfairseq_ext.guidance.plan\nplan_guidance\n.") is plan_guidance


def test_an_old_folder_without_code_is_no_package(tmp_path):
    """A folder that a checkout has left, with the compiled files of the version before."""
    (tmp_path / "guidance" / "__pycache__").mkdir(parents=True)
    spec = MovedFinder().find_spec("fairseq_ext.guidance", [str(tmp_path)])
    assert isinstance(spec.loader, MovedLoader)


WITHOUT = """
import sys
sys.modules["fairseq_ext.vqa"] = None
import fairseq_ext.prepare
assert not hasattr(fairseq_ext.prepare, "vqa_features")
for line in ("fairseq_ext.prepare.vqa_features.main", "import fairseq_ext.prepare.vqa_features",
             "from fairseq_ext.prepare import vqa_features"):
    try:
        exec(line)
    except (AttributeError, ImportError) as error:
        print(type(error).__name__, error)
assert not {"torch", "fairseq"} & sys.modules.keys()
"""


def test_without_questions_about_pictures_their_old_paths_are_missing():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=ROOT)
    said = done.stdout.splitlines()
    assert [line.partition(" ")[0] for line in said] == [
        "AttributeError",
        "ModuleNotFoundError",
        "ModuleNotFoundError",
    ], done.stderr
    assert all("vqa" in line for line in said)


@pytest.mark.skipif(not VQA, reason="needs questions about pictures")
def test_steps_run_under_their_old_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["step", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("fairseq_ext.prepare.vqa_features", run_name="__main__", alter_sys=True)
    assert "usage: " in capsys.readouterr().out


def test_the_table_of_the_documentation(capsys):
    runpy.run_module("fairseq_ext.moved", run_name="__main__")
    assert capsys.readouterr().out in (ROOT / "docs" / "upgrading.md").read_text("utf-8")


def test_old_paths_are_found_in_a_package_that_is_not_run(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import guidance.plan\n"
        "import fairseq_ext.attention.doubly as doubly\n"
        "from fairseq_ext import attention, training_checks\n"
        "from fairseq_ext.guidance.plan import (\n    plan_guidance,\n)\n"
        "from fairseq_ext.attention import Attention\n"
        "doubly.Hybrid, attention.Frame, attention.Attention, 1 / 0\n"
    )
    assert [tuple(each) for each in find_old_names(tmp_path / "mine.py")] == [
        (2, "fairseq_ext.attention.doubly", "fairseq_ext.mechanisms.doubly"),
        (3, "fairseq_ext.training_checks", "fairseq_ext.training.training_checks"),
        (
            4,
            "fairseq_ext.guidance.plan.plan_guidance",
            "fairseq_ext.mechanisms.guidance.plan.plan_guidance",
        ),
        (8, "fairseq_ext.attention.Frame", "fairseq_ext.attention.AttentionContext"),
    ]


def is_gone(path: str) -> bool:
    module, _, name = path.rpartition(".")
    return name not in vars(import_module(module))


@pytest.mark.parametrize("folder", ["fairseq_ext", "benchmarks", "examples", "scripts", "tests"])
def test_nothing_of_ours_uses_old_paths(folder):
    """But names that both places still have."""
    files = [file for file in (ROOT / folder).rglob("*.py") if file.name not in USE_OLD_PATHS]
    found = {str(file): [each.old for each in find_old_names(file)] for file in files}
    assert not {file: gone for file, old in found.items() if (gone := [*filter(is_gone, old)])}
