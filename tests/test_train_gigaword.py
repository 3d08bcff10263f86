"""scripts/train_gigaword.sh, shrunk: headlines through the real command line, in WordPiece."""

import gzip
import json
import os
import re
import shutil
from itertools import islice
from pathlib import Path

import pytest
from conftest import PLUGIN, ROOT, fairseq, start
from hangs import communicate
from shell import assert_refused, bash

from fairseq_ext.data.wordpiece import Pieces, decode
from fairseq_ext.prepare import wordpiece
from fairseq_ext.safe_loading import load_checkpoint

pytestmark = pytest.mark.recipe

LINES = {"train": 40, "valid": 8, "test": 8}
ARTICLE = "the {} of {} said {} that its ##-year-old {} sold #,###.# billion shares ."
TITLE = "{} {} sells ## {} shares"
NAMES = "bank port union league".split(), "japan chile egypt nepal".split()


def invented(number: int) -> tuple[str, str]:
    one, two = NAMES[0][number % 4], NAMES[1][number // 4 % 4]
    return ARTICLE.format(one, two, ["monday", "friday"][number % 2], one), TITLE.format(
        two, one, one
    )


def pairs() -> list[tuple[str, str]]:
    """Real ones if there are any."""
    count = sum(LINES.values())
    if not (real := os.environ.get("FAIRSEQ_EXT_CORPORA")):
        return list(map(invented, range(count)))
    files = [Path(real) / "gigaword-headline" / f"train.{x}.txt.gz" for x in ("article", "title")]
    with (
        gzip.open(files[0], "rt", encoding="utf-8") as a,
        gzip.open(files[1], "rt", encoding="utf-8") as b,
    ):
        found = [
            (one.strip(), other.strip()) for one, other in islice(zip(a, b, strict=True), count)
        ]
    return [tuple(text.replace("<unk>", "unk") for text in pair) for pair in found]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """As scripts/prepare_gigaword.sh leaves it."""
    folder = tmp_path_factory.mktemp("data") / "gigaword"
    (folder / "text").mkdir(parents=True)
    (folder / "pieces").mkdir()
    rows, begin = pairs(), 0
    vocabulary = wordpiece.learn(wordpiece.count_words(text for row in rows for text in row), 400)
    (folder / "wordpiece.txt").write_text("".join(f"{piece}\n" for piece in vocabulary), "utf-8")
    (folder / "dict").write_text(
        "".join(f"{line}\n" for line in wordpiece.dictionary(vocabulary)), "utf-8"
    )
    split = Pieces(vocabulary)
    for part, count in LINES.items():
        for side, language in enumerate(("article", "title")):
            lines = [row[side] for row in rows[begin : begin + count]]
            for name, text in (("text", lines), ("pieces", split.encode(lines))):
                path = folder / name / f"{part}.{language}"
                path.write_text("".join(f"{line}\n" for line in text), "utf-8")
        begin += count
    prefixes = [x for part in LINES for x in (f"--{part}pref", folder / "pieces" / part)]
    languages = [
        "-s",
        "article",
        "-t",
        "title",
        "--joined-dictionary",
        "--srcdict",
        folder / "dict",
    ]
    fairseq("preprocess", *languages, *prefixes, "--destdir", folder)
    return folder


def recipe(data, out, *arguments):
    return bash(ROOT / "scripts/train_gigaword.sh", "--data", data, "--out", out, *arguments)


@pytest.fixture(scope="module")
def study(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    options = ["--variants", "hna sinkhorn-2", "--jobs", 2, "--seeds", 1, "--updates", 3, "--share"]
    done = recipe(data, out, *options, "--", "--cpu", "--warmup-updates", 1)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_table(study):
    out, said = study
    rows = dict(re.findall(r"^([\w-]+) +1 +([\d,]+) +3 ", said, re.M))
    assert list(rows) == ["hna", "sinkhorn-2"]
    parameters = {name: int(count.replace(",", "")) for name, count in rows.items()}
    assert parameters["sinkhorn-2"] == parameters["hna"] - 4 * 4
    [header] = re.findall(r"^variant .*", said, re.M)
    assert re.search("ROUGE-1.* ROUGE-2.* ROUGE-L.* valid.nll_loss", header)
    found = {
        name: load_checkpoint(str(out / name / "seed-1" / "checkpoint_last.pt")) for name in rows
    }
    models = {name: saved["cfg"]["model"] for name, saved in found.items()}
    assert all(model["share_encoder_decoder_layers"] for model in models.values())
    assert models["hna"]["hna_init"] == 0.1
    assert models["sinkhorn-2"]["encoder_normaliser"] == "sinkhorn"
    assert models["sinkhorn-2"]["sinkhorn_sweeps"] == 2
    for model in models.values():
        assert (model["max_source_positions"], model["max_target_positions"]) == (128, 64)
    assert found["hna"]["cfg"]["task"]["truncate_source"]


def lines(text: str, kind: str) -> dict[int, str]:
    found = re.findall(rf"^{kind}-(\d+)\t(?:-?[\d.]+\t)?(.*)$", text, re.M)
    return {int(number): line for number, line in found}


def test_headlines_are_whole_words(study, data):
    said = (study[0] / "hna" / "seed-1" / "generate-test.txt").read_text("utf-8")
    words, pieces, targets = (lines(said, kind) for kind in "DHT")
    assert words == {number: decode(line) for number, line in pieces.items()}
    assert len(words) == LINES["test"]
    text, split = ((data / name / "test.title").read_text("utf-8") for name in ("text", "pieces"))
    assert text != split
    assert [targets[number] for number in range(LINES["test"])] == text.split("\n")[:-1]


def test_headlines_of_text_that_is_typed_in(study, data):
    """The same as of data that was split before."""
    run = study[0] / "hna" / "seed-1"
    flags = ["--user-dir", PLUGIN, "--path", run / "checkpoint_last.pt", "--cpu", "--max-len-b", 50]
    flags += ["--bpe", "wordpiece", "--wordpiece-vocab", data / "wordpiece.txt"]
    with (data / "text" / "test.article").open() as text:
        command = start("interactive", data, *flags, stdin=text)
        out, err = communicate(command)
    assert command.returncode == 0, err
    written = (run / "generate-test.txt").read_text("utf-8")
    assert lines(out, "D") == lines(written, "D")


@pytest.mark.slow
def test_headlines_may_be_longer_than_those_that_models_are_trained_on(data, tmp_path):
    """Positions are those that the data were made with; references are not cut."""
    made = shutil.copytree(data, tmp_path / "made")
    titles = (data / "pieces" / "test.title").read_text("utf-8").split("\n")
    most = max(len(title.split()) for title in titles)  # without </s>
    manifest = {"settings": [f"--positions 30,{most}"]}
    (made / "manifest.json").write_text(json.dumps(manifest, indent=2))
    done = recipe(
        *(made, tmp_path / "out", "--variants", "una", "--seeds", 1, "--updates", 2),
        *("--", "--cpu", "--warmup-updates", 1),
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "out" / "una" / "seed-1"
    model = load_checkpoint(str(run / "checkpoint_last.pt"))["cfg"]["model"]
    assert (model["max_source_positions"], model["max_target_positions"]) == (30, most)
    said = (run / "generate-test.txt").read_text("utf-8")
    assert len(lines(said, "D")) == LINES["test"]
    assert max(len(line.split()) for line in lines(said, "H").values()) < most


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--positions", "128"], ["--positions is '128'", "as in 128,64"]),
        (["--variants", "una bert"], ["--variants has 'bert'", "sinkhorn-2"]),
        (["--variants", "sinkhorn-0"], ["--variants has 'sinkhorn-0'"]),
        (
            ["--share", "--", "--encoder-layers", 3],
            ["one stack of layers", "--encoder-layers 3 and --decoder-layers 4"],
        ),
    ],
)
def test_refused_before_the_first_training(data, tmp_path, arguments, said):
    assert_refused(recipe(data, tmp_path / "out", *arguments), *said)
    assert not (tmp_path / "out").exists()
