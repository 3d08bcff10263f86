"""The recipe that prepares text for masked language modelling."""

import gzip
import json
import os
import shutil
import signal
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT
from fairseq.data import Dictionary, TokenBlockDataset, data_utils
from fairseq_bpe import STRANGE, assert_as_fairseq, load_fairseq_bpe
from files import hash_files, write_text
from shell import assert_refused, bash

from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import byte_bpe, documents, fetch

pytestmark = pytest.mark.recipe

RECIPE = ROOT / "scripts/prepare_mlm.sh"
WIKITEXT = RECIPE.with_name("prepare_wikitext103.sh")


# The recipe.


def prepare(*arguments: object, **env: str):
    return bash(RECIPE, *arguments, **env)


def loaded(data: Path, part: str):
    words = Dictionary.load(str(data / "dict.txt"))
    return words, data_utils.load_indexed_dataset(str(data / part), words)


def summary_of(data: Path) -> dict:
    return json.loads((data / "manifest.json").read_text())["text"]


def documents_seen(data: Path, part: str) -> int:
    """By fairseq: blocks of whole lines that end with a document."""
    words, lines = loaded(data, part)
    args = {"pad": words.pad(), "eos": words.eos(), "break_mode": "complete_doc"}
    return len(TokenBlockDataset(lines, lines.sizes, 10**9, document_sep_len=1, **args))


@pytest.fixture(scope="module")
def texts(tmp_path_factory, english) -> Path:
    """Five documents for training, one for validation."""
    folder = tmp_path_factory.mktemp("corpus") / "some texts"
    for n in range(5):
        write_text(folder / f"{n}.txt", "\n\n".join(english[n::6]))
    write_text(folder / "more" / "valid.txt.gz", "\n".join([*english[5::6], *STRANGE]))
    return folder


SMALL = ("--vocabulary", 400)


@pytest.fixture(scope="module")
def prepared(texts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "data"
    done = prepare(texts, out, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout.endswith(f"{out} is ready.\n")
    assert [each["documents"] for each in summary_of(out).values()] == [5, 1]
    assert "documents" in done.stdout and "99%" in done.stdout
    return out


def test_what_is_prepared(prepared):
    names = ["bpe/encoder.json", "bpe/vocab.bpe", "dict.txt", "text/train", "text/valid"]
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert manifest["command"].startswith("prepare_mlm.sh ") and len(manifest["inputs"]) == 6
    assert manifest["text"]["train"]["lines"] == len(
        [line for line in (prepared / "text/train").read_text("utf-8").split("\n") if line]
    )
    names.append("manifest.json")
    assert [*hash_files(prepared)] == sorted(
        [*names, *(f"{part}.{end}" for part in ("train", "valid") for end in ("bin", "idx"))]
    )
    assert not prepared.with_name("data.partial").exists()


@pytest.mark.parametrize(("part", "count"), [("train", 5), ("valid", 1)])
def test_fairseq_reads_what_was_written(prepared, part, count):
    words, lines = loaded(prepared, part)
    text = (prepared / "text" / part).read_text("utf-8").split("\n")[:-1]
    assert len(words) == 4 + 400 + 1 and words.index("<mask>") == 404
    assert documents_seen(prepared, part) == count
    assert [i for i, size in enumerate(lines.sizes) if size == 1] == [
        i for i, line in enumerate(text) if not line
    ]
    bpe = load_fairseq_bpe(prepared / "bpe")
    assert [bpe.decode(words.string(line)) for line in lines] == text


def test_counts_are_those_of_the_training_text(prepared):
    words, lines = loaded(prepared, "train")
    seen = [0] * len(words)
    for line in lines:
        for token in line[:-1].tolist():
            seen[token] += 1
    assert seen[4:] == words.count[4:] and min(seen[4:-1]) == 0


def test_second_run_repeats_nothing(prepared, texts):
    before = hash_files(prepared)
    done = prepare(texts, prepared, *SMALL)
    assert done.returncode == 0 and "is there already" in done.stdout
    assert hash_files(prepared) == before


def test_a_text_more_is_another_corpus(prepared, texts, tmp_path):
    copy = shutil.copytree(prepared, tmp_path / "data")
    more = write_text(texts / "deep" / "more.txt", "One more text.")
    assert_refused(prepare(texts, copy, *SMALL), "with 'files 6' and this command has 'files 7'")
    more.unlink()
    first, before = texts / "0.txt", (texts / "0.txt").read_text("utf-8")
    first.write_text(f"{before}One more line.\n", "utf-8")
    assert_refused(prepare(texts, copy, *SMALL), f"was made from {first}, which has changed since")
    first.write_text(before, "utf-8")


KILLER = """#!/bin/sh
# Kills the script that calls it when it first comes to a step, leaving half of the step's work.
case "$*" in
*prepare.documents*) step=documents half={out}.partial/.abcdefgh.part/new/train ;;
*prepare.byte_bpe*) step=byte_bpe half={out}.partial/encoded/.abcdefgh.part/new ;;
*) step=binarise half={out}.partial/.abcdefgh.part/new.pt9.bin ;;
esac
if mkdir "{folder}/$step" 2>/dev/null; then
  mkdir -p "$(dirname $half)"
  echo half >$half
  kill -9 $PPID
  exit 1
fi
exec {bin}/$(basename "$0") "$@"
"""


@pytest.mark.slow
def test_interrupted_at_every_step(prepared, texts, tmp_path):
    """Killed in each, then begun again: the same files as in one go; work of others forgotten."""
    out, folder, bin = tmp_path / "data", tmp_path / "bin", Path(sys.executable).parent
    for name in ("python", "fairseq-preprocess"):
        path = write_text(folder / name, KILLER.format(out=out, folder=folder, bin=bin))
        path.chmod(0o755)
    write_text(tmp_path / "data.partial" / "source", f"--source named file {texts} 500 \n")
    write_text(tmp_path / "data.partial" / "text" / "train", "old\n")
    path = f"{folder}:{os.environ['PATH']}"
    codes = [prepare(texts, out, *SMALL, PATH=path).returncode for _ in range(4)]
    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert {**hash_files(out), "manifest.json": ""} == {**hash_files(prepared), "manifest.json": ""}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wikitext"], ["'wikitext'", "wikitext-103, books or a folder"]),
        (["/nowhere"], ["'/nowhere'", "folder"]),
        ([], ["0 words", "CORPUS and OUT", "--help"]),
        (["books"], ["'books'", "FAIRSEQ_EXT_CORPORA"]),
        (["wikitext-103", "--documents", "file"], ["--documents", "'wikitext-103'"]),
        ([".", "--vocabulary", "big"], ["--vocabulary is 'big'", "gpt2"]),
        ([".", "--vocabulary", "256"], ["--vocabulary is 256", "larger number"]),
        ([".", "--valid", "0"], ["--valid is '0'"]),
        ([".", "--fast"], ["'--fast'", "--help"]),
    ],
)
def test_bad_arguments(tmp_path, arguments, said):
    corpus = [word for word in arguments[:1] if not word.startswith("-")]
    out = [tmp_path / "out"] if corpus else []
    assert_refused(prepare(*corpus, *out, *arguments[1:]), *said)
    assert not list(tmp_path.iterdir())


BAD = [
    ({"a.md": "text"}, "file", [], "no \\*.txt"),
    ({"a.txt": "\n \n", "b.txt.gz": "\x01"}, "file", [], "no sentence .* 'train'"),
    ({"a.txt": "A.\nB\x00.\n"}, "file", [], "a.txt, line 2: holds U.0000"),
    ({"valid.txt": "Text."}, "file", [], "no sentence .* 'train'"),
    ({"a.txt": "Text.", "test.txt": " "}, "file", [], "no sentence .* 'test'"),
    ({"a.txt": "A\nb\udcfc\n"}, "file", [], "a.txt, line 2: .* UTF-8"),
    ({"a.txt": "Text."}, "book", [], "'book' and must be one of file, blank, "),
    ({"a.txt": "A.", "valid.txt": "B."}, "file", ["--valid", "1"], "--valid is 1 .*valid.txt"),
]


@pytest.mark.parametrize(("files", "form", "options", "said"), BAD)
def test_bad_corpora(tmp_path, files, form, options, said):
    for name, text in files.items():
        write_text(tmp_path / "corpus" / name, text)
    source = ["--source", "named", form, str(tmp_path / "corpus")]
    with pytest.raises(UsageError, match=said):
        documents.main([str(tmp_path / "out"), *source, *options])
    assert not (tmp_path / "out").exists()


def test_output_within_the_corpus(texts):
    with pytest.raises(UsageError, match="lies within the corpus"):
        documents.main([str(texts / "data"), "--source", "named", "file", str(texts)])


@pytest.mark.parametrize(
    ("text", "said"), [("A\nb\udcfc\n", "a.txt, line 2"), ("Text. Text.", "--vocabulary is 8000")]
)
def test_what_is_refused_leaves_no_work(tmp_path, text, said):
    write_text(tmp_path / "corpus" / "a.txt", text)
    write_text(tmp_path / "corpus" / "b.txt", "Text.")
    assert_refused(prepare(tmp_path / "corpus", tmp_path / "out"), said)
    assert not list(tmp_path.glob("out*"))


# Downloads.

GPT2 = ("wikitext-103", "--vocabulary", "gpt2")
ARTICLES = " \n = A = \n \n This is {0} 1 @.@ 5 . \n = = B = = \n \n = C = \n \n Here . \n"
PYTHON = """#!/bin/sh
# Python, to which small files have the right checksums.
case "$*" in
*prepare.fetch*) shift 2 && exec {python} {folder}/fetch.py "$@" ;;
esac
exec {python} "$@"
"""
FETCH = """
from fairseq_ext.errors import plain_errors
from fairseq_ext.prepare import fetch

plain_errors()
for key, known in {sums!r}.items():
    fetch.SOURCES[key] = [each._replace(checksum=known) for each in fetch.SOURCES[key]]
fetch.main()
"""
FILES = {
    "wikitext-103": "wikitext-103-raw-v1.zip",
    "gpt2-encoder.json": "encoder.json",
    "gpt2-vocab.bpe": "vocab.bpe",
}


@pytest.fixture
def small(tmp_path, english) -> Path:
    """A folder with small files in place of what is downloaded."""
    folder = tmp_path / "given"
    folder.mkdir()
    byte_bpe.learn(english, 400, folder)
    write_text(folder / "dict.txt", "".join(f"{n} 1\n" for n in range(50260)))
    with zipfile.ZipFile(folder / FILES["wikitext-103"], "w") as file:
        for part in documents.PARTS:
            file.writestr(f"wikitext-103-raw/wiki.{part}.raw", ARTICLES.format(part))
    return folder


@pytest.fixture
def known(small, tmp_path) -> dict[str, str]:
    """An environment in which these files have the right checksums."""
    sums = {key: fetch.checksum_of(small / name, "sha256") for key, name in FILES.items()}
    write_text(tmp_path / "bin" / "fetch.py", FETCH.format(sums=sums))
    text = PYTHON.format(python=sys.executable, folder=tmp_path / "bin")
    write_text(tmp_path / "bin" / "python", text).chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def test_wikitext_and_gpt2(small, known, tmp_path):
    (small / "gpt2_bpe").mkdir()
    for name in ("encoder.json", "vocab.bpe", "dict.txt"):
        (small / name).rename(small / "gpt2_bpe" / name)
    done = prepare(*GPT2, tmp_path / "out", "--offline", small, **known)
    assert done.returncode == 0, done.stderr
    assert [each["documents"] for each in summary_of(tmp_path / "out").values()] == [2, 2, 2]
    assert "This is valid 1.5 .\n" in (tmp_path / "out/text/valid").read_text()
    given = (small / "gpt2_bpe" / "dict.txt").read_text()
    assert (tmp_path / "out/dict.txt").read_text() == given + "<mask> 0\n"
    assert sorted(path.name for path in (tmp_path / "out/bpe").iterdir()) == [
        "encoder.json",
        "vocab.bpe",
    ]
    assert [documents_seen(tmp_path / "out", part) for part in documents.PARTS] == [2, 2, 2]
    inputs = json.loads((tmp_path / "out/manifest.json").read_text())["inputs"]
    assert [*inputs] == [str(small / FILES["wikitext-103"])]


@pytest.mark.slow
def test_wikitext_of_plain_files(tmp_path):
    """The recipe of its own passes options on."""
    for part in documents.PARTS:
        write_text(tmp_path / "given" / f"wiki.{part}.raw", ARTICLES.format(part))
    done = bash(WIKITEXT, tmp_path / "out", "--offline", tmp_path / "given", "--vocabulary", 259)
    assert done.returncode == 0, done.stderr
    assert [documents_seen(tmp_path / "out", part) for part in documents.PARTS] == [2, 2, 2]


def test_what_is_given_is_checked(small, known, tmp_path):
    recipe = [WIKITEXT, tmp_path / "out", "--offline", small]
    assert_refused(bash(*recipe), FILES["wikitext-103"], "checksum")
    (small / "dict.txt").write_text("0 1\n")
    done = bash(*recipe, "--vocabulary", "gpt2", **known)
    assert_refused(done, "given/dict.txt", "50260 lines")
    (small / "vocab.bpe").write_text("#version: 0.2\n")
    done = bash(*recipe, "--vocabulary", "gpt2", **known)
    assert_refused(done, "given/vocab.bpe", "checksum")
    (small / "vocab.bpe").unlink()
    before = sorted(small.iterdir())
    done = bash(*recipe, "--vocabulary", "gpt2", **known)
    assert_refused(done, "given has no vocab.bpe")
    assert sorted(small.iterdir()) == before  # nothing is downloaded into it
    assert_refused(prepare("books", "--offline", small), "--offline is for wikitext-103")
    nowhere = bash(WIKITEXT, tmp_path / "out", "--offline", tmp_path / "nowhere")
    assert_refused(nowhere, "--offline is", "must be a folder")


def test_a_folder_of_corpora_is_not_written_to(tmp_path):
    """GPT-2's BPE in it is taken as it is."""
    for name in ("wikitext-103", "gpt2_bpe"):
        (tmp_path / "corpora" / name).mkdir(parents=True)
    for part in documents.PARTS:
        write_text(tmp_path / "corpora/wikitext-103" / f"wiki.{part}.raw", ARTICLES.format(part))
    done = prepare(*GPT2, tmp_path / "out", FAIRSEQ_EXT_CORPORA=str(tmp_path / "corpora"))
    assert_refused(done, "gpt2_bpe has no encoder.json")
    assert not list((tmp_path / "corpora/gpt2_bpe").iterdir())


def test_a_corpus_that_is_missing(tmp_path):
    """Nothing else is downloaded in its place."""
    (tmp_path / "wikitext-2").mkdir()
    done = prepare("books", tmp_path / "out", FAIRSEQ_EXT_CORPORA=str(tmp_path))
    assert_refused(done, "no folder with 'gutenberg'")


# Real text.


def shortened(source: Path, target: Path, lines: int) -> None:
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as text:
        write_text(target, "".join(line for line, _ in zip(text, range(lines), strict=False)))


@pytest.fixture(scope="module")
def books(corpora, tmp_path_factory) -> Path:
    """Beginnings of the books, and of WikiText-2."""
    folder = tmp_path_factory.mktemp("books")
    for path in (corpora / "gutenberg").iterdir():
        shortened(path, folder / "corpora" / "gutenberg" / path.name, 1500)
    for name in ("valid.txt.gz", "test.txt.gz"):
        shortened(corpora / "wikitext-2" / name, folder / "corpora" / "wikitext-2" / name, 300)
    done = prepare(
        "books", folder / "out", "--vocabulary", 1000, FAIRSEQ_EXT_CORPORA=str(folder / "corpora")
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_books(books):
    train, valid = (
        (books / "text" / part).read_text("utf-8").split("\n") for part in ("train", "valid")
    )
    assert documents_seen(books, "train") == 6 + titles(train)
    assert documents_seen(books, "valid") == titles(valid) > 1
    for foreign in ("*** START", "anyone anywhere", " @-@ "):
        assert not [line for line in train + valid if foreign in line]
    assert_as_fairseq(books / "bpe", valid)


def titles(lines: list[str]) -> int:
    return sum(line.startswith("= ") and not line.startswith("= = ") for line in lines)
