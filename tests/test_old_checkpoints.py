"""Checkpoints of an earlier version load, go on where they stopped, and say what they said.

tests/fixtures/old_checkpoints was made by the version of commit 4b76294, with torch 2.13 on x86.
NAME.tar.xz has begun.pt, of an update within an epoch, and done.pt, of three updates later, without
the optimizer's state; expected.json the commands, and what was said of done.pt.
"""

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from conftest import PLUGIN, ROOT, fairseq

OLD = ROOT / "tests" / "fixtures" / "old_checkpoints"
EXPECTED = json.loads((OLD / "expected.json").read_text("utf-8"))
EVERY = pytest.mark.parametrize("name", EXPECTED)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The texts that they were trained on, binarised."""
    folder = tmp_path_factory.mktemp("old") / "data"
    shutil.copytree(OLD / "data", folder)
    text, words = folder / "text", folder / "vocabulary"
    pairs = [part for s in ("train", "valid", "test") for part in (f"--{s}pref", text / s)]
    given = [*"-s de -t en --joined-dictionary --destdir".split(), folder / "translation"]
    fairseq("preprocess", *given, *pairs)
    parts = ["--trainpref", words / "train", "--validpref", words / "valid"]
    given = ["--srcdict", words / "dict.txt", "--destdir", words / "bin"]
    fairseq("preprocess", "--only-source", *given, *parts)
    return folder


@pytest.fixture
def checkpoints(name, tmp_path) -> Path:
    with tarfile.open(OLD / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def filled(command: str, **places: object) -> list[str]:
    return [part.format(plugin=PLUGIN, **places) for part in command.split()]


def read(path: Path) -> dict:
    return torch.load(path, weights_only=False)


def close(one, other) -> bool:
    """Words are the same, numbers nearly: another processor adds up in another order."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (other if isinstance(other, str) else pytest.approx(other, rel=1e-4, abs=1e-5))


@EVERY
def test_training_goes_on(data, checkpoints, name):
    """To the same parameters."""
    run, expected = checkpoints / "run", read(checkpoints / "done.pt")
    run.mkdir()
    (checkpoints / "begun.pt").rename(run / "checkpoint_last.pt")
    fairseq("train", *filled(EXPECTED[name]["train"], data=data, save=run))
    ended = read(run / "checkpoint_last.pt")
    starts = [state["optimizer_history"] for state in (ended, expected)]
    assert [len(history) for history in starts] == [2, 1]  # it did go on
    assert starts[0][-1]["num_updates"] == starts[1][-1]["num_updates"]
    # Where a gradient is rounding alone (keys' biases), processors differ by 1e-6; a step is 1e-3.
    torch.testing.assert_close(ended["model"], expected["model"], rtol=1e-5, atol=1e-5)


@EVERY
def test_a_model_says_what_it_said(data, checkpoints, name):
    verb, said = EXPECTED[name]["verb"], EXPECTED[name]["said"]
    given = filled(EXPECTED[name]["command"], data=data, checkpoint=checkpoints / "done.pt")
    done = fairseq("ext" if verb == "predict" else verb, *given)
    if verb == "predict":
        found = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    elif verb == "generate":
        lines = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", done.stdout, re.M)
        found = [[int(number), float(score), text] for number, score, text in lines]
    else:
        (line,) = re.findall(r"\| valid \| (\{\".*\})$", done.stdout + done.stderr, re.M)
        values = json.loads(line)  # rounded to three places
        assert {key: float(values[key]) for key in said} == pytest.approx(said, abs=6e-4)
        return
    assert close(found, said)
