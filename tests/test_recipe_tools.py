"""Steps that recipes run before and after their trainings."""

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import fairseq
from saved_state import save_state

from fairseq_ext.cli import main
from fairseq_ext.errors import UsageError
from fairseq_ext.tools import recipes, run_recipe

COMMON = ["--arch", "transformer_una_tiny", "--criterion", "label_smoothed_cross_entropy"]
COMMON += ["--share-all-embeddings"]


def test_variants_that_can_be_trained(data_bin, caplog):
    recipes.main(
        ["dry-run", str(data_bin), "una=", "dna=--arch transformer_dna_tiny", "--", *COMMON]
    )
    assert not caplog.records


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--arch transformer_none", "--arch is 'transformer_none', which nothing has registered"),
        ("--warmup 9", "--warmup is no flag of this command, its --task, --arch"),
        ("--criterion label_smoothed_cross_entropy_asa", "adversar"),
    ],
)
def test_variants_that_would_be_refused(data_bin, flags, message):
    with pytest.raises(UsageError, match=message):
        recipes.main(["dry-run", str(data_bin), "una=", f"other={flags}", "--", *COMMON])


def checkpoint(path, **model):
    return save_state(path, model)


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ({"_name": "roberta_dna_tiny"}, ["--arch", "roberta_dna"]),
        ({"arch": "roberta_base"}, ["--arch", "roberta_una"]),
        (
            {"_name": "roberta_asa", "asa_layers": "all", "head_gate": True},
            ["--head-gate=static", "--arch", "roberta_una"],
        ),
        (
            {"_name": "roberta_una", "encoder_gaussian_heads": "2"},
            ["--encoder-gaussian-heads=2", "--arch", "roberta_una"],
        ),
    ],
)
def test_flags_of_an_encoder(tmp_path, capsys, model, flags):
    recipes.main(["encoder-flags", checkpoint(tmp_path / "encoder.pt", **model)])
    assert capsys.readouterr().out.split() == flags


def test_an_encoder_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="there is no checkpoint"):
        recipes.main(["encoder-flags", str(tmp_path / "encoder.pt")])


@pytest.mark.parametrize("unknown", [False, True])
def test_references_that_lack_words(tmp_path, unknown):
    (tmp_path / "test.de").write_text("a a b b\n" + unknown * "c a\n")
    prefixes = f"--trainpref {tmp_path}/test --testpref {tmp_path}/test --destdir {tmp_path}"
    fairseq("preprocess", *f"-s de -t en --only-source --thresholdsrc 2 {prefixes}".split())
    prefix = tmp_path / "test.de-en.de"
    if unknown:
        with pytest.raises(UsageError, match=f"1 of the 2 sentences .*{tmp_path}/text/test.de$"):
            recipes.main(["check-references", str(prefix)])
    else:
        recipes.main(["check-references", str(prefix)])


@pytest.mark.parametrize(
    ("task", "train", "other", "strange"),
    [
        ("sentence_classification", {"text": "a", "label": "1"}, {"text": "b", "label": "1"}, ""),
        ("sentence_classification", {"text": "a", "label": "1"}, {"text": "b", "label": "x"}, "x"),
        ("sequence_tagging", {"words": ["a"], "tags": ["O"]}, {"words": ["b"], "tags": ["O"]}, ""),
        (
            "sequence_tagging",
            {"words": ["a", "b"], "tags": ["O", "B-loc"]},
            {"words": ["a"], "tags": ["B-per"]},
            "B-per",
        ),
    ],
)
def test_labels_that_training_does_not_have(tmp_path, task, train, other, strange):
    files = [tmp_path / "train.jsonl", tmp_path / "valid.jsonl"]
    for file, example in zip(files, (train, other), strict=True):
        file.write_text(json.dumps(example) + "\n")
    if strange:
        with pytest.raises(UsageError, match=f"valid.jsonl has the label '{strange}', which "):
            recipes.main(["check-labels", task, *map(str, files)])
    else:
        recipes.main(["check-labels", task, *map(str, files)])


def test_periods_of_a_byte_level_bpe(tmp_path, capsys):
    encoder = tmp_path / "encoder.json"
    for ids, printed in (({".": 13, "a": 64, "\u0120.": 764}, "13 764"), ({".": 7}, "7")):
        encoder.write_text(json.dumps(ids))
        recipes.main(["period-ids", str(encoder)])
        assert capsys.readouterr().out == f"{printed}\n"


def test_runs_whose_path_does_not_say_what_they_are():
    with pytest.raises(UsageError, match=r"^mean/seed-1 is no folder CORPUS/MODE/VARIANT/seed-N"):
        recipes.main(["training-times", "mean/seed-1"])


def test_a_recipe_takes_the_place_of_the_command(monkeypatch, tmp_path):
    """In the folder and with the Python of the command, and with what stands behind its name."""
    became = []
    monkeypatch.setattr(os, "execvpe", lambda *given: became.append(given))
    monkeypatch.chdir(tmp_path)
    main(["recipe", "quickstart", "--corpus", "builtin"])
    ((program, line, environment),) = became
    script = run_recipe.find_recipes()["quickstart"]
    assert (program, line) == ("bash", ["bash", str(script), "--corpus", "builtin"])
    assert environment["FAIRSEQ_EXT_PLACE"] == str(tmp_path)
    assert environment["FAIRSEQ_EXT_SKIP_INSTALL"] == "1"
    assert environment["PATH"] == f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert environment["HOME"] == os.environ["HOME"]


def test_training_times():
    """Seeds and corpora are summed; a variant that lacks a training is left out."""
    times = {
        "a/full/mean/seed-1": 1000.0,
        "a/full/mean/seed-2": 1500.0,
        "b/full/mean/seed-1": 500.0,
        "a/full/attention/seed-1": 1200.0,
        "a/full/attention/seed-2": 1500.0,
        "b/full/attention/seed-1": 600.0,
        "a/full/joint/seed-1": 9.0,
        "a/full/norm/seed-1": 9.0,
        "b/full/norm/seed-1": 9.0,
        "a/frozen/first/seed-1": 5.0,
    }
    runs = [(Path("/out", run), seconds) for run, seconds in times.items()]
    assert list(recipes.summarise_times(runs)) == [
        "full mean: 3,000 s of training over a, b, 1.000 of mean",
        "full attention: 3,300 s of training over a, b, 1.100 of mean",
        "full joint: left out, without a/seed-2, b/seed-1",
        "full norm: left out, without a/seed-2",
        "frozen first: 5 s of training over a",
    ]
