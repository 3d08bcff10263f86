"""Finished runs: what is read of them, which are repetitions, and the verb `table`."""

import csv
import json
import math
import os
import re
import subprocess
import sys
from argparse import Namespace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from scipy import stats
from torch import nn

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import metrics, runs
from fairseq_ext.training_logs import is_finished, name_variants


class Tied(nn.Module):
    """As fairseq's Transformer: shared embeddings, and buffers that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.project = nn.Linear(3, 7, bias=False)
        self.project.weight = self.embed.weight
        self.same_shape = nn.Linear(3, 7)
        self.register_buffer("version", torch.Tensor([3]))
        self.register_buffer("_float_tensor", torch.zeros(1))


PARAMETERS = sum(parameter.numel() for parameter in Tied().parameters())

REFERENCE = [f"der {i} . hund bellt , laut und lang !" for i in range(40)]


def translations(errors: int) -> list[str]:
    """The reference with a wrong word in so many sentences."""
    return [
        line.replace("hund", "kater") if i < errors else line for i, line in enumerate(REFERENCE)
    ]


def log(loss: float, accuracy: float, updates: int, wps: float, end: bool) -> str:
    """The best checkpoint is after half of the updates; accuracy is better at the end."""
    lines = [
        f"train_inner | epoch 001: loss=9, wps={w}, num_updates={u}"
        for u, w in ((1, wps), (2, 3 * wps), (3, wps))
    ]
    for update, value, right in ((updates // 2, loss, accuracy), (updates, loss + 1, accuracy + 1)):
        lines.append(f"valid | epoch 001 | loss {value} | accuracy {right} | num_updates {update}")
        lines.append(
            f"valid1 | epoch 001 | loss {value + 5} | accuracy {right + 5} | num_updates {update}"
        )
    for update, average in ((updates // 2, 8), (updates, 3)):
        lines.append(f"train | epoch 001 | loss {average + loss} | num_updates {update}")
    lines += ["fairseq_cli.train | done training in 333.4 seconds"] if end else []
    return "".join(f"2026-01-01 01:01:01 | INFO | {line}\n" for line in lines)


def make(
    folder: Path,
    errors: int = 0,
    *,
    updates: int = 1650,
    seconds: float = 333.4,
    loss: float = 4.5,
    accuracy: float = 70.0,
    wps: float = 4000,
    end: bool = True,
    **settings,
) -> Path:
    """A run: its log, checkpoint and output, as far as they are read."""
    number = folder.name.rpartition("-")[2]
    defaults = {
        "model._name": "transformer",
        "model.dropout": 0.1,
        "common.seed": int(number) if number.isdigit() else 1,
        "task._name": "translation",
        "task.data": "data-bin",
        "optimization.max_update": updates,
        "checkpoint.save_dir": str(folder),
        "checkpoint.best_checkpoint_metric": "loss",
        "checkpoint.maximize_best_checkpoint_metric": False,
        "dataset.valid_subset": "valid,valid1",
    }
    config: dict = {"bpe": None}
    for key, value in (defaults | settings).items():
        part, name = key.split(".")
        config.setdefault(part, {})[name] = value
    state = {
        "cfg": config,
        "model": Tied().state_dict(),
        "optimizer_history": [{"num_updates": 3}, {"num_updates": updates}],
        "extra_state": {"previous_training_time": seconds},
    }
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / runs.CHECKPOINT)
    (folder / "train.log").write_text(log(loss, accuracy, updates, wps, end))
    lines = []
    for i, (target, line) in enumerate(zip(REFERENCE, translations(errors), strict=True)):
        lines = [f"T-{i}\t{target}", f"H-{i}\t-1\t{line}", f"D-{i}\t-1\t{line}", *lines]
    (folder / "generate-test.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture
def reference(tmp_path) -> Path:
    path = tmp_path / "test.de"
    path.write_text("".join(f"{line}\n" for line in REFERENCE))
    return path


@pytest.fixture
def table(capsys):
    """`fairseq-ext table`; what it printed: rows by the names of columns, and the notes."""

    def call(*arguments: object) -> tuple[list[dict[str, str]], list[str]]:
        cli.main(["table", *map(str, arguments), "--format", "csv"])
        lines = capsys.readouterr().out.split("\n")[:-1]
        notes = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
        return list(csv.DictReader(line for line in lines if not line.startswith("# "))), notes

    return call


# Records.


def test_a_record_has_the_numbers_of_each_run(tmp_path, reference):
    """Filled in, it is one that docs/records.py takes."""
    sys.path.append(str(ROOT / "docs"))
    import records

    for variant, loss in (("una", 4.5), ("dna", 4.2)):
        for seed in (1, 2, 3):
            folder = tmp_path / variant / f"seed-{seed}"
            make(folder, seed, loss=loss + seed * (0.1 if variant == "una" else 0.11))
    given = [tmp_path / v / f"seed-{n}" for v in ("una", "dna") for n in (1, 2, 3)]
    (given[0] / "train.done").write_text("fairseq-train data-bin --arch 'tran\\former'\n")
    out = tmp_path / "made.toml"
    flags = f"--reference {reference} --metric loss bleu --baseline una --out {out}".split()
    cli.main(["record", *map(str, given), *flags])
    record = records.read_record(out)
    assert record["columns"] == ["side", "repetition", "loss", "bleu"]
    assert record["runs"][0][:3] == ["una", "seed 1", 4.6]
    assert record["seeds"] == [1, 2, 3]
    assert record["command"] == "fairseq-train data-bin --arch 'tran\\former'"
    assert record["measures"]["loss"]["better"] == "lower"
    assert record["measures"]["bleu"]["better"] == "higher"
    empty = ("title", "question", "paper", "page", "meaning", "change")
    assert {*records.find_faults(record)} == {f"it lacks {field}" for field in empty}
    test = {"side": "dna", "baseline": "una", "measure": "loss"}
    claim = {**record["claims"][0], "claim": "Lower", "verdict": "holds", "tests": [test]}
    filled = record | dict.fromkeys(empty, "text") | {"claims": [claim]}
    assert not records.find_faults(filled)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--out {folder}/made.txt", "is no .toml file"),
        ("--out {folder}/there.toml", "is there already"),
        ("--out {folder}/made.toml --baseline other", "--baseline is other; give one of a"),
        ("--out {folder}/made.toml --metric accuracyy", "has no accuracyy"),
    ],
)
def test_a_record_that_cannot_be_is_refused(flags, says, tmp_path):
    (tmp_path / "there.toml").touch()
    make(tmp_path / "a" / "seed-1")
    with pytest.raises((SystemExit, UsageError), match=re.escape(says)):
        cli.main(["record", str(tmp_path / "a/seed-1"), *flags.format(folder=tmp_path).split()])
    assert not (tmp_path / "made.toml").exists()


# Facts.


@pytest.fixture
def recorded(tmp_path, reference) -> tuple[list[Path], Path]:
    """Two variants with three seeds, and their record."""
    given = [tmp_path / v / f"seed-{n}" for v in ("una", "dna") for n in (1, 2, 3)]
    for number, folder in enumerate(given):
        make(folder, number, loss=4.5 - number / 7)
    out = tmp_path / "made.toml"
    flags = ["--metric", "loss", "bleu", "--reference", str(reference), "--out", str(out)]
    cli.main(["record", *map(str, given), *flags])
    return given, out


def test_a_record_gives_the_table_of_its_runs(recorded, reference, table):
    given, record = recorded
    flags = ["--metric", "bleu", "loss", "--baseline", "una", "--test", "t", "--sort", "highest"]
    rows, notes = table(*given, *flags, "--reference", reference)
    ours, said = table(record, *flags)
    known = ("variant", "n", "BLEU†", "BLEU† standard error", "loss", "loss standard error")
    assert ours == [{name: row[name] for name in known} for row in rows]
    assert said[-3:] == notes[-3:]  # the t-test, its result, and the meaning of p
    assert f"bleu, loss: as recorded in {record}" in said
    assert [*table(record)[0][0]][2:] == ["loss", "loss standard error", "BLEU†", *known[3:4]]


def test_a_record_beside_a_run(recorded, tmp_path, table):
    make(tmp_path / "new", loss=1.5)
    rows, _ = table(recorded[1], tmp_path / "new", "--metric", "loss")
    assert {row["variant"]: row["n"] for row in rows} == {"new": "1", "una": "3", "dna": "3"}
    assert [*rows[0]] == ["variant", "n", "loss", "loss standard error"]
    assert float(rows[0]["loss"]) == 1.5


def test_groups_of_a_record_are_variants_apart(tmp_path, table):
    lines = [
        'columns = ["group", "side", "repetition", "x"]',
        'runs = [["a", "una", "seed 1", 1.0], ["b", "una", "seed 1", 2.0]]',
        'measures = {x = {title = "X", digits = 1, better = "lower"}}',
    ]
    (tmp_path / "made.toml").write_text("\n".join(lines))
    rows, _ = table(tmp_path / "made.toml")
    assert [(row["variant"], row["X"]) for row in rows] == [("a/una", "1.0"), ("b/una", "2.0")]


@pytest.mark.parametrize(
    ("change", "flags", "says"),
    [
        (("runs = [", "ran = ["), "", "has no runs, and the numbers of each run are needed"),
        (("runs = [", "runs = [["), "", "is no TOML"),
        (('"seed 2", ', ""), "", "has a run that is not as columns and measures say"),
        (('"dna", "seed 2"', '"dna", "seed 1"'), "--test t", "dna has seed-1 twice"),
        ((", 4.", ', "", 4.'), "", "not as columns and measures say"),
        (("", ""), "--metric chrf", "run 1 has no chrf; it has loss, bleu"),
        (("", ""), "--test bootstrap", "of a log or a record and has no sentences"),
        (("", ""), "--gen-subset valid", "--gen-subset is for outputs of runs"),
        (("", ""), "{folder}/una/seed-1 --metric loss", "both have a variant una"),
        (("data-bin", "other"), "{folder}/new --metric loss", "cannot be compared"),
    ],
)
def test_records_that_cannot_be_in_a_table(recorded, tmp_path, change, flags, says):
    record = recorded[1]
    record.write_text(record.read_text().replace(*change) if change[0] else record.read_text())
    make(tmp_path / "new")
    with pytest.raises(UsageError, match=re.escape(says)):
        cli.main(["table", str(record), *flags.format(folder=tmp_path).split()])


def test_a_record_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="made.toml is not there; give a record"):
        cli.main(["table", str(tmp_path / "made.toml")])


def test_tied_matrices_count_once_even_if_they_were_copied():
    """As fairseq saves them from a GPU."""
    state = {name: value.clone() for name, value in Tied().state_dict().items()}
    assert runs.count_parameters(state) == PARAMETERS


def test_facts_of_a_checkpoint(tmp_path):
    found = runs.read_facts(make(tmp_path / "a") / runs.CHECKPOINT)
    assert found[:3] == (PARAMETERS, 1650, 333.4)
    assert found.settings["optimization.max_update"] == 1650 and found.settings["bpe._name"] is None


def test_settings_of_a_legacy_checkpoint():
    legacy = Namespace(_name="transformer", arch="transformer_iwslt_de_en", dropout=0.3)
    assert runs.get_architecture(legacy) == "transformer_iwslt_de_en"
    assert runs.get_architecture({"_name": "transformer_dna"}) == "transformer_dna"
    assert runs.flatten_settings({"model": legacy})["model.dropout"] == 0.3


class Malicious:
    def __reduce__(self):
        return print, ("this ran",)


def test_nothing_in_a_checkpoint_runs(tmp_path, capsys):
    torch.save({"extra_state": Malicious()}, tmp_path / runs.CHECKPOINT)
    with pytest.raises(UsageError, match="print"):
        runs.read_facts(tmp_path / runs.CHECKPOINT)
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["cfg", "extra_state"])
def test_what_does_not_say_how_it_was_trained(tmp_path, missing):
    """As fairseq 0.9 saved it, or as an average."""
    path = make(tmp_path / "a") / runs.CHECKPOINT
    state = torch.load(path, weights_only=True)
    state |= {missing: None, "args": Namespace(arch="transformer") if missing == "cfg" else None}
    torch.save(state, path)
    with pytest.raises(UsageError, match="does not say how it was trained"):
        runs.read_facts(path)


def test_a_training_that_goes_on_is_not_finished(tmp_path):
    folder = make(tmp_path / "a")
    assert is_finished(folder)
    path = folder / "train.log"
    path.write_text(path.read_text() + log(4.0, 70, 1800, 4000, end=False))
    assert not is_finished(folder)
    path.write_text("no numbers\n")
    assert not is_finished(folder)


def test_repetitions_may_be_from_machines_with_other_devices(tmp_path, table):
    for seed, devices in ((1, 4), (2, 1)):
        given = {
            f"distributed_training.{name}": devices
            for name in ("distributed_num_procs", "nprocs_per_node")
        }
        make(tmp_path / "a" / f"seed-{seed}", **given)
    assert table(*sorted((tmp_path / "a").iterdir()))


def test_variants_are_named_by_their_folder(tmp_path):
    paths = [tmp_path / name for name in ("a/seed-1", "a/seed-2", "b/fold-10", "seedling")]
    assert name_variants(paths) == ["a", "a", "b", "seedling"]
    same = [tmp_path / name for name in ("x/a/seed-1", "y/a/seed-1")]
    assert name_variants(same) == [str(path.parent) for path in same]


def test_values_are_those_of_the_best_checkpoint(tmp_path):
    run = runs.read_run(make(tmp_path / "a", accuracy=70.0), "a")
    assert runs.find_logged_value(run, "loss") == 4.5
    assert runs.find_logged_value(run, "accuracy") == 70.0  # of the best checkpoint
    assert runs.find_logged_value(run, "valid1.accuracy") == 75.0
    assert runs.find_logged_value(run, "last.accuracy") == 71.0
    assert runs.find_logged_value(run, "last.loss") == 5.5
    assert runs.measure_speed(run) == 4000
    assert math.isnan(runs.measure_speed(run._replace(records=[])))
    path = tmp_path / "a" / "train.log"
    path.write_text(path.read_text().replace("loss 5.5", "loss 4.5"))
    assert runs.find_logged_value(runs.read_run(path.parent, "a"), "accuracy") == 71.0
    path.write_text(path.read_text().replace("loss 4.5", "loss nan", 1))
    assert runs.find_logged_value(runs.read_run(path.parent, "a"), "loss") == 4.5
    settings = {"best_checkpoint_metric": "accuracy", "maximize_best_checkpoint_metric": True}
    path = make(tmp_path / "b", **{f"checkpoint.{name}": value for name, value in settings.items()})
    assert runs.find_logged_value(runs.read_run(path, "b"), "accuracy") == 71.0
    assert runs.find_logged_value(runs.read_run(path, "b"), "loss") == 5.5


def test_values_of_a_subset_with_any_name(tmp_path):
    run = make(tmp_path / "a", **{"dataset.valid_subset": "valid-mm"})
    path = run / "train.log"
    path.write_text(path.read_text().replace("| valid |", "| valid-mm |"))
    assert runs.find_logged_value(runs.read_run(run, "a"), "loss") == 4.5


def test_values_of_training_are_those_of_its_last_epoch(tmp_path):
    run = runs.read_run(make(tmp_path / "a"), "a")
    assert runs.find_logged_value(run, "train.loss") == 7.5
    path = run.folder / "train.log"
    path.write_text(path.read_text().replace("INFO | train |", "INFO | nothing |"))
    with pytest.raises(UsageError, match=r"no train\.loss in the last epoch .* has none at all"):
        runs.find_logged_value(runs.read_run(run.folder, "a"), "train.loss")


def analysed(run: Path, head: dict[str, list[float]]) -> Path:
    """A run with the tables that `fairseq-ext analyse` writes, one head of each site in a row."""
    folder = run / "analysis"
    folder.mkdir()
    for table, names in (("column_sums.csv", ["keys"]), ("heads.csv", ["entropy"])):
        rows = [["model", "site", "head", *names]]
        for site, values in head.items():
            rows += [["a", site, h, value] for h, value in enumerate(values)]
        (folder / table).write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return run


def test_values_of_an_analysis_are_means_over_heads(tmp_path, table):
    heads = {"encoder": [1.0, 2.5], "cross": [7.0]}
    folders = [analysed(make(tmp_path / name), heads) for name in "ab"]
    rows, notes = table(*folders, "--metric", "analysis.encoder.entropy", "analysis.cross.keys")
    assert [float(row["analysis.encoder.entropy"]) for row in rows] == [1.75, 1.75]
    assert float(rows[0]["analysis.cross.keys"]) == 7.0
    assert "analysis.encoder.entropy: mean over heads, of `fairseq-ext analyse`" in notes
    for name, said in (
        ("encoder.entropie", "head or keys"),
        ("decoder.entropy", "cross"),
        ("encoder.model", "head or keys"),
    ):
        with pytest.raises(
            UsageError, match=f"no analysis.{name}; give analysis.SITE.NAME.*{said}"
        ):
            table(*folders, "--metric", f"analysis.{name}")
    with pytest.raises(
        UsageError, match=r"c has no analysis/column_sums.csv nor heads.csv; run 'fairseq-ext"
    ):
        table(make(tmp_path / "c"), "--metric", "analysis.encoder.entropy")
    with (folders[0] / "analysis/heads.csv").open("a") as file:
        file.write("b,encoder,0,9.0\n")
    with pytest.raises(UsageError, match=r"heads.csv has heads of 2 models; give the folder that"):
        table(*folders, "--metric", "analysis.encoder.entropy")


def test_values_relative_to_the_run_of_the_same_number(tmp_path, table):
    """The first validation is after half of the updates; the second has a loss larger by 1."""
    losses = {"una": [4.0, 5.0], "fast": [3.0, 4.5], "slow": [4.5, 4.9]}
    folders = [
        make(tmp_path / f"{name}/seed-{n}", loss=loss, wps=1000 * n / (1 + (name == "slow")))
        for name, each in losses.items()
        for n, loss in enumerate(each, 1)
    ]
    names = ["updates-to.valid.loss", "time-ratio"]
    rows, notes = table(*folders, "--metric", *names)
    assert [float(row["updates-to.valid.loss"]) for row in rows] == [825, 825, math.inf]
    assert [float(row["time-ratio"]) for row in rows] == [1, 1, 2]
    assert any(note.startswith("time-ratio: ") and "una's run" in note for note in notes)
    rows, notes = table(*folders, "--metric", names[0], "--baseline", "slow", "--test", "t")
    assert [float(row["updates-to.valid.loss"]) for row in rows] == [math.inf, 825, 825]
    assert any(note.startswith("una: ") and "p unknown" in note for note in notes)
    for given, said in (
        (["--metric", "updates-to.train.loss"], "is not of each validation"),
        (["--metric", "updates-to.last.loss"], "is not of each validation"),
        (["--metric", "updates-to.lossy"], "has no lossy in the validation"),
        (["--metric", "updates-to.accuracy"], "is of accuracy, and what falls is asked for"),
        (["--metric", "loss", "--baseline", "una"], "--baseline is for --test, --bars, and"),
    ):
        with pytest.raises(UsageError, match=said):
            table(*folders, *given)
    with pytest.raises(UsageError, match=r"una has no seed-3, with which .*seed-3 would be"):
        table(*folders, make(tmp_path / "slow/seed-3"), "--metric", "time-ratio")


def test_updates_to_the_lowest_value_whichever_checkpoint_is_the_best(tmp_path, table):
    """By accuracy the baseline's second validation is the best, whose loss is higher by 1."""
    best = {
        "checkpoint.best_checkpoint_metric": "accuracy",
        "checkpoint.maximize_best_checkpoint_metric": True,
    }
    losses = {"una": 4.0, "slow": 4.5, "fast": 3.9}
    folders = [make(tmp_path / f"{n}/seed-1", loss=loss, **best) for n, loss in losses.items()]
    rows, _ = table(*folders, "--metric", "updates-to.loss")
    assert [float(row["updates-to.loss"]) for row in rows] == [825, math.inf, 825]


@pytest.mark.parametrize(("left", "expected"), [(1, [1650, 825]), (0, [math.nan, math.nan])])
def test_a_loss_that_is_no_number_is_no_target(tmp_path, table, left, expected):
    """The baseline's first loss is NaN, or both are; its accuracy chooses the checkpoint."""
    best = {"checkpoint.best_checkpoint_metric": "accuracy"}
    losses = {"una": 4.0, "fast": 4.5}
    folders = [make(tmp_path / f"{n}/seed-1", loss=x, **best) for n, x in losses.items()]
    text = (folders[0] / "train.log").read_text()
    for loss in ("4.0", "5.0")[: 2 - left]:
        text = text.replace(f"valid | epoch 001 | loss {loss}", "valid | epoch 001 | loss nan")
    (folders[0] / "train.log").write_text(text)
    rows, _ = table(*folders, "--metric", "updates-to.loss")
    found = [float(row["updates-to.loss"]) for row in rows]
    assert found == pytest.approx(expected, nan_ok=True)


# The table.


def test_a_run_of_each_variant(tmp_path, reference, table):
    rows, notes = table(
        make(tmp_path / "una", 10), make(tmp_path / "dna"), "--reference", reference
    )
    assert [row["variant"] for row in rows] == ["una", "dna"]
    for row in rows:
        assert (row["n"], row["parameters"], row["updates"]) == ("1", str(PARAMETERS), "1650")
        assert (row["training seconds"], row["tokens/s"]) == ("333.4", "4000.0")
        assert row["BLEU† standard error"] == ""
    for name in ("BLEU†", "tokenised BLEU", "chrF†"):
        assert float(rows[0][name]) < float(rows[1][name]) == pytest.approx(100)
        assert any(note.startswith(f"{name}: nrefs:1|") for note in notes)
    assert not any("±" in note for note in notes)


def test_scores_are_those_of_the_verb_score(tmp_path, reference, table, capsys):
    folder = make(tmp_path / "una", 10)
    rows, _ = table(folder, "--reference", reference, "--metric", "ter", "bleu")
    cli.main(
        [
            "score",
            str(folder / "generate-test.txt"),
            "--reference",
            str(reference),
            "--metrics",
            "bleu",
            "ter",
        ]
    )
    scores = capsys.readouterr().out.split("\n")[1].split()
    assert scores[2:] == [f"{float(rows[0][name]):.2f}" for name in ("BLEU†", "TER†")]
    assert list(rows[0]).index("TER†") < list(rows[0]).index("BLEU†")


def test_worked_example_of_a_standard_error(tmp_path, table, capsys):
    """Of 4, 5 and 9: mean 6, variance (4 + 1 + 9) / 2 = 7, standard error sqrt(7 / 3)."""
    paths = [
        make(tmp_path / f"una/seed-{n}", loss=x, seconds=100 * n)
        for n, x in ((1, 4), (2, 5), (3, 9))
    ]
    (row,), notes = table(*paths)
    assert row["variant"] == "una" and row["n"] == "3"
    assert float(row["loss"]) == pytest.approx(6)
    assert float(row["loss standard error"]) == pytest.approx(math.sqrt(7 / 3))
    assert float(row["training seconds"]) == 200
    assert any("±" in note and "n repetitions" in note for note in notes)
    cli.main(["table", *map(str, paths)])
    header, shown = capsys.readouterr().out.split("\n")[:2]
    assert header.split() == "variant n parameters updates loss training time tokens/s".split()
    assert shown.split() == [
        "una",
        "3",
        str(PARAMETERS),
        "1,650",
        "6.000",
        "±",
        "1.528",
        "0:03:20",
        "4,000",
    ]
    assert len(header) == len(shown)


def test_markdown_file(tmp_path, capsys):
    output = tmp_path / "new" / "results.md"
    cli.main(["table", str(make(tmp_path / "una")), "--output", str(output)])
    header, rule, row, empty, note, end = output.read_text("utf-8").split("\n")
    assert header.count("|") == rule.count("|") == row.count("|") == 8
    assert (
        rule.startswith("| :--- | ---: |")
        and row.startswith("| una ")
        and note.startswith("- loss: ")
    )
    assert not empty and not end and capsys.readouterr().out == f"{output} is ready\n"
    assert list(output.parent.iterdir()) == [output]


def test_names_are_no_markdown(tmp_path):
    """Neither HTML nor a link, nor the end of a cell."""
    output, name = tmp_path / "results.md", "<b>a|[b](c)&`"
    cli.main(["table", str(make(tmp_path / name)), "--output", str(output)])
    _, _, row, *_ = output.read_text("utf-8").split("\n")
    assert row.startswith(r"| &lt;b&gt;a\|\[b\](c)&amp;\` |")


def test_repetitions_of_other_lengths_show_their_range(tmp_path, table):
    """As with --patience: the same settings."""
    paths = [
        make(tmp_path / f"a/seed-{n}", updates=u, **{"optimization.max_update": 9000})
        for n, u in ((1, 1650), (2, 1800))
    ]
    (row,), _ = table(*paths)
    assert row["updates"] == "1650-1800"


def test_folds_may_differ_in_their_data(tmp_path, table):
    paths = [
        make(tmp_path / f"a/fold-{n}", **{"task.data": f"bin/{n}", "common.seed": 1})
        for n in (1, 2)
    ]
    (row,), _ = table(*paths)
    assert row["n"] == "2"


def test_what_is_named_after_the_seed_is_no_difference(tmp_path, table):
    paths = [
        make(tmp_path / f"a/seed-{n}", **{"checkpoint.restore_file": f"pre/seed-{n}/x.pt"})
        for n in (1, 2)
    ]
    (row,), _ = table(*paths)
    assert row["n"] == "2"


@pytest.mark.parametrize(
    ("sort", "order"), [("highest", ["b", "a", "c"]), ("lowest", ["c", "a", "b"])]
)
def test_sorted_by_the_means_of_the_first_metric(tmp_path, table, sort, order):
    losses = {"a/seed-1": 4, "a/seed-2": 5, "b/seed-1": 3, "b/seed-2": 7, "c/seed-1": 4.2}
    paths = [make(tmp_path / name, loss=loss) for name, loss in losses.items()]
    rows, notes = table(*paths, "--metric", "train.loss", "accuracy", "--sort", sort)
    assert [row["variant"] for row in rows] == order
    assert "train.loss: from the log, of the last epoch of training" in notes
    assert "accuracy: from the log, of the best validation" in notes


def test_a_training_that_diverged(tmp_path, table):
    losses = {"a/seed-1": 4, "a/seed-2": "nan", "b/seed-1": 3, "b/seed-2": 7}
    paths = [make(tmp_path / name) for name in losses]
    for path, loss in zip(paths, losses.values(), strict=True):
        log = (path / "train.log").read_text()
        (path / "train.log").write_text(log.replace("loss 7.5", f"loss {loss}"))
    loss = ["--metric", "train.loss", "--sort", "highest"]
    rows, notes = table(*paths, *loss, "--test", "t", "--baseline", "b")
    assert [row["variant"] for row in rows] == ["b", "a"]
    assert rows[1]["train.loss standard error"] == "nan"
    assert any(note.endswith("p unknown since a value is not finite") for note in notes), notes


# Tests of differences.

LOSSES = {"una": [4.0, 4.2, 4.7], "dna": [3.9, 4.0, 4.3], "hna": [4.1, 4.1, 4.8]}


@pytest.fixture
def study(tmp_path) -> list[Path]:
    """Three variants, three seeds; dna has 4, una 12 and hna 11 to 13 errors."""
    errors = {"una": [12, 12, 12], "dna": [4, 4, 4], "hna": [11, 12, 13]}
    return [
        make(tmp_path / f"{name}/seed-{n + 1}", errors[name][n], loss=LOSSES[name][n])
        for name in LOSSES
        for n in (2, 0, 1)
    ]


def test_t_over_matched_seeds(study, table):
    _, notes = table(*study, "--test", "t")
    title = next(note for note in notes if "t-test" in note)
    assert title.startswith("loss against una: paired t-test over n = 3 (seed-3, seed-1, seed-2)")
    assert "2 comparisons (Holm)" in title
    values = {name: stats.ttest_rel(LOSSES[name], LOSSES["una"]) for name in ("dna", "hna")}
    dna, hna = (values[name].pvalue for name in ("dna", "hna"))
    low, high = values["dna"].confidence_interval()
    shown = f"interval {low:+.3f} to {high:+.3f}, p {dna:.4f}, corrected {2 * dna:.4f}"
    assert f"dna: difference -0.233, 95% {shown}" in notes
    assert any(
        note.startswith("hna: ") and f"p {hna:.4f}, corrected {hna:.4f}" in note for note in notes
    )
    assert any(note.startswith("p: how probable") for note in notes)


def test_metric_by_metric(study, table):
    _, notes = table(
        *study,
        "--metric",
        "loss",
        "train.loss",
        "accuracy",
        "--test",
        "t",
        "--by",
        "accuracy",
        "loss",
    )
    titles = [i for i, note in enumerate(notes) if "paired t-test" in note]
    assert [notes[i].split(" against")[0] for i in titles] == ["accuracy", "loss"]
    assert notes[titles[1] + 1].startswith("dna: difference -0.233")
    assert [i for i, note in enumerate(notes) if note.startswith("p: ")] == [len(notes) - 1]


def test_folds_are_said_to_share_data(tmp_path, table):
    paths = [
        make(tmp_path / f"{name}/fold-{n}", loss=x, **{"task.data": f"bin/{n}"})
        for name, losses in LOSSES.items()
        if name != "hna"
        for n, x in enumerate(losses)
    ]
    _, notes = table(*paths, "--test", "t", "--baseline", "dna")
    assert any("folds share training data" in note for note in notes)
    line = next(note for note in notes if note.startswith("una: difference +0.233"))
    assert "corrected" not in line  # one comparison


@pytest.mark.parametrize("test", ["bootstrap", "randomisation"])
def test_each_matched_pair_of_outputs(study, reference, table, test):
    options = [
        "--reference",
        reference,
        "--test",
        test,
        "--resamples",
        200,
        "--metric",
        "bleu",
        "loss",
    ]
    _, notes = table(*study, *options)
    assert table(*study, *options)[1] == notes  # the same draws
    title = next(i for i, note in enumerate(notes) if "200 resamples, seed 12345" in note)
    assert notes[title].startswith("BLEU† against una: paired") and "6 comparisons" in notes[title]
    lines = dict(note.split(": ", 1) for note in notes[title + 1 : -1])
    assert set(lines) == {f"{name}/seed-{n}" for name in ("dna", "hna") for n in (1, 2, 3)}
    assert (
        "difference +0.00" in lines["hna/seed-2"]
        and "p 1.0000, corrected 1.0000" in lines["hna/seed-2"]
    )
    first, corrected = (
        float(lines["dna/seed-1"].split(word)[1].split(",")[0]) for word in (" p ", "corrected ")
    )
    assert first < 0.02 and corrected > 4 * first
    assert ("interval" in lines["dna/seed-1"]) == (test == "bootstrap")


def test_seeds_and_sentences_at_once(study, reference, table):
    """Beside the t-test; of 40 sentences eight better ones count."""
    tests = "--test bootstrap-seeds --test t --resamples 500 --metric bleu".split()
    _, notes = table(*study, "--reference", reference, *tests)
    first = next(i for i, note in enumerate(notes) if "over seed-3, seed-1, seed-2 and" in note)
    title, dna, hna, meaning, second, *_ = notes[first:]
    assert title.startswith("BLEU† against una: paired bootstrap over") and "500 resamples" in title
    assert "2 comparisons" in title and "with seeds like these" in meaning
    assert "paired t-test over n = 3" in second
    differences = [float(re.search(r"difference (\S+),", line)[1]) for line in (dna, hna)]
    found = [note for note in notes[first + 5 :] if note.startswith(("dna", "hna"))]
    assert differences == [float(re.search(r"difference (\S+),", line)[1]) for line in found]
    assert float(dna.split(" p ")[1].split(",")[0]) < 0.02 and "95% interval" in dna


def test_rouge_is_three_columns(study, reference, table):
    options = ["--reference", reference, "--test", "bootstrap", "--resamples", 200]
    rows, notes = table(*study, "--metric", "rouge", "loss", "--by", "rouge", *options)
    assert list(rows[0])[4:12:2] == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "loss"]
    una, dna, _ = ([float(row[f"ROUGE-{kind}"]) for kind in "12L"] for row in rows)
    # 7 words and 6 pairs: 12 and 4 sentences of 40 have one word wrong, so two pairs
    shares = [Fraction(1, 7), Fraction(1, 3), Fraction(1, 7)]
    assert una == pytest.approx([float(100 * (1 - Fraction(12, 40) * x)) for x in shares])
    assert dna == pytest.approx([float(100 * (1 - Fraction(4, 40) * x)) for x in shares])
    titles = [note.split(" against")[0] for note in notes if "paired bootstrap" in note]
    assert titles == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]


# What is refused.


def refused(capsys, said: str, *arguments: object) -> None:
    with pytest.raises(UsageError) as refusal:
        cli.main(["table", *map(str, arguments)])
    assert said in str(refusal.value), refusal.value
    assert not capsys.readouterr().out


def test_incomplete_runs(tmp_path, reference, capsys):
    whole = make(tmp_path / "whole")
    for name, said in [
        ("train.log", "has no train.log"),
        (runs.CHECKPOINT, "there is no checkpoint"),
        ("generate-test.txt", "has no generate-test.txt"),
    ]:
        (make(tmp_path / "part") / name).unlink()
        refused(capsys, said, whole, tmp_path / "part", "--reference", reference)
    refused(capsys, "is not finished", make(tmp_path / "part", end=False))
    refused(capsys, "nowhere", tmp_path / "nowhere")
    text = (whole / "generate-test.txt").read_text()
    (whole / "generate-test.txt").write_text(
        text.replace("H-7\t", "X-7\t").replace("D-7\t", "X-7\t")
    )
    refused(capsys, "no H- line for sentence 7", whole, "--reference", reference)


def test_shards_stand_for_their_whole(tmp_path, reference, table):
    for name in ("one", "two"):
        text = make(tmp_path / name, errors=2) / "generate-test.txt"
    lines = text.read_text().splitlines(keepends=True)
    for number in range(2):
        part = text.with_name(f"generate-test-shard{number}.txt")
        part.write_text(
            "".join(line for line in lines if int(line.split("\t")[0][2:]) % 2 == number)
        )
    text.unlink()
    rows, _ = table(tmp_path / "one", tmp_path / "two", "--reference", reference)
    numbers = [[v for k, v in row.items() if "BLEU" in k] for row in rows]
    assert numbers[0] == numbers[1] != []


def test_other_test_sets(tmp_path, reference, capsys):
    whole, other = make(tmp_path / "whole"), make(tmp_path / "other")
    path = other / "generate-test.txt"
    path.write_text(path.read_text().replace("T-7\tder", "T-7\tdie"))
    refused(
        capsys,
        "was made from another test set: its sentence 7",
        whole,
        other,
        "--reference",
        reference,
    )
    refused(capsys, "different references", whole, other, "--metric", "bleu")
    reference.write_text("".join(f"{line}\n" for line in REFERENCE[1:]))
    refused(capsys, "40 translations and the reference 39", whole, "--reference", reference)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"model.dropout": 0.3}, "--dropout 0.1"),
        ({"updates": 900}, "--max-update 1650"),
        ({"model._name": "lstm"}, "--arch transformer"),
        ({"task.data": "elsewhere"}, "--data data-bin"),
        ({"common.seed": 1}, "have the same seed"),
    ],
)
def test_no_repetitions(tmp_path, capsys, second, said):
    one, other = make(tmp_path / "a/seed-1"), make(tmp_path / "a/seed-2", **second)
    refused(capsys, said, one, other)
    mixed = ["--mixed"] if "task.data" in second else []
    cli.main(["table", str(make(tmp_path / "a")), str(make(tmp_path / "b", **second)), *mixed])


@pytest.mark.parametrize(
    "path", ["seed-{}/last.pt", "enc{}.pt", "run_{}/last.pt", "try-2/of_1/{}/last.pt"]
)
def test_repetitions_of_encoders_of_their_own(tmp_path, table, path):
    name = "checkpoint.finetune_from_model"
    both = [make(tmp_path / f"a/seed-{n}", **{name: path.format(n)}) for n in (1, 2)]
    (row,), _ = table(*both)
    assert row["n"] == "2"


def test_tests_that_cannot_be_made(study, tmp_path, reference, capsys):
    refused(
        capsys,
        "seed-2 and una has not",
        *(run for run in study if run.parts[-2:] != ("una", "seed-2")),
        "--test",
        "t",
    )
    refused(
        capsys,
        "seed-2 and dna has not",
        *(run for run in study if run.parts[-2:] != ("dna", "seed-2")),
        "--test",
        "t",
    )
    refused(capsys, "the runs are of una, dna, hna", *study, "--test", "t", "--baseline", "sna")
    refused(capsys, "two variants or more", *study[:3], "--test", "t")
    single = [run for run in study if run.name == "seed-1"]
    refused(capsys, "needs two repetitions or more, and una has 1", *single, "--test", "t")
    refused(capsys, "no sentences to resample", *study, "--test", "bootstrap")
    refused(capsys, "--resamples is 5", *study, "--test", "bootstrap", "--resamples", 5)
    refused(capsys, "--resamples is for --test bootstrap", *study, "--resamples", 500)
    refused(capsys, "--resamples is for", *study, "--test", "t", "--resamples", 500)
    refused(capsys, "--baseline is for --test, --bars, and", *study, "--baseline", "una")
    refused(capsys, "--by is for --test", *study, "--by", "loss")
    refused(capsys, "give some of loss", *study, "--test", "t", "--by", "bleu")


def test_names_are_refused_before_anything_is_scored(study, capsys, monkeypatch):
    monkeypatch.setattr(metrics, "score_outputs", None)
    refused(capsys, "has no acuracy", *study, "--metric", "bleu", "acuracy")
    asked = ["--metric", "bleu", "chrf", "--test", "t", "--by", "chf"]
    refused(capsys, "--by names chf, no metric of this table; give some of bleu", *study, *asked)
    refused(capsys, "give some of bleu", *study, "--reference", __file__, *asked[3:])


def test_what_else_is_refused(tmp_path, capsys):
    run = make(tmp_path / "a")
    bars = ["--bars", tmp_path / "bars.png"]
    refused(capsys, "bars.txt is no picture", run, "--bars", tmp_path / "bars.txt")
    refused(capsys, "--baseline is b; give one of a", run, *bars, "--baseline", "b")
    csv = ["--output", tmp_path / "bars.csv"]
    refused(capsys, "bars.csv, where the numbers of --bars", run, *bars, *csv)
    assert not bars[1].exists()
    refused(capsys, "is given twice", run, tmp_path / "a" / ".." / "a")
    no_output = "has no generate-zz.txt (it has generate-test.txt)"
    refused(capsys, no_output, run, "--gen-subset", "zz")
    refused(capsys, no_output, run, "--gen-subset", "zz", "--metric", "bleu", "loss")
    refused(capsys, "has no acuracy", run, "--metric", "acuracy")
    refused(capsys, "it has accuracy, epoch, loss", run, "--metric", "bleurt")
    refused(capsys, "is the folder", run, "--output", tmp_path)
    refused(capsys, "train.log is a file", run, "--output", run / "train.log" / "x.md")
    refused(capsys, "--source is for comet", run, "--metric", "bleu", "--source", "test.en")
    refused(capsys, "--comet-model is for comet", run, "--comet-model", "other")


def test_failure_leaves_no_file_and_one_sentence(tmp_path):
    output = tmp_path / "results.md"
    output.write_text("before")
    make(tmp_path / "a", end=False)
    done = subprocess.run(
        ["python", "-m", "fairseq_ext.cli", "table", tmp_path / "a", "--output", output],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert output.read_text() == "before" and set(tmp_path.iterdir()) == {output, tmp_path / "a"}


# Runs that are not alike.


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task.data": "other"}, "una/seed-1 was trained with DATA data-bin and .* with other, so"),
        ({"task.target_lang": "fr"}, "with --target-lang de and .* with fr"),
        ({"dataset.train_subset": "train1"}, "--train-subset train and .* with train1"),
    ],
)
def test_runs_on_other_data_are_compared_only_if_told(tmp_path, table, changed, said):
    same = {"task.target_lang": "de", "dataset.train_subset": "train"}
    one = make(tmp_path / "una/seed-1", **same)
    other = make(tmp_path / "dna/seed-1", **same | changed)
    with pytest.raises(UsageError, match=said) as refusal:
        table(one, other, "--metric", "accuracy")
    assert "--mixed" in str(refusal.value)
    rows, _ = table(one, other, "--metric", "accuracy", "--mixed")
    assert [row["variant"] for row in rows] == ["una", "dna"]
    older = make(tmp_path / "hna/seed-1", **dict.fromkeys(same | {"task.data": None}))
    with pytest.raises(UsageError, match=said):
        table(older, one, other, "--metric", "accuracy")


def test_one_folder_of_data_has_many_names(tmp_path, table, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = make(tmp_path / "una/seed-1", **{"task.data": "data-bin"})
    other = make(tmp_path / "dna/seed-1", **{"task.data": f"{tmp_path}/x/../data-bin"})
    assert len(table(one, other, "--metric", "accuracy")[0]) == 2


def test_folds_differ_in_their_data(tmp_path, table):
    made = [
        make(tmp_path / f"{name}/fold-{number}", **{"task.fold": number, "task.data": "x"})
        for name in ("una", "dna")
        for number in (1, 2)
    ]
    assert len(table(*made, "--metric", "accuracy")[0]) == 2


def test_losses_of_other_dictionaries(tmp_path, table):
    """Accuracies of the same data may be compared all the same."""
    folders = [make(tmp_path / f"{name}/seed-1") for name in ("una", "dna")]
    for folder, symbols in zip(folders, (["a", "b"], ["b", "a"]), strict=True):
        state = torch.load(folder / runs.CHECKPOINT, weights_only=False)
        state["extra_state"]["fingerprints"] = {"source": symbols}
        torch.save(state, folder / runs.CHECKPOINT)
    for metric in ("loss", "train.loss", "train.loss_avg", "train.nll_avg"):
        with pytest.raises(UsageError, match="different dictionaries"):
            table(*folders, "--metric", metric)
    assert len(table(*folders, "--metric", "accuracy")[0]) == 2
    assert len(table(*folders, "--metric", "loss", "--mixed")[0]) == 2
    older = make(tmp_path / "hna/seed-1", **{"task.data": None})  # says neither
    with pytest.raises(UsageError, match="different dictionaries"):
        table(older, *folders, "--metric", "loss")


def test_results_older_than_the_checkpoint_are_named(tmp_path, table):
    """A training that went on is not what was translated, analysed or asked."""
    run = analysed(make(tmp_path / "a/seed-1"), {"encoder": [1.0]})
    other = analysed(make(tmp_path / "b/seed-1"), {"encoder": [1.0]})
    answer = {"label": "a", "right": "a", "probabilities": {"a": 1.0}}
    for each in (run, other):
        (each / "predict-valid.txt").write_text(json.dumps(answer) + "\n")
    metrics = ["bleu", "analysis.encoder.entropy", "predicted.valid.accuracy"]
    _, notes = table(run, other, "--metric", *metrics)
    assert not any("older" in note for note in notes)
    later = (run / "train.log").stat().st_mtime + 100
    os.utime(run / runs.CHECKPOINT, (later, later))
    _, notes = table(run, other, "--metric", *metrics)
    found = " ".join(notes)
    for name in ("generate-test.txt", "analysis/column_sums.csv", "predict-valid.txt"):
        assert f"{name} is older than checkpoint_last.pt in {run}" in found
    assert found.count("is older") == 3 and str(other) not in found


def test_the_checkpoint_of_each_result_is_named(tmp_path, table):
    """A sweep notes it; without one nobody does."""
    run, other = make(tmp_path / "una"), make(tmp_path / "dna")
    answer = {"predicted": "a", "label": "a", "right": "a"}
    for each in (run, other):
        (each / "predict-valid.txt").write_text(json.dumps(answer) + "\n")
    asked = ["--metric", "bleu", "predicted.valid.accuracy"]
    stamp = "fairseq-generate data --path $RUN/checkpoint_best.pt --user-dir mine\n"
    (run / "generate-test.done").write_text(stamp)
    _, notes = table(run, other, *asked)
    unknown = f"of an unknown checkpoint ({other})"
    assert f"generate-test.txt: of checkpoint_best.pt ({run}) and {unknown}" in notes
    assert any("predict-valid.txt: of an unknown checkpoint" in note for note in notes)
    (other / "generate-test.done").write_text(stamp)
    for each in (run, other):
        (each / "predict-valid.done").write_text("fairseq-ext predict $RUN/checkpoint_last.pt -x\n")
    _, notes = table(run, other, *asked)
    assert "generate-test.txt: of checkpoint_best.pt" in notes
    assert any(note.endswith("predict-valid.txt: of checkpoint_last.pt") for note in notes)


def test_references_of_other_repetitions(tmp_path, table):
    one, other = make(tmp_path / "una/seed-1"), make(tmp_path / "dna/seed-2")
    output = other / "generate-test.txt"
    output.write_text(output.read_text().replace("T-3\tder", "T-3\tdas"))
    with pytest.raises(UsageError, match="reference"):
        table(one, other, "--metric", "bleu")
    rows, _ = table(one, other, "--metric", "bleu", "--mixed")
    assert float(rows[0]["BLEU†"]) == pytest.approx(100) and float(rows[1]["BLEU†"]) < 99.9
    one, other = (run.rename(run.with_name("seed-3")) for run in (one, other))
    with pytest.raises(UsageError, match="different references"):
        table(one, other, "--metric", "bleu", "--mixed", "--test", "bootstrap")


def test_only_what_was_written_is_announced(tmp_path, capsys):
    run, csv, markdown = make(tmp_path / "a"), tmp_path / "x.csv", tmp_path / "x.md"
    for output in (csv, markdown):
        cli.main(["table", str(run), "--output", str(output)])
        assert capsys.readouterr().out == f"{output} is ready\n"


# Spread and bars.


def of_accuracy(tmp_path, **values):
    return [
        make(tmp_path / f"{name}/seed-{number}", accuracy=value)
        for name, each in values.items()
        for number, value in enumerate(each, 1)
    ]


def test_spread(tmp_path, table):
    runs = of_accuracy(tmp_path, una=[70, 72, 77])
    (row,), notes = table(*runs, "--metric", "accuracy", "--spread", "deviation")
    assert float(row["accuracy standard deviation"]) == pytest.approx(math.sqrt(13))
    assert "±: standard deviation over n repetitions" in notes
    (row,), notes = table(*runs, "--metric", "accuracy")
    assert float(row["accuracy standard error"]) == pytest.approx(math.sqrt(13 / 3))
    assert "±: standard error of the mean over n repetitions" in notes


def test_bars(tmp_path, table, monkeypatch):
    """Of the first metric, in the order of the table; the line is at the baseline."""
    drawn = []
    monkeypatch.setattr("fairseq_ext.evaluation.pictures.save", lambda *given: drawn.append(given))
    runs = of_accuracy(tmp_path, una=[70, 72], dna=[75, 79], hna=[71, 71])
    picture = ["--bars", tmp_path / "bars.png", "--baseline", "dna", "--sort", "highest"]
    table(*runs, "--metric", "accuracy", "loss", *picture)
    ((figure, out, _),) = drawn
    (axes,) = figure.axes
    assert out == tmp_path / "bars.png"
    assert axes.get_ylabel() == "accuracy" and axes.get_xlabel() == "variant"
    (legend,) = figure.legends
    said = ["mean ± standard error", "a repetition", "mean of dna"]
    assert [text.get_text() for text in legend.get_texts()] == said
    assert [label.get_text() for label in axes.get_xticklabels()] == ["dna", "una", "hna"]
    assert not axes.patches  # no bars, which would have to begin at 0
    means, *_ = zip(*(each.lines for each in axes.containers), strict=True)
    assert [each.get_ydata()[0] for each in means] == [77, 71, 71]
    errors = [each.lines[2][0] for each in axes.containers]
    ends = [sorted(each.get_segments()[0][:, 1]) for each in errors]
    assert ends == [pytest.approx(each) for each in ([75, 79], [70, 72], [71, 71])]
    points = [each for each in axes.collections if each not in errors]
    assert [sorted(each.get_offsets()[:, 1]) for each in points] == [[75, 79], [70, 72], [71, 71]]
    (line,) = (line for line in axes.lines if line.get_linestyle() == "--")
    assert set(line.get_ydata()) == {77}
    low, high = axes.get_ylim()
    assert 60 < low < 70 and 79 < high < 90


def test_bars_are_a_picture(tmp_path, table):
    table(*of_accuracy(tmp_path, una=[70]), "--metric", "accuracy", "--bars", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    (head, row, end) = (tmp_path / "a.csv").read_text("utf-8").split("\n")
    assert head == "variant,run,value" and row.startswith("una,") and row.endswith(",70.0")
    assert not end
