"""The page about runs, and both kinds of pages in a real browser."""

import base64
import csv
import io
import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from browser import chromium, contrast, overflow, visit
from conftest import ROOT, TRAIN, fairseq

from fairseq_ext import cli
from fairseq_ext.analysis.report import name_version, weights_part
from fairseq_ext.analysis.sentence_maps import SentenceMaps, maps_part, write_page
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.recorded import read_record


@pytest.fixture(scope="module")
def runs(hybrid_run, data_bin, tmp_path_factory) -> list[Path]:
    """Two seeds of two variants; of one variant the data are gone."""
    folder = tmp_path_factory.mktemp("runs")
    made = []
    for name, arch, seed in product(["hna", "<b>ag"], ["transformer_hna_tiny"], [1, 2]):
        run = folder / name / f"seed-{seed}"
        guided = ["--criterion", "label_smoothed_cross_entropy_ag"] if name != "hna" else []
        done = fairseq(
            *("train", data_bin, *TRAIN, "--arch", arch, "--max-update", 2, "--save-dir", run),
            *("--seed", seed, "--decoder-layers", 1, *guided),
        )
        (run / "train.log").write_text(done.stdout + done.stderr, "utf-8")
        shutil.copy(run / "checkpoint_last.pt", run / "checkpoint_best.pt")
        made.append(run)
    return made


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "new" / "report.html"
    args = ["--test", "t", "--title", "A & B", "--sentence", "ein mann .", "--out", str(out)]
    cli.main(["report", *map(str, runs), *args])
    return out


def test_what_the_page_has(page, runs):
    text = page.read_text("utf-8")
    assert "<title>A &amp; B</title>" in text and "<b>" not in text and "&lt;b&gt;ag" in text
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == [
        *("Scores", "Over training", "Attention", "Settings", "How this page was made")
    ]
    assert "paired t-test" in text and "standard error of the mean" in text
    captions = re.findall(r"<figcaption>(.*?) \(<a ", text)
    assert captions == [
        "The scores of the table, by variant",
        *(f"{name}, as logged" for name in ("loss", "nll_avg", "ag_loss", "ag_alpha")),
        "share u of doubly-normalised attention, mean over repetitions",
    ]
    images = re.findall(r'src="data:image/svg\+xml;base64,(.*?)"', text)
    assert len(images) == 6 and all(b"<svg" in base64.b64decode(each) for each in images)
    assert "fairseq-ext " in text and "Python 3." in text
    assert "criterion._name" in text and "model.hna_init" in text


def test_numbers_of_pictures(page, runs):
    text = page.read_text("utf-8")
    files = dict(re.findall(r'<a download="(.*?)" href="data:text/csv;base64,(.*?)"', text))
    tables = {
        name: list(csv.DictReader(io.StringIO(base64.b64decode(content).decode())))
        for name, content in files.items()
    }
    assert len(tables) == text.count("<figure>") == 6
    scores = tables["The scores of the table, by variant.csv"]
    assert [row["run"] for row in scores] == [*map(str, runs)]
    logs = "".join((run / "train.log").read_text("utf-8") for run in runs)
    logged = {float(value) for value in re.findall(r"nll_avg\W+([0-9.]+)", logs)}
    assert {float(row["nll_avg"]) for row in tables["nll_avg, as logged.csv"]} <= logged
    assert {row["run"] for row in tables["nll_avg, as logged.csv"]} == {*map(str, runs)}
    shares = tables["share u of doubly-normalised attention, mean over repetitions.csv"]
    assert {row["model"] for row in shares} == {"hna", "<b>ag"}


def test_settings_that_differ_come_first(page):
    first, every = re.findall("<table>(.*?)</table>", page.read_text("utf-8"), re.DOTALL)[1:3]
    names = re.findall("<tr><td>(.*?)</td>", first)
    assert any(name.startswith("criterion.") for name in names)
    assert not any(name.startswith(("model.hna", "common.seed")) for name in names)
    assert len(re.findall("<tr>", every)) > 100


def test_maps_of_the_best_checkpoints(page):
    text = page.read_text("utf-8")
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    titles = [model["title"] for model in json.loads(found)]
    assert len(titles) == 2
    # what an untrained model translates does not end
    assert all(re.search(r"/checkpoint_best(, 64 of \d+ tokens)?$", each) for each in titles)


def test_the_page_says_which_checkpoints_are_drawn(page, runs):
    said = re.findall("<p>Maps of (.*?)</p>", page.read_text("utf-8"))
    place = str(runs[2]).replace("<b>", "&lt;b&gt;")
    assert said == [
        f"hna: {runs[0]}/checkpoint_best.pt, after 2 updates.",
        f"&lt;b&gt;ag: {place}/checkpoint_best.pt, after 2 updates.",
    ]


def test_models_of_one_name_on_other_data(runs, tmp_path):
    """Their titles are their paths, and the setting in which they differ is shown."""
    made = []
    for place in ("a", "b"):
        run = tmp_path / place / "hna" / "seed-1"
        shutil.copytree(runs[0], run)
        for file in run.glob("*.pt"):
            state = torch.load(file, weights_only=False)
            state["cfg"]["dataset"]["train_subset"] = f"train_{place}"
            torch.save(state, file)
        made.append(run)
    out = tmp_path / "report.html"
    command = ["report", *map(str, made), "--sentence", "ein mann .", "--mixed"]
    cli.main([*command, "--out", str(out)])
    text = out.read_text("utf-8")
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    titles = [model["title"] for model in json.loads(found)]
    assert all(f", {run}/checkpoint_best" in title for run, title in zip(made, titles, strict=True))
    differing = re.findall("<table>(.*?)</table>", text, re.DOTALL)[1]
    row = "<td>dataset.train_subset</td><td>train_a</td><td>train_b</td>"
    assert row in differing


def test_a_page_without_maps_says_why(runs, tmp_path, capsys):
    out = tmp_path / "report.html"
    cli.main(["report", str(runs[0]), "--split", "dev", "--out", str(out)])
    text = out.read_text("utf-8")
    assert "No maps of hna: there is no subset dev of" in text and "data-maps>" not in text
    assert "No maps of hna: there is no subset dev of" in capsys.readouterr().err


def test_a_page_about_a_record(tmp_path):
    """Its scores, and where they come from; there are no logs or checkpoints to read."""
    record = ROOT / "docs" / "results" / "records" / "guidance_tuned.toml"
    out = tmp_path / "report.html"
    flags = ["--test", "t", "--baseline", "plain", "--out", str(out)]
    cli.main(["report", str(record), *flags])
    text = out.read_text("utf-8")
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == ["Scores", "Records", "How this page was made"]
    assert "paired t-test" in text and ">6.695 ± 0.023<" in text
    for name in ("question", "commit", "hardware", "command"):
        assert f"<td>{name}</td>" in text
    assert read_record(record)["commit"] in text


def test_a_page_about_a_record_and_runs(runs, tmp_path):
    record = tmp_path / "made.toml"
    cli.main(["record", *map(str, runs[:2]), "--metric", "loss", "--out", str(record)])
    record.write_text(record.read_text("utf-8").replace('"hna"', '"before"'), "utf-8")
    out = tmp_path / "report.html"
    cli.main(["report", str(record), *map(str, runs[:2]), "--metric", "loss", "--out", str(out)])
    text = out.read_text("utf-8")
    assert "<td>before</td>" in text and "<td>hna</td>" in text
    assert {"Over training", "Attention", "Settings", "Records"} <= {
        *re.findall("<h2>(.*?)</h2>", text)
    }


def test_a_package_on_the_path_alone_has_no_version():
    assert name_version("none-such") == "none-such, not installed"
    assert re.fullmatch(r"torch \d[\w.+]+", name_version("torch"))


def test_what_adversaries_mask_is_a_picture(tmp_path):
    line = "2026-01-01 | INFO | train | asa_masked {0} | asa_masked_0 {0} | num_updates 1\n"
    for name, share in (("asa", 0.25), ("naive", 0.5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_text(line.format(share))
    (picture,) = weights_part([tmp_path / "asa", tmp_path / "naive"])
    assert "<figcaption>Units masked in the second pass (" in picture
    (table,) = re.findall('data:text/csv;base64,(.*?)"', picture)
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(table).decode())))
    assert {row["variant"]: float(row["share"]) for row in rows} == {"asa": 0.25, "naive": 0.5}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--out", "report.pdf"], "report.pdf and must end with .html"),
        (["--out", "/dev/null/report.html"], "/dev/null is a file"),
        (["--metric", "accuracy"], "has no accuracy"),
        (
            ["--curves", "loss", "lost"],
            "--curves has lost, which no run has logged; they have .*ppl",
        ),
        (["--by", "loss"], "--by is for --test"),
        (["--baseline", "una"], "--baseline is una"),
        (["nowhere"], "nowhere has no train.log"),
    ],
)
def test_what_cannot_be_reported(runs, tmp_path, change, said):
    out = tmp_path / "report.html"
    with pytest.raises(UsageError, match=said):
        cli.main(["report", "--out", str(out), *change, "--", str(runs[0])])
    assert not list(tmp_path.iterdir())


# In a browser.


@pytest.mark.parametrize(("width", "dark"), list(product([360, 1400], [False, True])))
def test_the_page_in_a_browser(page, width, dark):
    """Narrow and wide, light and dark: nothing complains, nothing sticks out, text can be read."""
    with chromium(width, dark) as window:
        visit(window, page)
        assert overflow(window) <= 0
        for selector in (
            "h1",
            "h2",
            "td",
            "li",
            "figcaption",
            "figcaption a",
            ".token",
            ".where",
            "p",
        ):
            assert contrast(window, selector) > 4.5, selector
        background = "return getComputedStyle(document.body).backgroundColor"
        assert (window.execute_script(background) == "rgb(255, 255, 255)") != dark
        loaded = "return [...document.images].every((i) => i.complete && i.naturalWidth > 0)"
        assert window.execute_script(loaded)
        panels = window.find_elements("css selector", ".model")
        left, right = (panel.rect for panel in panels)
        assert (left["y"] == right["y"]) == (width > 1000)  # side by side if there is room


def test_a_page_of_maps_begins_with_the_choice(runs, data_bin, tmp_path):
    out = tmp_path / "maps.html"
    choice = ["--site", "cross", "--head", "1", "--index", "3", "--tokens", "5"]
    cli.main(["map", str(runs[0] / "checkpoint_last.pt"), *choice, "--out", str(out)])
    with chromium(700) as window:
        visit(window, out)
        assert overflow(window) <= 0
        (where,) = window.find_elements("css selector", ".where")
        assert where.text.startswith("layer 0, head 1: predicted token")
        assert len(window.find_elements("css selector", ".keys .token")) == 5
        assert window.find_element("css selector", "select").get_attribute("value") == (
            "cross-attention"
        )


def test_maps_have_one_scale_of_colours(runs, data_bin, tmp_path):
    """It is drawn with numbers, as are layers and heads; a switch gives each map its own."""
    out = tmp_path / "maps.html"
    choice = ["--head", "2", "--layer", "1", "--index", "3"]
    cli.main(["map", str(runs[0] / "checkpoint_last.pt"), *choice, "--out", str(out)])
    darkest = (
        "return [...document.querySelectorAll('.grid canvas')].map((canvas) => Math.max("
        "...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
        ".filter((_, i) => i % 4 === 3)))"
    )
    with chromium(1280) as window:
        visit(window, out)

        def texts(selector):
            return [each.text for each in window.find_elements("css selector", selector)]

        shared = window.execute_script(darkest)
        assert sorted(shared)[-1] == 255 and len(set(shared)) > 4
        (scale,) = texts(".scale")
        assert re.fullmatch(r"0\s+0\.\d+ attention weight", scale)
        assert texts(".number") == ["layer \\ head", *"0123", *"0123"]
        assert texts(".ylabel, .xlabel") == ["attending token", "attended token"]
        window.find_element("css selector", "input[type=checkbox]").click()
        assert set(window.execute_script(darkest)) == {255}
        assert float(texts(".scale")[0].split()[1]) <= float(scale.split()[1])


@pytest.mark.parametrize("width", [1280, 400])
def test_tokens_stand_at_the_axes_of_the_large_map(tmp_path, width):
    """Up to 30 of them, each at the middle of its row or column."""
    places = (
        "const where = (e) => e.getBoundingClientRect(); return [...document.querySelectorAll("
        "'.figure')].map((figure) => { const map = where(figure.querySelector('canvas'));"
        "return [...figure.querySelectorAll('.labels span')].map((e) => [e.textContent,"
        "((where(e).top + where(e).bottom) / 2 - map.top) / map.height,"
        "((where(e).left + where(e).right) / 2 - map.left) / map.width]) })"
    )
    parts, counts = [], (4, 30, 31)
    for count in counts:
        tokens = [f"token{i}" for i in range(count)]
        sites = {"encoder": {0: torch.full((1, count, count), 1 / count)}}
        parts.append(maps_part([SentenceMaps("m", sites, {"encoder": (tokens, tokens)})]))
    write_page(tmp_path / "maps.html", "maps", parts)
    with chromium(width) as window:
        visit(window, tmp_path / "maps.html")
        assert overflow(window) <= 0
        *labelled, last = window.execute_script(places)
    assert not last
    for count, labels in zip(counts, labelled, strict=False):
        assert [text for text, *_ in labels] == 2 * [f"token{i}" for i in range(count)]
        for number, (_, down, across) in enumerate(labels):
            middle = (number % count + 0.5) / count
            assert (down if number < count else across) == pytest.approx(middle, abs=0.3 / count)


def test_the_keyboard_is_enough(runs, data_bin, tmp_path):
    """Focus stays where it was when another head is chosen."""
    from selenium.webdriver.common.keys import Keys

    out = tmp_path / "maps.html"
    cli.main(["map", str(runs[0] / "checkpoint_last.pt"), "--index", "3", "--out", str(out)])
    with chromium(1280) as window:
        visit(window, out)
        chosen = '.grid button[title="layer 1, head 2"]'
        window.find_element("css selector", chosen).send_keys(Keys.ENTER)
        assert window.switch_to.active_element.get_attribute("title") == "layer 1, head 2"
        window.switch_to.active_element.send_keys(Keys.TAB, Keys.NULL)
        assert window.switch_to.active_element.get_attribute("title") == "layer 1, head 3"
        query = window.find_elements("css selector", ".queries .token")[1]
        query.send_keys(Keys.SPACE)
        said = window.find_element("css selector", "[aria-live]").text
        assert said.startswith(f"{window.switch_to.active_element.text} looks most at ")


def test_maps_are_chosen(page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import Select

    def texts(selector):
        return [e.text for e in window.find_elements("css selector", selector)]

    with chromium(1400) as window:
        visit(window, page)
        assert texts(".model:first-child .queries .token") == ["ein", "mann", ".", "</s>"]
        assert texts(".where")[0].startswith("layer 3, head 0")
        window.find_element("css selector", '.grid button[title="layer 1, head 2"]').click()
        assert [said[:15] for said in texts(".where")] == ["layer 1, head 2"] * 2
        said = window.find_element("css selector", "[aria-live]")
        query = window.find_elements("css selector", ".queries .token")[1]
        ActionChains(window).move_to_element(query).perform()
        assert re.match(r"transformer_hna_tiny, .*: mann looks most at ", said.text)
        weights = [
            float(key.get_attribute("title"))
            for key in window.find_elements("css selector", ".model:first-child .keys .token")
        ]
        assert sum(weights) == pytest.approx(1, abs=0.01)
        canvas = window.find_element("css selector", "canvas.large")
        ActionChains(window).move_to_element(canvas).perform()
        assert re.fullmatch(r"transformer_hna_tiny, .*: \S+ → \S+: 0\.\d{4}", said.text)
        Select(window.find_element("css selector", "select")).select_by_visible_text(
            "cross-attention"
        )
        assert texts(".where")[0].startswith("layer 0, head 0: predicted token")
        assert texts(".model:first-child .keys .token") == ["ein", "mann", ".", "</s>"]
