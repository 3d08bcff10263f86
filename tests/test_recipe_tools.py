"""Steps that recipes run before and after their trainings."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
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
        ("--arch transformer_none", "cannot take these flags: .*'transformer_none'$"),
        ("--warmup 9", "cannot take these flags: unrecognized arguments: --warmup 9"),
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


def test_the_best_of_variants(tmp_path, capsys):
    """The highest mean over seeds; of equal ones the first, and never one that diverged."""
    values = {"a": [70, 80], "b": [76, 75], "c": [74, 76], "d": ["nan", 90]}
    runs = []
    for variant, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies, 1):
            runs.append(run := tmp_path / variant / f"seed-{seed}")
            run.mkdir(parents=True)
            checkpoint(run / "checkpoint_last.pt", _name="roberta_una")
            state = torch.load(run / "checkpoint_last.pt", weights_only=False)
            state["cfg"]["common"] = {"seed": seed}
            state["extra_state"] = {"previous_training_time": 1.0}
            state["optimizer_history"] = [{"num_updates": 3}]
            torch.save(state, run / "checkpoint_last.pt")
            lines = [
                f"valid | accuracy {accuracy} | loss 1 | num_updates 3",
                "done training in 1 s",
            ]
            log = "".join(f"2026-01-01 01:01:01 | INFO | x | {line}\n" for line in lines)
            (run / "train.log").write_text(log.replace("x | valid", "valid"))
    recipes.main(["best-variant", "accuracy", *map(str, runs)])
    assert capsys.readouterr().out == "b\n"
    recipes.main(["best-variant", "accuracy", *map(str, runs[4:] + runs[:2])])
    assert capsys.readouterr().out == "c\n"


def test_training_times():
    """Seeds and corpora are summed; what a corpus lacks is left out."""
    times = {
        "a/full/mean/seed-1": 1000.0,
        "a/full/mean/seed-2": 1500.0,
        "b/full/mean/seed-1": 500.0,
        "a/full/attention/seed-1": 2700.0,
        "b/full/attention/seed-1": 600.0,
        "a/full/joint/seed-1": 9.0,
        "a/frozen/first/seed-1": 5.0,
    }
    runs = [(Path("/out", run), seconds) for run, seconds in times.items()]
    assert list(recipes.summarise_times(runs)) == [
        "full mean: 3,000 s of training over a, b, 1.000 of mean",
        "full attention: 3,300 s of training over a, b, 1.100 of mean",
        "frozen first: 5 s of training over a",
    ]
