"""The recipe that prepares text for masked language modelling."""

import gzip
import hashlib
import os
import re
import signal
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from conftest import ROOT
from fairseq.data import Dictionary, TokenBlockDataset, data_utils
from test_documents import STRANGE, assert_as_fairseq, hashes, stock, write
from test_scripts import assert_refused, bash, lib

from fairseq_ext.data import byte_bpe, documents
from fairseq_ext.errors import UsageError

RECIPE = ROOT / "scripts/prepare_mlm.sh"
WIKITEXT = RECIPE.with_name("prepare_wikitext103.sh")


# The recipe.


def prepare(*arguments: object, **env: str):
    return bash(RECIPE, *arguments, **env)


def loaded(data: Path, part: str):
    words = Dictionary.load(str(data / "dict.txt"))
    return words, data_utils.load_indexed_dataset(str(data / part), words)


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
        write(folder / f"{n}.txt", "\n\n".join(english[n::6]))
    write(folder / "more" / "valid.txt.gz", "\n".join([*english[5::6], *STRANGE]))
    return folder


SMALL = ("--vocabulary", 400)


@pytest.fixture(scope="module")
def prepared(texts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "data"
    done = prepare(texts, out, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and done.stdout.endswith(f"{out} is ready.\n")
    assert "train: 5 documents, " in done.stdout and "valid: 1 documents, " in done.stdout
    return out


def test_what_is_prepared(prepared):
    names = ["bpe/encoder.json", "bpe/vocab.bpe", "dict.txt", "text/train", "text/valid"]
    assert [*hashes(prepared)] == sorted(
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
    bpe = stock(prepared / "bpe")
    assert [bpe.decode(words.string(line)) for line in lines] == text


def test_counts_are_those_of_the_training_text(prepared):
    words, lines = loaded(prepared, "train")
    seen = [0] * len(words)
    for line in lines:
        for token in line[:-1].tolist():
            seen[token] += 1
    assert seen[4:] == words.count[4:] and min(seen[4:-1]) == 0


def test_second_run_repeats_nothing(prepared, texts):
    before = hashes(prepared)
    done = prepare(texts, prepared, *SMALL)
    assert done.returncode == 0 and "is there already" in done.stdout
    assert hashes(prepared) == before


KILLER = """#!/bin/sh
# Kills the script that calls it when it first comes to a step, leaving half of the step's work.
case "$*" in
*data.documents*) step=documents half={out}.partial/text.part/train ;;
*data.byte_bpe*) step=byte_bpe half={out}.partial/encoded/train.part ;;
*) step=binarise half={out}.partial/valid.pt99.bin ;;
esac
if mkdir "{folder}/$step" 2>/dev/null; then
  mkdir -p "$(dirname $half)"
  echo half >$half
  kill -9 $PPID
  exit 1
fi
exec {bin}/$(basename "$0") "$@"
"""


def test_interrupted_at_every_step(prepared, texts, tmp_path):
    """Killed in each, then begun again: the same files as in one go; work of others forgotten."""
    out, folder, bin = tmp_path / "data", tmp_path / "bin", Path(sys.executable).parent
    for name in ("python", "fairseq-preprocess"):
        path = write(folder / name, KILLER.format(out=out, folder=folder, bin=bin))
        path.chmod(0o755)
    write(tmp_path / "data.partial" / "source", f"--source named file {texts} 500 \n")
    write(tmp_path / "data.partial" / "text" / "train", "old\n")
    path = f"{folder}:{bin}:{os.environ['PATH']}"
    codes = [prepare(texts, out, *SMALL, PATH=path).returncode for _ in range(4)]
    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert hashes(out) == hashes(prepared)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wikitext"], ["'wikitext'", "wikitext-103, books or a folder"]),
        (["/nowhere"], ["'/nowhere'", "folder"]),
        ([], ["0 words", "CORPUS and OUT", "--help"]),
        (["books"], ["'books'", "FAIRSEQ_EXT_CORPORA"]),
        (["wikitext-103", "--documents", "file"], ["--documents", "'wikitext-103'"]),
        ([".", "--vocabulary", "big"], ["--vocabulary is 'big'", "gpt2"]),
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
    ({"a.txt": "\n \n", "b.txt.gz": "\x00"}, "file", [], "no sentence .* 'train'"),
    ({"valid.txt": "Text."}, "file", [], "no sentence .* 'train'"),
    ({"a.txt": "Text.", "test.txt": " "}, "file", [], "no sentence .* 'test'"),
    ({"a.txt": "A\nb\udcfc\n"}, "file", [], "a.txt, line 2: .* UTF-8"),
    ({"a.txt": "Text."}, "book", [], "'book' and must be one of file, blank, "),
    ({"a.txt": "A.", "valid.txt": "B."}, "file", ["--valid", "1"], "--valid is 1 .*valid.txt"),
]


@pytest.mark.parametrize(("files", "form", "options", "said"), BAD)
def test_bad_corpora(tmp_path, files, form, options, said):
    for name, text in files.items():
        write(tmp_path / "corpus" / name, text)
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
    write(tmp_path / "corpus" / "a.txt", text)
    write(tmp_path / "corpus" / "b.txt", "Text.")
    assert_refused(prepare(tmp_path / "corpus", tmp_path / "out"), said)
    assert not list(tmp_path.glob("out*"))


# Downloads.

DOWNLOADS = ("wikitext-103-raw-v1.zip", "encoder.json", "vocab.bpe")
GPT2 = ("wikitext-103", "--vocabulary", "gpt2")
ARTICLES = " \n = A = \n \n This is {0} 1 @.@ 5 . \n = = B = = \n \n = C = \n \n Here . \n"


@pytest.fixture
def server(tmp_path, english) -> Path:
    """The recipe with addresses and checksums of small files; the folder of these."""
    byte_bpe.learn(english, 400, tmp_path)
    write(tmp_path / "dict.txt", "".join(f"{n} 1\n" for n in range(50260)))
    with zipfile.ZipFile(tmp_path / "wikitext-103-raw-v1.zip", "w") as file:
        for part in documents.PARTS:
            file.writestr(f"wikitext-103-raw/wiki.{part}.raw", ARTICLES.format(part))
    recipe = re.sub(
        r"https://(wikitext.smerity.com|\S+/gpt2_bpe|huggingface.co/\S+/main)",
        tmp_path.as_uri(),
        RECIPE.read_text(),
    )
    sums = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in DOWNLOADS]
    for theirs, ours in zip(re.findall(r"\b[0-9a-f]{64}\b", recipe), sums, strict=True):
        recipe = recipe.replace(theirs, ours)
    write(tmp_path / "scripts" / RECIPE.name, recipe)
    write(tmp_path / "scripts" / "lib.sh", (RECIPE.parent / "lib.sh").read_text())
    return tmp_path


def test_wikitext_and_gpt2(server, tmp_path):
    done = bash(server / "scripts" / RECIPE.name, *GPT2, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "test: 2 documents, " in done.stdout
    assert "This is valid 1.5 .\n" in (tmp_path / "out/text/valid").read_text()
    given = (server / "dict.txt").read_text()
    assert (tmp_path / "out/dict.txt").read_text() == given + "<mask> 0\n"
    assert sorted(path.name for path in (tmp_path / "out/bpe").iterdir()) == [*DOWNLOADS[1:]]
    assert [documents_seen(tmp_path / "out", part) for part in documents.PARTS] == [2, 2, 2]


def test_wikitext_from_a_folder(server, tmp_path):
    """As the archive; the recipe of its own passes options on."""
    write(server / "scripts" / "prepare_wikitext103.sh", WIKITEXT.read_text())
    (tmp_path / "given").mkdir()
    (tmp_path / DOWNLOADS[0]).rename(tmp_path / "given" / DOWNLOADS[0])
    options = [*GPT2[1:], "--offline", tmp_path / "given"]
    done = bash(server / "scripts" / WIKITEXT.name, tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    assert "valid: 2 documents, " in done.stdout
    nowhere = bash(server / "scripts" / WIKITEXT.name, "--offline", tmp_path / "out")
    assert_refused(nowhere, "--offline is", "wiki.train.raw")
    assert_refused(prepare("books", "--offline", tmp_path), "--offline is for wikitext-103")


def test_gpt2_is_checked(server, tmp_path):
    """A given folder comes first; its files are checked as downloads are."""
    recipe = server / "scripts" / RECIPE.name
    corpora = tmp_path / "corpora"
    for part in documents.PARTS:
        write(corpora / "wikitext-103" / f"wiki.{part}.raw", ARTICLES)
    for name in DOWNLOADS[1:]:
        write(corpora / "gpt2_bpe" / name, (server / name).read_text())
    run = [recipe, *GPT2, tmp_path / "out"]
    given = {"FAIRSEQ_EXT_CORPORA": str(corpora)}
    assert_refused(bash(*run, **given), "gpt2_bpe/dict.txt could not be downloaded", code=69)
    write(corpora / "gpt2_bpe" / "dict.txt", "0 1\n")
    assert_refused(bash(*run, **given), "gpt2_bpe/dict.txt", "50260 lines")
    write(corpora / "gpt2_bpe" / "vocab.bpe", "#version: 0.2\n")
    run[-1] = tmp_path / "other"
    assert_refused(bash(*run, **given), "gpt2_bpe/vocab.bpe", "checksum")


class Picky(BaseHTTPRequestHandler):
    def do_GET(self):
        refused = self.headers["User-Agent"].startswith("Python")
        self.send_response(403 if refused else 200)
        self.end_headers()
        self.wfile.write(b"text")

    def log_message(self, *_):
        pass


def test_servers_that_refuse_python():
    with HTTPServer(("127.0.0.1", 0), Picky) as http:
        threading.Thread(target=http.handle_request).start()
        done = lib(f"fetch http://127.0.0.1:{http.server_port}/a", no_proxy="127.0.0.1")
    assert (done.returncode, done.stdout) == (0, "text"), done.stderr


# Real text.


def shortened(source: Path, target: Path, lines: int) -> None:
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as text:
        write(target, "".join(line for line, _ in zip(text, range(lines), strict=False)))


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
