"""scripts/train_parser.sh: how it calls spaCy, which a stand-in replaces, and what it refuses."""

import gzip
import os

import pytest
from conftest import ROOT
from shell import assert_refused, bash

SCRIPT = ROOT / "scripts" / "train_parser.sh"
TREEBANK = "# text = Dogs Run\n1\tDogs\tdog\tNOUN\t_\t_\t2\tnsubj\t_\t_\n"
STAND_IN = """
import sys
from pathlib import Path

command, *given = sys.argv[1:]
with open("calls", "a") as calls:
    print(command, *given, file=calls)
if command == "convert":
    source = Path(given[0])
    (Path(given[1]) / source.name).with_suffix(".spacy").write_text(source.read_text())
elif command == "train":
    for name in ("model-best", "model-last"):
        (Path(given[given.index("--output") + 1]) / name).mkdir()
elif command == "evaluate":
    if "Dogs" in Path(given[1]).read_text() and Path("broken").exists():
        sys.exit("Loading\\n\\nno score\\n")
    Path(given[given.index("--output") + 1]).write_text(Path(given[1]).read_text())
"""


@pytest.fixture
def train(tmp_path):
    """Run the script in a folder, on a treebank of one word; files are shorter than `small`."""
    (tmp_path / "spacy").mkdir()
    (tmp_path / "spacy/__init__.py").write_text("")
    (tmp_path / "spacy/__main__.py").write_text(STAND_IN)
    (tmp_path / "dev.conllu").write_text(TREEBANK)
    (tmp_path / "train.conllu.gz").write_bytes(gzip.compress(TREEBANK.encode()))
    given = ["--train", "train.conllu.gz", "--dev", "dev.conllu", "--out", "parser"]
    paths = f"{tmp_path}:{ROOT}"
    code = f'cd "{tmp_path}" && exec bash "{SCRIPT}" "$@"'
    return lambda *more: bash("-c", code, "bash", *given, *more, PYTHONPATH=paths)


def test_a_parser_is_trained_once_and_measured_in_lower_case_too(train, tmp_path):
    done = train("--updates", 20, "--lang", "de")
    assert done.returncode == 0, done.stderr
    parser = tmp_path / "parser"
    assert sorted(path.name for path in parser.iterdir()) == [
        *("model-best", "scores-lower.json", "scores.json")
    ]
    assert (parser / "scores.json").read_text() == TREEBANK
    assert (parser / "scores-lower.json").read_text() == TREEBANK.replace("\tDogs", "\tdogs")
    calls = (tmp_path / "calls").read_text()
    assert "--nlp.lang de" in calls and "--training.max_steps 20" in calls
    again = train()
    assert again.returncode == 0 and again.stdout == done.stdout
    assert (tmp_path / "calls").read_text() == calls


def test_annotations_of_another_parser_are_refused(train, tmp_path):
    """Annotations that are there are kept if this parser made them."""
    data = tmp_path / "data"
    (data / "train.annotations").mkdir(parents=True)
    (data / "train.jsonl").touch()
    about = data / "train.annotations" / "about.json"
    (tmp_path / "parser" / "model-best").mkdir(parents=True)
    about.write_text('{"parser": "spacy:parser/model-best"}')
    done = train("data")
    assert done.returncode == 0, done.stderr
    about.write_text('{"parser": "spacy:other/model-best"}')
    assert_refused(train("data"), "'data/train.annotations' is not by this parser: delete it")
    about.write_text('{"parser": "spacy:parser/model-best"}')
    later = about.parent.stat().st_mtime + 100
    os.utime(tmp_path / "parser" / "model-best", (later, later))
    assert_refused(train("data"), "'data/train.annotations' is not by this parser: delete it")


def test_annotations_are_refused_before_a_parser_is_trained(train, tmp_path):
    (tmp_path / "data" / "train.annotations").mkdir(parents=True)
    (tmp_path / "data" / "train.jsonl").touch()
    assert_refused(train("data"), "'data/train.annotations' is not by this parser: delete it")
    assert not (tmp_path / "calls").exists() and not (tmp_path / "parser").exists()


def test_a_slash_at_the_end_of_the_folder_says_the_same(train, tmp_path):
    done = train("--out", "parser/")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "parser" / "model-best").is_dir()
    again = train("--train", "/nowhere")  # none is needed any more
    assert again.returncode == 0, again.stderr


def test_a_folder_of_something_else_is_kept(train, tmp_path):
    (tmp_path / "parser").mkdir()
    (tmp_path / "parser" / "thesis").touch()
    assert_refused(train(), "'parser' is there and has no parser (model-best): delete it")
    assert (tmp_path / "parser" / "thesis").exists() and not (tmp_path / "calls").exists()


def test_what_fails_leaves_no_parser(train, tmp_path):
    (tmp_path / "broken").touch()
    said = "'spacy evaluate' failed (no score): what it printed is in parser.part/spacy.log"
    assert_refused(train(), said)
    assert "Loading" in (tmp_path / "parser.part" / "spacy.log").read_text()
    assert not (tmp_path / "parser").exists()
    (tmp_path / "broken").unlink()
    assert train().returncode == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--updates", "0"], ["--updates is '0'", "positive number"]),
        (["--train", "/nowhere"], ["--train is '/nowhere'", "give CoNLL-U"]),
        (["texts"], ["'texts' has no train.jsonl", "--words 0"]),
    ],
)
def test_refused(train, given, said):
    assert_refused(train(*given), *said)


def test_without_spacy_or_a_treebank(train, tmp_path):
    (tmp_path / "spacy/__init__.py").write_text("raise ImportError")
    assert_refused(train(), "spaCy is not installed", "pip install -e '.[spacy]'")
    new = tmp_path / "new"
    assert_refused(bash(SCRIPT, "--out", new), "--train is ''", "FAIRSEQ_EXT_CORPORA")
