"""The synthetic scenes of several views: what they hold, what is trained on them and drawn."""

import csv
import json
from statistics import mean

import pytest
import torch
from tqdm import tqdm

from fairseq_ext import cli
from fairseq_ext.analysis.demos import boxes
from fairseq_ext.errors import UsageError

QUIET = tqdm(disable=True)


def draws(count=3, copies=5, noise=0.0, seed=1):
    return boxes.sample_scenes(count, copies, noise, torch.Generator().manual_seed(seed))


def test_views_show_the_same_objects_and_tell_one_property_each():
    views, answers = draws()
    for view in views:
        assert view.shape == (3, boxes.OBJECTS + 5, boxes.LOOK + 4)
        assert torch.equal(view[:, :10, : boxes.LOOK], views[0][:, :10, : boxes.LOOK])
        looks = view[..., : boxes.LOOK]
        for scene in looks:  # further boxes are of the two frequent objects
            assert all((box == scene[:2]).all(-1).any() for box in scene[10:])
    told = [view[..., boxes.LOOK :].unflatten(-1, (2, 2)) for view in views]
    assert not told[0].any() and not told[1][:, :, 1].any() and not told[2][:, :, 0].any()
    first, second = told[1][:, :10, 0], told[2][:, :10, 1]
    assert torch.equal(first.sum(-1), torch.ones(3, 10)) and torch.equal(
        first.sum(-1), second.sum(-1)
    )
    assert torch.equal(2 * first.argmax(-1) + second.argmax(-1), answers)
    assert set(answers.flatten().tolist()) == {0, 1, 2, 3}


def test_copies_tell_the_property_of_their_object():
    views, answers = draws(count=20)
    for view, property_ in ((1, answers // 2), (2, answers % 2)):
        for scene, known in zip(views[view], property_, strict=True):
            for box in scene[10:]:
                shown = (box[: boxes.LOOK] == scene[:2, : boxes.LOOK]).all(-1).nonzero().item()
                told = box[boxes.LOOK :].view(2, 2)[view - 1]
                assert told.argmax() == known[shown]


def test_noise_is_of_looks_alone_and_differs_between_boxes():
    still, noisy = draws(400, 5, 0.0), draws(400, 5, 0.5)
    assert noisy.views[0][..., boxes.LOOK :].eq(still.views[0][..., boxes.LOOK :]).all()
    away = noisy.views[0][:, :10, : boxes.LOOK] - still.views[0][:, :10, : boxes.LOOK]
    assert away.std().item() == pytest.approx(0.5, abs=0.02)
    between = noisy.views[1][:, :10, : boxes.LOOK] - noisy.views[0][:, :10, : boxes.LOOK]
    assert between.std().item() == pytest.approx(0.5 * 2**0.5, abs=0.03)


def test_a_reader_that_knows_and_one_that_guesses():
    class Knows(torch.nn.Module):
        def forward(self, views):
            first = views[1][:, :10, 6:8].argmax(-1)
            right = 2 * first + views[2][:, :10, 8:].argmax(-1)
            right[:, 2:] = 0  # a guess for rare objects
            return torch.nn.functional.one_hot(right, 4)

    frequent, rare = boxes.measure_accuracy(Knows(), 30, 0.5)
    assert frequent == 1 and rare == pytest.approx(0.25, abs=0.03)


def test_training_makes_two_steps_alike_from_a_seed_and_moves_u():
    one, again, other = (boxes.train("hybrid", seed, 2, 4, 0.5, QUIET) for seed in (1, 1, 2))
    assert one == again and len(one.u) == 2 and one.u != other.u
    assert one.u[0] != 0.5 and one.u[0] == pytest.approx(0.5, abs=0.01)
    assert boxes.train("doubly", 1, 1, 4, 0.5, QUIET).u == []


def test_models_begin_differently(monkeypatch):
    maps = []

    def keep(model, *_):
        maps.append(model.attention.query.weight.detach())
        return 0.0, 0.0

    monkeypatch.setattr(boxes, "measure_accuracy", keep)
    for seed in (1, 2):
        boxes.train("softmax", seed, 1, 4, 0.5, QUIET)
    assert (maps[0] - maps[1]).abs().mean() > 5 * boxes.RATE  # a step moves none further than that


def test_doubly_normalised_attention_finds_rare_objects_better():
    una, dna = (boxes.train(name, 1, 150, 10, 0.5, QUIET) for name in ("softmax", "doubly"))
    assert dna.rare > una.rare + 0.03 and una.rare > 0.4


RUNS = [
    *(boxes.Run("UNA", seed, [], 0.8 + seed / 10, 0.5) for seed in (0, 1)),
    *(boxes.Run("DNA", seed, [], 0.9, 0.6) for seed in (0, 1)),
    *(boxes.Run("HNA", seed, [0.6, 0.7 + seed / 5], 0.9, 0.7) for seed in (0, 1)),
]


def test_summary():
    lines = boxes.format_table(RUNS).split("\n")
    assert lines[0].split("  ")[0] == "attention"
    assert lines[1].split() == "UNA 85.0 ± 5.0 50.0 ± 0.0".split()
    assert lines[-3:] == [
        "accuracy in %, mean ± standard error of the mean; seeds 0, 1",
        "u of HNA: 0.50 at first, 0.80 at the end",
        "",
    ]


def test_picture():
    left, right = boxes.draw(RUNS).axes
    lines = [list(line.get_ydata()) for line in left.get_lines()]
    assert lines[0] == [0.5, 0.6, 0.7] and lines[-1] == pytest.approx([0.5, 0.6, 0.8])
    heights = [bar.get_height() for bar in right.patches]
    assert heights == pytest.approx([0.85, 0.9, 0.9, 0.5, 0.6, 0.7])
    assert [label.get_text() for label in right.get_xticklabels()] == ["UNA", "DNA", "HNA"]


def test_the_command(tmp_path, capsys):
    out = tmp_path / "new"
    flags = ["--steps", "3", "--copies", "2", "--noise", "0.1", "--seeds", "4", "2", "4"]
    cli.main(["boxes", "--out", str(out), *flags])
    assert (out / "boxes.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((out / "boxes.json").read_text())
    assert (found["steps"], found["copies"], found["noise"]) == (3, 2, 0.1)
    assert [(r["name"], r["seed"]) for r in found["runs"]] == [
        (name, seed) for name in ("UNA", "DNA", "HNA") for seed in (4, 2)
    ]
    with (out / "boxes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["seed"], r["step"]) for r in rows] == [(s, t) for s in "42" for t in "123"]
    ends = [run["u"] for run in found["runs"] if run["name"] == "HNA"]
    assert ends == [float(rows[2]["u"]), float(rows[5]["u"])]
    assert f"u of HNA: 0.50 at first, {mean(ends):.2f} at the end" in capsys.readouterr().out


def test_what_cannot_be_run(tmp_path):
    for flags, says in (
        (["--steps", "0"], "--steps is 0 and must be at least 1"),
        (["--copies", "-1"], "--copies is -1 and must be at least 0"),
        (["--noise", "nan"], "--noise is nan; give a number from 0 upwards"),
    ):
        with pytest.raises(UsageError, match=says):
            cli.main(["boxes", "--out", str(tmp_path / "out"), *flags])
    assert not list(tmp_path.iterdir())
