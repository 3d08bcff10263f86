"""scripts/roles.sh, shrunk: every experiment through the real command line."""

import re
import shutil

import pytest
from conftest import ROOT
from shell import assert_refused, bash

from fairseq_ext.safe_loading import load_checkpoint

pytestmark = pytest.mark.recipe

FEW = ["--updates", 2, "--", "--cpu"]


def roles(*arguments):
    done = bash(ROOT / "scripts" / "roles.sh", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def configs(out, variants, repetition="seed-1", part="model"):
    runs = {name: out / name / repetition / "checkpoint_last.pt" for name in variants}
    return {name: load_checkpoint(str(run))["cfg"][part] for name, run in runs.items()}


def rows(said):
    return dict(re.findall(r"^([\w-]+) +(\d+) +[\d,]+ +2 ", said, re.M))


@pytest.fixture(scope="module")
def data(corpora, tmp_path_factory):
    """40 sentences of each part of SST-2, with a vocabulary."""
    whole, part = (tmp_path_factory.mktemp("data") / name for name in ("whole", "part"))
    recipe, env = ROOT / "scripts" / "prepare_task.sh", {"FAIRSEQ_EXT_CORPORA": str(corpora)}
    assert bash(recipe, "sst-2-sentences", whole, **env).returncode == 0
    part.mkdir()
    for file in whole.iterdir():
        lines = file.read_text("utf-8").split("\n")[:40]
        (part / file.name).write_text("\n".join(lines) + "\n", "utf-8")
    done = bash(recipe, "sst-2-sentences", part, "--words", 100)
    assert done.returncode == 0, done.stderr
    return part


def test_classification(data, tmp_path):
    """All variants have the same sizes or those of their own; scores are of the test part."""
    own = ["--data", data, "--out", tmp_path, "--seeds", 1, "--guided", "--head-gate"]
    said = roles("classify", "sst-2-sentences", *own, *FEW)
    out, names = tmp_path / "sst-2-sentences", ["transformer", "roles", "cnn", "bilstm"]
    assert rows(said) == dict.fromkeys(names, "1")
    assert "test.accuracy" in said and (out / "table.txt").read_text() in said
    found = configs(out, names)
    assert [found[name]["_name"] for name in names] == [
        *("roberta_roles", "roberta_roles", "sentence_cnn", "sentence_bilstm")
    ]
    assert found["transformer"]["encoder_roles"] == "none"
    assert found["roles"]["encoder_roles"] == "rare,separator,relative"
    assert found["roles"]["head_gate"] == "static"
    assert found["transformer"]["head_gate"] == "none"
    sizes = [
        {key: value for key, value in found[name].items() if key.startswith("encoder_")}
        for name in names[:2]
    ]
    assert {key for key in sizes[0] if sizes[0][key] != sizes[1][key]} == {"encoder_roles"}


def test_cross_validation_and_flags_of_the_user(data, tmp_path):
    own = ["--data", data, "--out", tmp_path, "--folds", 2, "--variants", "transformer roles"]
    own += ["--roles", "relative/none"]
    said = roles("classify", "mr", *own, *FEW, "--encoder-embed-dim", 12)
    assert rows(said) == {"transformer": "2", "roles": "2"}
    assert re.search(r"^roles: difference .*, p ", said, re.M) and "fold-1, fold-2" in said
    for fold in (1, 2):
        found = configs(tmp_path / "mr", ["transformer", "roles"], f"fold-{fold}")
        assert {each["encoder_embed_dim"] for each in found.values()} == {12}
        assert found["roles"]["encoder_roles"] == "relative/none"


@pytest.mark.slow
def test_ablation(data, tmp_path):
    own = [
        "--data",
        data,
        "--out",
        tmp_path,
        "--seeds",
        1,
        "--roles",
        "relative,none/rare,relative",
    ]
    said = roles("ablate", "sst-2-sentences", *own, *FEW)
    out = tmp_path / "sst-2-sentences"
    names = ["roles", "without-rare", "without-relative"]
    assert rows(said) == dict.fromkeys(names, "1")
    found = configs(out, names)
    assert [found[name]["encoder_roles"] for name in names] == [
        "relative,none/rare,relative",
        "relative,none/none,relative",
        "none,none/rare,none",
    ]
    assert (out / "ablation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_translation(data_bin, real_lines, tmp_path_factory, tmp_path):
    """What was trained with roles also translates without."""
    data = tmp_path_factory.mktemp("translation") / "data"
    shutil.copytree(data_bin, data)
    for valid in data.glob("valid.*"):  # which is shorter than the test part
        shutil.copy(valid, data / valid.name.replace("valid", "test"))
    (data / "text").mkdir()
    shutil.copy(real_lines / "valid.en", data / "text" / "test.en")
    own = ["--data", data, "--out", tmp_path, "--seeds", 1, "--updates", 2]
    said = roles("translate", *own, "--", "--cpu", "--max-tokens", 600)
    names = ["transformer", "roles", "training-only"]
    assert rows(said) == dict.fromkeys(names, "1")
    runs = {name: tmp_path / name / "seed-1" for name in names}
    last = [(runs[name] / "checkpoint_last.pt").resolve() for name in names]
    assert last[1] == last[2] != last[0]
    output = {name: (run / "generate-test.txt").read_text() for name, run in runs.items()}
    assert output["roles"] != output["training-only"]
    assert not list(tmp_path.glob("*/*/*.part"))


def test_variants_that_there_are_not(data, tmp_path):
    own = ["--data", data, "--out", tmp_path / "out", "--variants", "roles lstm"]
    done = bash(ROOT / "scripts" / "roles.sh", "classify", "sst-2-sentences", *own)
    assert_refused(done, "--variants has 'lstm'")
