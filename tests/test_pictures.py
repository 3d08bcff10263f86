"""Pictures: curves of runs, and attention maps of a trained checkpoint."""

import argparse
import shutil
import struct
from pathlib import Path

import pytest
import torch
from conftest import train

from fairseq_ext import cli
from fairseq_ext.analysis import curves, maps
from fairseq_ext.attention import Listener
from fairseq_ext.errors import UsageError


def size_of_png(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return struct.unpack(">II", header[16:])


# Curves.


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
        assert line.get_xydata().tolist() == [*map(list, zip(*curve[2:], strict=True))]
    colours = [line.get_color() for line in drawn[::2]]
    assert colours == [line.get_color() for line in drawn[1::2]]
    assert colours[0] == colours[1] and len(set(colours)) == 3
    assert drawn[1].get_linewidth() > drawn[0].get_linewidth()
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["una", "dna", "alone", "training", "validation"]


def test_limits_leave_out_how_a_loss_begins(runs):
    (axes,) = curves.draw_curves(curves.read_curves(runs, "loss"), "loss").axes
    assert axes.get_ylim() == pytest.approx((9.0 - 0.12, 11.4 + 0.12))


def test_a_constant_metric_and_one_without_validation(runs, tmp_path):
    cli.main(["curves", *map(str, runs), "--metric", "bleu", "--out", str(tmp_path / "bleu.svg")])
    assert "<svg" in (tmp_path / "bleu.svg").read_text()


def test_curves_become_a_file(runs, tmp_path):
    out = tmp_path / "new" / "curves.png"
    cli.main(["curves", *map(str, runs), "--out", str(out)])
    width, height = size_of_png(out)
    assert 900 < width < 1200 and 500 < height < 800
    assert [path.name for path in out.parent.iterdir()] == ["curves.png"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--metric", "accuracy"], r"has no accuracy in its log; it has bleu, epoch, loss"),
        (["--metric", "ppl"], "has no ppl"),  # only infinite ones
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


# Maps.


@pytest.fixture(scope="module")
def checkpoint(data_bin, tmp_path_factory) -> Path:
    shapes = ["--decoder-layers", 3, "--decoder-attention-heads", 2]
    return train(data_bin, "transformer_hna_tiny", tmp_path_factory.mktemp("hna"), 2, *shapes)


@pytest.fixture(scope="module")
def loaded(checkpoint, data_bin):
    return maps.load(checkpoint, data_bin)


def test_maps_of_all_layers_and_heads(loaded):
    name, model, task = loaded
    assert name == "transformer_hna_tiny"
    sentence = maps.from_split(task, "test", 3)
    found = maps.attention_maps(model, sentence)
    source, target = map(len, sentence)
    assert {site: tuple(each.shape) for site, each in found.items()} == {
        "encoder": (4, 4, source, source),
        "decoder": (3, 2, target, target),
        "cross": (3, 2, target, source),
    }
    for each in found.values():
        torch.testing.assert_close(each.sum(-1), torch.ones(each.shape[:-1]))
    assert not found["decoder"].triu(1).any()


def test_maps_are_those_of_training_on_the_sentence(loaded, data_bin):
    """As a batch of fairseq's own data set has it."""
    _, model, task = loaded
    found = maps.attention_maps(model, maps.from_split(task, "valid", 5))
    pairs = task.dataset("valid")
    listener = Listener(lambda site, layer: [0])
    batch = pairs.collater([pairs[5]])["net_input"]
    model(**batch, listener=listener)
    for (site, layer), heard in listener.maps.items():
        torch.testing.assert_close(found[site][layer, 0], heard[0, 0].detach())


def test_tokens_of_the_axes(loaded, real_lines):
    _, model, task = loaded
    sentence = maps.from_split(task, "test", 3)
    source, target = (
        (real_lines / f"test.{language}").read_text("utf-8").split("\n")[3].split()
        for language in ("de", "en")
    )
    known = [word if word in task.target_dictionary else "<unk>" for word in target]
    rows, columns = maps.tokens(task, sentence, "cross")
    assert len(columns) == len(source) + 1 and rows == [*known, "</s>"]
    assert maps.tokens(task, sentence, "encoder") == (columns, columns)
    assert maps.tokens(task, sentence, "decoder") == (rows, ["</s>", *known])


def test_a_sentence_is_split_and_translated(loaded, tmp_path):
    _, model, task = loaded
    codes = tmp_path / "bpe.codes"
    whole = maps.from_text(task, model, "ein mann", codes)
    assert task.source_dictionary.string(whole.source) == "ein mann"
    generator = task.build_generator([model], argparse.Namespace(beam=5))
    sample = {"net_input": {"src_tokens": whole.source[None], "src_lengths": torch.tensor([3])}}
    expected = task.inference_step(generator, [model], sample)[0][0]["tokens"]
    assert torch.equal(whole.target, expected) and len(expected) > 1
    codes.write_text("#version: 0.2\ne i\n", "utf-8")
    split = maps.from_text(task, model, "ein", codes)
    assert len(split.source) == 3  # ei@@ n </s>


def test_one_map_of_many():
    many = torch.rand(2, 3, 4, 5)
    for layer, head, expected, words in [
        (None, "mean", many[1].mean(0), "layer 1, mean of 3 heads"),
        (0, "2", many[0, 2], "layer 0, head 2"),
    ]:
        found, said = maps.choose(many, layer, head)
        assert torch.equal(found, expected) and said == words


def test_picture_of_a_map():
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]])
    rows, columns = ["$x", "ü"], ["狗", "b$", "</s>"]
    figure = maps.draw_map(weights, rows, columns, "rows", "columns")
    axes, bar = figure.axes[0], figure.axes[0].child_axes[0]
    (image,) = axes.get_images()
    assert torch.equal(torch.as_tensor(image.get_array()), weights) and image.norm.vmin == 0
    assert bar.get_ylim() == (0, pytest.approx(0.7))
    for axis, expected in ((axes.yaxis, rows), (axes.xaxis, columns)):
        labels = axis.get_ticklabels()
        assert [label.get_text() for label in labels] == expected
        assert not any(label.get_parse_math() for label in labels)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("rows", "columns")


def test_a_long_sentence_makes_no_endless_picture():
    figure = maps.draw_map(torch.rand(2, 1000), ["a", "b"], [str(i) for i in range(1000)])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[:2] == ["0", "16"] and len(labels) <= maps.LABELS
    assert figure.get_figwidth() < 20


@pytest.mark.parametrize(
    ("options", "title"),
    [
        (["--index", 2, "--head", 1], "encoder self-attention, layer 3, head 1"),
        (
            ["--site", "cross", "--sentence", "ein mann ."],
            "cross-attention, layer 2, mean of 2 heads",
        ),
        (["--site", "decoder", "--split", "valid", "--layer", 0], "layer 0, mean of 2 heads"),
    ],
)
def test_a_map_becomes_a_file(checkpoint, data_bin, tmp_path, monkeypatch, options, title):
    drawn = []
    monkeypatch.setattr(maps, "save", lambda figure, out: (drawn.append(figure), save(figure, out)))
    save = curves.save
    out = tmp_path / "map.png"
    cli.main(
        ["map", str(checkpoint), "--data", str(data_bin), "--out", str(out), *map(str, options)]
    )
    assert min(size_of_png(out)) > 200
    assert drawn[0].axes[0].get_title().endswith(title)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--layer", "4"], "--layer is 4 and must be 0 to 3"),
        (["--layer", "-1"], "--layer is -1"),
        (["--head", "4"], "--head is 4 and must be 0 to 3, or mean"),
        (["--head", "first"], "--head is first"),
        (["--head", "2", "--site", "cross"], "must be 0 to 1"),
        (["--index", "200"], "--index is 200 and must be 0 to 199 in test"),
        (["--index", "-1"], "--index is -1"),
        (["--split", "dev"], "no split dev"),
        (["--sentence", " "], "--sentence is empty"),
        (["--sentence", "ein " * 1024], "1025 tokens and the model takes 1024"),
        (["--out", "map.txt"], "map.txt is no picture"),
        (["--data", "."], "no dictionaries"),
    ],
)
def test_maps_that_cannot_be_drawn(checkpoint, data_bin, tmp_path, change, said):
    out = tmp_path / "map.png"
    with pytest.raises(UsageError, match=said):
        cli.main(["map", str(checkpoint), "--data", str(data_bin), "--out", str(out), *change])
    assert not list(tmp_path.iterdir())


def test_a_site_that_a_model_has_not(loaded, monkeypatch):
    name, model, task = loaded
    sentence = maps.from_split(task, "test", 0)
    monkeypatch.setattr(model.decoder, "layers", torch.nn.ModuleList())
    assert maps.attention_maps(model, sentence).keys() == {"encoder"}
    monkeypatch.setattr(maps, "load", lambda *paths: (name, model, task))
    with pytest.raises(UsageError, match="no cross-attention; give --site encoder$"):
        cli.main("map checkpoint.pt --data . --site cross --out map.png".split())


def test_checkpoints_that_do_not_fit(checkpoint, data_bin, tmp_path, monkeypatch):
    shutil.copy(data_bin / "dict.de.txt", tmp_path)
    with pytest.raises(UsageError, match=r"dict.en.txt is missing; give --data"):
        maps.load(checkpoint, tmp_path)
    monkeypatch.setattr(maps, "TransformerModel", torch.nn.LSTM)
    with pytest.raises(UsageError, match="is a transformer_hna_tiny, whose maps cannot be had"):
        maps.load(checkpoint, data_bin)


def test_no_checkpoint(data_bin, tmp_path):
    with pytest.raises(UsageError, match="there is no checkpoint"):
        maps.load(tmp_path / "checkpoint_last.pt", data_bin)
