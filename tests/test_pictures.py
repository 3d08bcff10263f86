"""Pictures of runs: curves."""

import csv
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fairseq_ext import cli
from fairseq_ext.analysis import curves
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import pictures
from fairseq_ext.evaluation.pictures import assign_colours, render


def size_of_png(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return struct.unpack(">II", header[16:])


def write_log(run: Path, first: float) -> Path:
    """A log whose loss is `first` after 10 updates, then half of it less one in 1000 updates."""
    lines = []
    for update in (10, *range(100, 1001, 100)):
        loss = first if update == 10 else first / 2 - update / 1000
        numbers = f"epoch 001: loss={loss}, bleu=0.5, ppl=inf, num_updates={update}, lr=1"
        lines.append(f"2026-01-01 | INFO | train_inner | {numbers}")
        if update % 500 == 0:
            numbers = f"epoch 001 | valid | loss {loss + 0.2} | num_updates {update}"
            lines.append(f"2026-01-01 | INFO | valid | {numbers}")
    lines.append("2026-01-01 | INFO | train | epoch 001 | loss 7 | num_updates 1000")
    run.mkdir(parents=True)
    (run / "train.log").write_text("".join(f"{line}\n" for line in lines))
    return run


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    names = ("una/seed-1", "una/seed-2", "dna/fold-1", "alone")
    return [write_log(tmp_path / name, 20 + i) for i, name in enumerate(names)]


def test_curves_are_those_of_the_logs(runs):
    found = curves.read_curves(runs, "loss")
    assert [(c.variant, c.kind) for c in found] == [
        (variant, kind)
        for variant in ("una", "una", "dna", "alone")
        for kind in ("training", "validation")
    ]
    assert found[0].updates == [10, *range(100, 1001, 100)] and found[0].values[-1] == 9.0
    assert (found[3].updates, found[3].values) == ([500, 1000], [10.2, 9.7])


def test_variants_of_the_same_name_are_told_apart(tmp_path):
    same = [write_log(tmp_path / study / "una" / "seed-1", 20) for study in "ab"]
    found = curves.read_curves(same, "loss")
    assert {curve.variant for curve in found} == {str(run.parent) for run in same}


def test_plot_of_curves(runs):
    found = curves.read_curves(runs, "loss")
    (axes,) = curves.draw_curves(found, "loss").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("updates", "loss")
    drawn = axes.get_lines()[: len(found)]
    for line, curve in zip(drawn, found, strict=True):
        points = zip(curve.updates, curve.values, strict=True)
        assert line.get_xydata().tolist() == [*map(list, points)]
    colours = [line.get_color() for line in drawn[::2]]
    assert colours == [line.get_color() for line in drawn[1::2]]
    assert colours[0] == colours[1] and len(set(colours)) == 3
    assert drawn[1].get_linewidth() > drawn[0].get_linewidth()
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["una", "dna", "alone", "training", "validation"]


def test_a_single_value_is_a_point_and_equal_lines_are_all_seen(tmp_path):
    """A line of one value shows nothing; of equal lines, the last one alone."""
    line = "2026-01-01 | INFO | {0} | epoch 001 | {0} | loss {1} | num_updates {2}\n"
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
        values = [("valid", 4, 9), ("train_inner", 5, 9), *[("other", 3, u) for u in (1, 9)]]
        (folder / "train.log").write_text("".join(line.format(*each) for each in values))
    found = curves.read_curves(folders, "loss")
    (axes,) = curves.draw_curves(found, "loss").axes
    drawn = dict(zip(((c.variant, c.kind) for c in found), axes.get_lines(), strict=False))
    for kind in ("training", "validation", "other"):
        lines = [drawn[variant, kind] for variant in "abc"]
        assert all(each.get_marker() == "o" for each in lines)
        for size in ("get_linewidth", "get_markersize"):
            first, second, third = (getattr(each, size)() for each in lines)
            assert first > second + 1 and second > third + 1
    line = pictures.plot_line(axes, [1], [2], ls="--")
    assert line.get_marker() == "o"
    assert pictures.plot_line(axes, [1, 2], [2, 3]).get_marker() == "None"


def test_limits_leave_out_how_a_loss_begins(runs):
    (axes,) = curves.draw_curves(curves.read_curves(runs, "loss"), "loss").axes
    assert axes.get_ylim() == pytest.approx((9.0 - 0.12, 11.4 + 0.12))


def test_a_constant_metric_and_one_without_validation(runs, tmp_path):
    cli.main(["curves", *map(str, runs), "--metric", "bleu", "--out", str(tmp_path / "bleu.svg")])
    assert "<svg" in (tmp_path / "bleu.svg").read_text()


@pytest.mark.parametrize("count", [2, 7, 8, 30])
def test_every_name_has_a_colour_of_its_own(count):
    names = list(map(str, range(count)))
    found = assign_colours([*names, *names])
    assert list(found) == names and len({to_hex(each) for each in found.values()}) == count


def test_powers_are_set_and_names_are_not():
    """Axes know their numbers only when they are drawn."""
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.plot([1, 2], [1e-4, 0.5])
    left.set(yscale="log", title="$x^2$ and \\frac $")
    right.bar(["$a", "b$c$"], [1, 2])
    render(figure, "svg")
    powers = [label for label in left.get_yticklabels() if label.get_text()]
    assert powers and all(label.get_parse_math() for label in powers)
    names = [*right.get_xticklabels(), left.title]
    assert [each.get_text() for each in names] == ["$a", "b$c$", "$x^2$ and \\frac $"]
    assert not any(each.get_parse_math() for each in names)


def test_curves_become_a_file(runs, tmp_path):
    out = tmp_path / "new" / "curves.png"
    cli.main(["curves", *map(str, runs), "--out", str(out)])
    width, height = size_of_png(out)
    assert 900 < width < 1200 and 500 < height < 800
    assert {path.name for path in out.parent.iterdir()} == {"curves.png", "curves.csv"}
    rows = list(csv.DictReader(out.with_suffix(".csv").open()))
    first = {"variant": "una", "run": str(runs[0]), "kind": "training"}
    assert rows[0] == {**first, "update": "10", "loss": "20.0"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--metric", "accuracy"], r"has no accuracy in its log; it has bleu, epoch, loss"),
        (["--metric", "ppl"], "has no finite ppl in its log; it has bleu, epoch, loss"),
        (["--out", "curves.doc"], r"curves.doc is no picture; .* \.png"),
        (["--out", "/dev/null/curves.png"], "/dev/null is a file"),
        (["nowhere"], "nowhere has no train.log"),
    ],
)
def test_curves_that_cannot_be_drawn(runs, tmp_path, change, said):
    out = tmp_path / "curves.png"
    with pytest.raises(UsageError, match=said):
        cli.main(["curves", "--out", str(out), *change, "--", str(runs[0])])
    assert not out.exists()


def test_a_command_ends_with_the_files_that_it_wrote(runs, tmp_path, capsys):
    out = tmp_path / "curves.png"
    cli.main(["curves", "--metric", "loss", "--out", str(out), *map(str, runs)])
    assert capsys.readouterr().out == f"{out} and {tmp_path}/curves.csv are ready\n"
    pictures.announce(tmp_path, tmp_path / "curves.csv")
    folder, file = capsys.readouterr().out.splitlines()
    assert folder.startswith(f"{tmp_path} has ") and ", curves.csv, curves.png" in folder
    assert file == f"{tmp_path}/curves.csv is ready"


def test_no_progress_bars_in_pipes(monkeypatch, runs, tmp_path):
    """tqdm heeds this variable when it is imported."""
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    command = ["curves", "--metric", "loss", "--out", str(tmp_path / "a.png"), str(runs[0])]
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True, write=print))
    cli.main(command)
    assert "TQDM_DISABLE" not in os.environ
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: False, write=print))
    cli.main(command)
    assert os.environ["TQDM_DISABLE"] == "1"
