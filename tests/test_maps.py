"""Attention maps: pictures of one head, of several models, of all heads, and the page."""

import base64
import json
import re
import struct
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from fairseq_ext import cli
from fairseq_ext.analysis import heatmaps, maps, sentence_maps
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import pictures


def size_of_png(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return struct.unpack(">II", header[16:])


@pytest.fixture(scope="module")
def checkpoint(hybrid_run) -> Path:
    return hybrid_run / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def found(checkpoint, data_bin) -> sentence_maps.SentenceMaps:
    given = Namespace(sentence=None, split="test", index=3, tokens=64)
    return sentence_maps.read_maps(ModelInspector(checkpoint, data_bin), given)


def test_maps_of_all_sites(found, real_lines):
    source, target = (
        (real_lines / f"test.{language}").read_text("utf-8").split("\n")[3].split()
        for language in ("de", "en")
    )
    s, t = len(source) + 1, len(target) + 1
    shapes = {
        site: {layer: tuple(each.shape) for layer, each in layers.items()}
        for site, layers in found.sites.items()
    }
    assert shapes == {
        "encoder": dict.fromkeys(range(4), (4, s, s)),
        "decoder": dict.fromkeys(range(3), (2, t, t)),
        "cross": dict.fromkeys(range(3), (2, t, s)),
    }
    assert not any(each.triu(1).any() for each in found.sites["decoder"].values())
    rows, columns = found.tokens["cross"]
    assert len(rows) == t and columns == [*columns[:-1], "</s>"] and len(columns) == s


def test_one_map_of_many():
    many = {0: torch.rand(3, 4, 5), 2: torch.rand(3, 4, 5)}
    for layer, head, expected, words in [
        (None, "mean", many[2].mean(0), "layer 2, mean of 3 heads"),
        (0, "2", many[0][2], "layer 0, head 2"),
    ]:
        chosen, said = sentence_maps.choose_map(many, layer, head)
        assert torch.equal(chosen, expected) and said == words
    with pytest.raises(UsageError, match="--layer is 1 and must be one of 0, 2"):
        sentence_maps.choose_map(many, 1, "mean")


def draw(weights, rows, columns):
    picture = heatmaps.TitledMap("", weights, rows, columns)
    return heatmaps.draw_map(picture, "rows", "columns")


def test_picture_of_a_map():
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]])
    rows, columns = ["$x", "ü"], ["狗", "b$", "</s>"]
    figure = draw(weights, rows, columns)
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
    figure = draw(torch.rand(2, 1000), ["a", "b"], [str(i) for i in range(1000)])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[:2] == ["0", "16"] and len(labels) <= heatmaps.LABELS
    assert figure.get_figwidth() < 20


def test_models_side_by_side_have_one_scale():
    weights = [torch.eye(3), torch.full((2, 2), 0.5), torch.eye(2)]
    pictures = [
        heatmaps.TitledMap(f"model {i}", each, list("abc")[: len(each)], list("xyz")[: len(each)])
        for i, each in enumerate(weights)
    ]
    figure = heatmaps.draw_beside(pictures, 2, "", "")
    drawn = [axes for axes in figure.axes if axes.get_images()]
    assert [axes.get_title() for axes in drawn[:3]] == ["model 0", "model 1", "model 2"]
    for axes, each in zip(drawn, weights, strict=False):
        (image,) = axes.get_images()
        assert torch.equal(torch.as_tensor(image.get_array()), each) and image.norm.vmax == 1


def test_titles_side_by_side_do_not_overlap():
    titles = ["a model with a name that is longer than its map is wide"] * 2
    figure = heatmaps.draw_beside(
        [heatmaps.TitledMap(title, torch.eye(2), "ab", "xy") for title in titles], 2, "", ""
    )
    figure.draw_without_rendering()
    left, right = (axes.title.get_window_extent() for axes in figure.axes[:2])
    assert left.x1 < right.x0


def test_a_grid_has_every_head_and_one_large():
    layers = {0: torch.rand(2, 3, 3), 1: torch.rand(3, 3, 3)}
    grid = heatmaps.HeadGrid("model", layers, list("abc"), list("xyz"), (1, 2))
    figure = heatmaps.draw_grids([grid], "rows", "columns")
    shown = [torch.as_tensor(i.get_array()) for axes in figure.axes for i in axes.get_images()]
    large, *small = shown[:6]
    assert torch.equal(large, layers[1][2])
    for image, head in zip(small, [*layers[0], *layers[1]], strict=True):
        assert torch.equal(image, head)
    titles = [axes.get_title() for axes in figure.axes]
    assert "model\nlayer 1, head 2" in titles and "head 1" in titles
    ticks = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert ticks.count("a") == 3  # the large one, and both rows of small ones


def test_an_even_head_looks_even_beside_others():
    """Unless each small map shall have a scale of its own."""
    layers = {0: torch.stack([torch.full((4, 4), 0.25), torch.eye(4)])}
    grid = heatmaps.HeadGrid("model", layers, list("abcd"), list("wxyz"), (0, 0))
    scales = []
    for own in (False, True):
        figure = heatmaps.draw_grids([grid], "rows", "columns", own)
        images = [image for axes in figure.axes for image in axes.get_images()]
        scales.append([image.norm.vmax for image in images if image.get_array().shape == (4, 4)])
        assert any(axes.get_ylabel() == "attention weight" for axes in figure.axes)
    assert scales == [[1, 1, 1], [0.25, 0.25, 1]]


@pytest.mark.parametrize(
    ("options", "title"),
    [
        (["--index", 2, "--head", 1], "encoder self-attention, layer 3, head 1"),
        (
            ["--site", "cross", "--sentence", "ein mann ."],
            "cross-attention, layer 2, mean of 2 heads",
        ),
        (["--site", "decoder", "--split", "valid", "--layer", 0], "layer 0, mean of 2 heads"),
        (["--head", "all", "--layer", 1], "encoder self-attention\nlayer 1, head 0"),
        (["--head", "all:3"], "encoder self-attention\nlayer 3, head 3"),
        (
            ["--index", 3, "--tokens", 2],
            " tokens\nencoder self-attention, layer 3, mean of 4 heads",
        ),
        (["--initial", "--head", 0], "untrained\nencoder self-attention, layer 3, head 0"),
    ],
)
def test_a_map_becomes_a_file(checkpoint, data_bin, tmp_path, monkeypatch, options, title):
    drawn = []
    save = maps.save
    monkeypatch.setattr(maps, "save", lambda figure, out: (drawn.append(figure), save(figure, out)))
    out = tmp_path / "map.png"
    cli.main(
        ["map", str(checkpoint), "--data", str(data_bin), "--out", str(out), *map(str, options)]
    )
    assert min(size_of_png(out)) > 200
    numbers = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert list(numbers[-1]["sites"]) == ["encoder", "decoder", "cross"]
    assert drawn[0].axes[0].get_title().endswith(title)


def read_page(out: Path) -> list:
    text = out.read_text("utf-8")
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def test_the_page_has_every_map(checkpoint, data_bin, found, tmp_path):
    out = tmp_path / "maps.html"
    args = ["map", str(checkpoint), str(checkpoint), "--data", str(data_bin), "--index", "3"]
    cli.main([*args, "--out", str(out)])
    first, second = read_page(out)
    assert first == second and first["title"] == f"transformer_hna_tiny, {checkpoint}"
    assert list(first["sites"]) == [SITES[site] for site in found.sites]
    for site, layers in found.sites.items():
        there = first["sites"][SITES[site]]
        assert (there["rows"], there["columns"]) == found.tokens[site]
        for layer in there["layers"]:
            expected = layers[layer["layer"]]
            shares = torch.frombuffer(
                bytearray(base64.b64decode(layer["weights"])), dtype=torch.uint16
            )
            assert (layer["least"], layer["most"]) == (0, 1)
            weights = shares.view(expected.shape).double() / 65535
            assert (weights - expected).abs().max() < 1e-5
    text = out.read_text("utf-8")
    assert "http" not in text.replace("http-equiv", "")  # nothing is loaded from elsewhere


def test_weights_above_one_and_below_zero_are_on_the_page(tmp_path):
    """Talking heads and differential attention have them."""
    maps = torch.tensor([[[1.6, -0.4], [0.25, 0.75]]])
    tokens = (["a", "b"], ["a", "b"])
    found = sentence_maps.SentenceMaps("m", {"encoder": {0: maps}}, {"encoder": tokens})
    sentence_maps.write_maps_page([found], tmp_path / "maps.html")
    (layer,) = read_page(tmp_path / "maps.html")[0]["sites"][SITES["encoder"]]["layers"]
    shares = torch.frombuffer(bytearray(base64.b64decode(layer["weights"])), dtype=torch.uint16)
    assert (layer["least"], layer["most"]) == pytest.approx((-0.4, 1.6))
    weights = layer["least"] + shares.view(1, 2, 2).double() / 65535 * 2.0
    assert (weights - maps).abs().max() < 1e-4


def test_tokens_are_text_never_markup(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    tokens = ([evil, "\u2028"], [evil, "b"])
    found = sentence_maps.SentenceMaps(
        evil, {"encoder": {0: torch.full((1, 2, 2), 0.5)}}, {"encoder": tokens}
    )
    sentence_maps.write_maps_page([found], tmp_path / "maps.html")
    text = (tmp_path / "maps.html").read_text("utf-8")
    assert "<script>alert" not in text and "<img" not in text
    assert (
        read_page(tmp_path / "maps.html")[0]["sites"]["encoder self-attention"]["rows"][0] == evil
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--layer", "4"], "--layer is 4 and must be one of 0, 1, 2, 3"),
        (["--layer", "-1"], "--layer is -1"),
        (["--layer", "4", "--head", "all"], "--layer is 4"),
        (["--layer", "4", "--out", "maps.html"], "--layer is 4"),
        (["--head", "4"], "--head is 4 and must be 0 to 3, mean, all or all:0 to all:3"),
        (["--head", "all:4"], "--head is all:4 and must be 0 to 3"),
        (["--head", "4", "--out", "maps.html"], "--head is 4"),
        (["--head", "first"], "--head is first"),
        (["--head", "2", "--site", "cross"], "must be 0 to 1"),
        (["--index", "200"], "--index is 200 and must be 0 to 199 in test"),
        (["--split", "dev"], "no subset dev"),
        (["--sentence", " "], "the sentence is empty"),
        (["--sentence", "ein " * 1024], "1025 tokens and the model takes 1024"),
        (["--sentence", "ein", "--index", "1"], "--index 1 is of a split, and --sentence is given"),
        (["--tokens", "0"], "--tokens is 0"),
        (["--columns", "0"], "--columns is 0"),
        (["--columns", "2"], "--columns 2 is for pictures of one head in several models"),
        (["--columns", "2", "--initial", "--head", "all"], "--columns 2 is for"),
        (["--own-scales"], "--own-scales is for a picture of --head all"),
        (["--own-scales", "--head", "all", "--out", "map.html"], "--own-scales is for a picture"),
        (["--out", "map.txt"], "map.txt is no picture"),
        (["--out", "/dev/null/maps.html"], "/dev/null is a file"),
        (["--data", "."], "neither dictionaries nor examples"),
    ],
)
def test_maps_that_cannot_be_drawn(checkpoint, data_bin, tmp_path, change, said):
    out = tmp_path / "map.png"
    with pytest.raises(UsageError, match=said):
        cli.main(["map", str(checkpoint), "--data", str(data_bin), "--out", str(out), *change])
    assert not list(tmp_path.iterdir()) and not Path("maps.html").exists()


def test_names_are_no_formulas(tmp_path):
    """What a run or a token is called is shown as it is, and numbers on axes as powers."""
    figure = draw(torch.eye(2), ["$x$", "b"], ["a$", "\\b"])
    figure.axes[0].set_title(r"run$\b$ a_1$x$")
    pictures.save(figure, tmp_path / "map.svg")
    power = draw(torch.eye(2), "ab", "ab")
    power.axes[0].set_yscale("log")
    pictures.save(power, tmp_path / "log.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.png", "map.svg"]


def test_a_site_that_a_model_has_not(found):
    alone = found._replace(sites={"encoder": found.sites["encoder"]})
    given = Namespace(site="cross", head="mean", layer=None, columns=None)
    with pytest.raises(UsageError, match="has no cross-attention; give --site encoder$"):
        maps.check_choice([alone], given)


def test_of_a_long_sentence_the_first_tokens_are_shown(checkpoint, data_bin, found):
    given = Namespace(sentence=None, split="test", index=3, tokens=4)
    short = sentence_maps.read_maps(ModelInspector(checkpoint, data_bin), given)
    for site, layers in found.sites.items():
        assert short.tokens[site] == tuple(texts[:4] for texts in found.tokens[site])
        for layer, each in layers.items():
            assert torch.equal(short.sites[site][layer], each[:, :4, :4])
    longest = max(len(texts) for both in found.tokens.values() for texts in both)
    assert short.title == f"{found.title}, 4 of {longest} tokens"


def test_a_target_over_the_positions(checkpoint, data_bin):
    subject = ModelInspector(checkpoint, data_bin)
    subject.model.decoder.max_target_positions = 3
    with pytest.raises(UsageError, match=r"the target has \d+ tokens and the model takes 3; give"):
        subject.load_sentence("test", 3)


def test_the_page_begins_with_what_was_asked_for(checkpoint, data_bin, tmp_path):
    out = tmp_path / "maps.html"
    choice = ["--site", "cross", "--layer", "1", "--head", "1"]
    cli.main(["map", str(checkpoint), "--data", str(data_bin), *choice, "--out", str(out)])
    begin = '<div data-maps data-site="cross-attention" data-layer="1" data-head="1">'
    assert begin in out.read_text("utf-8")
