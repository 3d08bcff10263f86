"""What adversaries mask, read from logs and drawn."""

from pathlib import Path

import pytest

from fairseq_ext import cli
from fairseq_ext.analysis.masking import ALL, draw, read_shares
from fairseq_ext.errors import UsageError


def write_log(run: Path, *lines: tuple[str, int, dict[str, float]]) -> Path:
    run.mkdir(parents=True)
    with (run / "train.log").open("w") as log:
        for kind, update, values in lines:
            numbers = " | ".join(f"{name} {value}" for name, value in values.items())
            print(f"2026-01-01 | INFO | {kind} | {numbers} | num_updates {update}", file=log)
    return run


def masked(whole: float, *layers: float) -> dict[str, float]:
    return {"loss": 1.0, "asa_masked": whole} | {f"asa_masked_{i}": x for i, x in enumerate(layers)}


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    first, last = ("train_inner", 10, masked(0.9, 0.9, 0.9)), ("train", 20, masked(0.3, 0.4, 0.2))
    return [
        write_log(tmp_path / "rte" / "seed-1", first, last, ("valid", 20, {"loss": 2.0})),
        write_log(tmp_path / "rte" / "seed-2", first, ("train", 20, masked(0.5, 0.6, 0.4))),
        write_log(tmp_path / "ner" / "seed-1", ("train_inner", 10, masked(0.1, 0.2, 0.0))),
    ]


def test_the_last_line_of_each_run_counts(runs):
    shares = read_shares(runs)
    assert list(shares) == ["rte", "ner"]
    assert shares["rte"] == pytest.approx({ALL: 0.4, 0: 0.5, 1: 0.3})
    assert shares["ner"] == pytest.approx({ALL: 0.1, 0: 0.2, 1: 0.0})


def test_variants_of_one_name_are_told_apart_by_what_differs(tmp_path):
    runs = [
        write_log(tmp_path / task / "asa" / "seed-1", ("train", 20, masked(0.3, 0.4)))
        for task in ("rte", "sts")
    ]
    assert list(read_shares(runs)) == ["rte", "sts"]


def test_layers_on_the_left_and_the_whole_on_the_right(runs):
    left, right = draw(read_shares(runs)).axes
    lines = [line.get_xydata().tolist() for line in left.get_lines()]
    assert lines[1] == [[0.0, 0.2], [1.0, 0.0]]
    assert [bar.get_height() for bar in right.patches] == pytest.approx([0.4, 0.1])
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["rte", "ner"]


def test_naive_masks_have_no_layers(runs, tmp_path):
    """A report has them beside those of adversaries."""
    naive = write_log(tmp_path / "naive" / "seed-1", ("train", 20, masked(0.1)))
    left, right = draw(read_shares([runs[2], naive])).axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["ner"]
    assert len(right.patches) == 2


def test_the_command(runs, tmp_path, capsys):
    out = tmp_path / "new" / "masked.png"
    cli.main(["masking", *map(str, runs), "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out.split("\n")
    numbers = out.with_suffix(".csv").read_text("utf-8").split("\n")
    assert numbers[:2] == ["variant,layer,share", "rte,all,0.4"] and "ner,1,0.0" in numbers
    assert said[0] == "rte: 0.400 of all; from the lowest layer 0.500 0.300"


def test_runs_that_cannot_be_drawn(runs, tmp_path):
    plain = write_log(tmp_path / "plain" / "seed-1", ("train", 20, {"loss": 1.0}))
    other = write_log(tmp_path / "rte" / "seed-3", ("train", 20, masked(0.3, 0.4)))
    for given, says in (
        ([plain], "plain/seed-1 has no asa_masked in its log; give"),
        ([*runs, other], "runs of rte have adversaries in different layers"),
        ([tmp_path / "nowhere"], "has no train.log"),
    ):
        with pytest.raises(UsageError, match=says):
            read_shares(given)
    naive = write_log(tmp_path / "naive" / "seed-1", ("train", 20, masked(0.1)))
    with pytest.raises(UsageError, match="naive has masks without adversaries; give"):
        cli.main(["masking", str(runs[0]), str(naive), "--out", str(tmp_path / "masked.png")])
    with pytest.raises(UsageError, match="masked.doc is no picture"):
        cli.main(["masking", *map(str, runs), "--out", str(tmp_path / "masked.doc")])
