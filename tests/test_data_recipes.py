"""Data recipes from end to end, on a few lines in the layouts in which corpora are published."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from corpora import read_builtin
from fairseq.data import Dictionary, data_utils
from files import write_tar
from shell import assert_refused, bash, run

from fairseq_ext.files import read_lines

pytestmark = pytest.mark.recipe

PAIRS = {language: read_builtin("train", language) for language in ("en", "de")}
CORPORA = os.environ.get("FAIRSEQ_EXT_CORPORA")


def text(language: str, begin: int, end: int) -> bytes:
    return "".join(PAIRS[language][begin:end]).encode()


def segments(language: str, begin: int, end: int) -> bytes:
    lines = enumerate(PAIRS[language][begin:end], 1)
    return "".join(f'<seg id="{n}"> {line.strip()} </seg>\n' for n, line in lines).encode()


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def counts(out: Path, source: str, target: str) -> dict[str, int]:
    """Pairs of each part, as fairseq reads them; nothing is left in the folder but what belongs."""
    dictionary = Dictionary.load(str(out / f"dict.{target}.txt"))
    found = {}
    for part in ("train", "valid", "test"):
        prefix = out / f"{part}.{source}-{target}.{target}"
        data = data_utils.load_indexed_dataset(str(prefix), dictionary)
        found[part] = len(data)
        assert json.loads((out / "manifest.json").read_text())["text"][f"{part}.{target}"][
            "lines"
        ] == len(data)
    extra = {"text", "manifest.json", "bpe.codes", "binarise.log", "preprocess.log"}
    left = {path.name for path in out.iterdir() if path.suffix not in (".bin", ".idx", ".txt")}
    assert left <= extra
    return found


def test_iwslt14(tmp_path):
    talks = {}
    for language in ("de", "en"):
        about = b"<talkid>1</talkid>\n<title>Talk</title>\n"
        talks[f"train.tags.de-en.{language}"] = about + text(language, 0, 230)
        for number, name in enumerate(
            ("TED.dev2010", "TEDX.dev2012", *(f"TED.tst201{y}" for y in "012"))
        ):
            file = f"de-en/IWSLT14.{name}.de-en.{language}.xml"
            talks[file] = segments(language, 300 + number, 302 + number)
    write_tar(tmp_path / "corpus" / "talks.tgz", **talks)
    command = ["prepare_iwslt14.sh", tmp_path / "out", "--offline", tmp_path / "corpus"]
    done = run(*command, "--merges", 60)
    assert counts(tmp_path / "out", "de", "en") == {"train": 221, "valid": 10, "test": 10}
    assert "unknown" in done.stdout and "90%" in done.stdout
    valid = list(read_lines(tmp_path / "out/text/valid.en"))  # the title is the first pair
    assert valid[0] == PAIRS["en"][21].strip().lower().replace(".", " .").replace("  ", " ")
    assert (tmp_path / "out/dict.de.txt").read_text() != (tmp_path / "out/dict.en.txt").read_text()
    assert_refused(bash(ROOT / "scripts" / command[0], *command[1:]), "merges 60'", "merges 10000'")
    again = [*command[:2], "--dictionaries", "separate", "--merges", 60]
    assert "is there already" in run(*again).stdout


@pytest.fixture
def news(tmp_path):
    files = {}
    for language in ("de", "en"):
        for n, name in enumerate(("europarl-v7", "commoncrawl", "news-commentary-v12")):
            files[f"{name}.de-en.{language}"] = text(language, 100 * n, 100 * n + 100)
    files["commoncrawl.de-en.en"] = b"short\n" + files["commoncrawl.de-en.en"].partition(b"\n")[2]
    files["newstest2014-deen-src.de.sgm"] = segments("de", 500, 507)
    files["newstest2014-deen-ref.en.sgm"] = segments("en", 500, 507)
    return put(tmp_path / "corpus", files)


def test_wmt14(tmp_path, news):
    run("prepare_wmt14.sh", tmp_path / "out", "--offline", news, "--merges", 100)
    found = counts(tmp_path / "out", "en", "de")
    assert (found["valid"], found["test"]) == (3, 7)
    for language in ("en", "de"):  # what is left out for its pieces is left out of the text, too
        text = list(read_lines(tmp_path / f"out/text/train.{language}"))
        assert 200 < len(text) == found["train"] < 297
    assert "short" not in (tmp_path / "out/text/train.en").read_text()


def test_an_interrupted_recipe_goes_on(tmp_path, news):
    """Steps that were made are not made again."""
    command = [ROOT / "scripts/prepare_wmt14.sh", tmp_path / "out", "--offline", news]
    broken = tmp_path / "bin" / "fairseq-preprocess"
    begun = f"touch {tmp_path}/out.partial/dict.en.txt"  # which fairseq refuses to overwrite
    put(broken.parent, {broken.name: f"#!/bin/sh\n{begun}; echo No room >&2; exit 1\n".encode()})
    broken.chmod(0o755)
    path = f"{broken.parent}:{os.environ['PATH']}"
    done = bash(*command, "--merges", 100, PATH=path)
    assert_refused_last(done, "Binarising failed: the reason is at the end of")
    assert not (tmp_path / "out").exists()
    again = bash(*command, "--merges", 100)
    assert again.returncode == 0, again.stderr
    assert "Tokenising" not in again.stdout and "Binarising" in again.stdout
    assert counts(tmp_path / "out", "en", "de")["test"] == 7


FULL = """#!/bin/sh
# Python, but for the check of the text, in which it comes to grief.
case "$*" in *prepare.check*) {grief} ;; esac
exec {python} "$@"
"""


@pytest.mark.parametrize(
    ("grief", "code", "said", "kept"),
    [
        ("exec {python} {folder}/full.py", 1, "error: text cannot be written (No space left", True),
        ("kill -9 $$", 137, "", True),
        ("echo Traceback >&2; exit 1", 1, "Traceback", True),
        ("echo error: bad >&2; exit 65", 1, "error: bad", False),
    ],
)
def test_work_is_kept_unless_the_text_is_refused(tmp_path, news, grief, code, said, kept):
    """A full disk, a signal, an error of ours: the next run goes on from there."""
    folder = tmp_path / "bin"
    known = {"python": sys.executable, "folder": folder}
    text = FULL.format(grief=grief.format(**known), **known)
    put(folder, {"python": text.encode(), "full.py": DISK.encode()})
    (folder / "python").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    command = [ROOT / "scripts/prepare_wmt14.sh", tmp_path / "out", "--offline", news]
    done = bash(*command, PATH=path)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert (tmp_path / "out.partial" / ".raw").exists() == kept


DISK = """
import errno
from pathlib import Path
from fairseq_ext.files import atomic_writer
from fairseq_ext.prepare import check, step


def full(arguments):
    with atomic_writer(Path("text")):
        raise OSError(errno.ENOSPC, "No space left on device")


check.main = full
step.main(["fairseq_ext.prepare.check"])
"""


def assert_refused_last(done: subprocess.CompletedProcess, said: str) -> None:
    assert done.returncode == 1 and said in done.stderr.strip().split("\n")[-1], done.stderr


def test_iwslt16_an_archive_in_an_archive(tmp_path):
    inner = {}
    for language in ("en", "de"):
        inner[f"en-de/train.tags.en-de.{language}"] = text(language, 0, 100)
        inner[f"en-de/IWSLT16.TED.tst2013.en-de.{language}.xml"] = segments(language, 200, 203)
        inner[f"en-de/IWSLT16.TED.tst2014.en-de.{language}.xml"] = segments(language, 203, 207)
    content = write_tar(tmp_path / "en-de.tgz", **inner).read_bytes()
    write_tar(tmp_path / "corpus" / "all.tgz", **{"2016-01/texts/en/de/en-de.tgz": content})
    where = ["--offline", tmp_path / "corpus", "--merges", 50, "--bpe", "subword-nmt"]
    run("prepare_iwslt16.sh", tmp_path / "out", *where)
    assert counts(tmp_path / "out", "en", "de") == {"train": 100, "valid": 3, "test": 4}
    other = bash(ROOT / "scripts/prepare_iwslt16.sh", tmp_path / "you", *where, "--sets", "you")
    assert_refused_last(other, "has no IWSLT16.TED.dev2010.en-de.en.xml")


@pytest.mark.parametrize("pieces", ["wordpiece", "bpe"])
def test_gigaword(tmp_path, pieces):
    sides = {
        "article": PAIRS["en"],
        "title": [f"{line.split()[0]} <unk>\n" for line in PAIRS["en"]],
    }
    for side, lines in sides.items():
        put(
            tmp_path / "corpus",
            {
                f"train.{side}.txt": "".join(lines[:300]).lower().encode(),
                f"valid.{side}.filter.txt": "".join(lines[300:320]).lower().encode(),
            },
        )
    put(tmp_path / "corpus", {"input.txt": b"the UNK dog .\n", "task1_ref0.txt": b"UNK dog\n"})
    if CORPORA:
        real = Path(CORPORA) / "gigaword-headline" / "test1951.jsonl.gz"
        for name in ("input.txt", "task1_ref0.txt"):
            (tmp_path / "corpus" / name).unlink()
        with gzip.open(real) as file:
            put(tmp_path / "corpus", {"test1951.jsonl": b"".join(file.readlines()[:9])})
    where = ["--offline", tmp_path / "corpus", "--pieces", pieces, "--positions", "9,5"]
    run("prepare_gigaword.sh", tmp_path / "out", *where, "--merges", 120, "--valid", 10)
    out = tmp_path / "out"
    assert json.loads((out / "manifest.json").read_text())["text"]["train.article"]["longest"] <= 8
    assert len(list(read_lines(out / "text/valid.title"))) == 10
    reference = (out / "text/test.title").read_text()
    assert "UNK" not in reference and "unk" in reference.split()
    assert (out / "wordpiece.txt").exists() == (pieces == "wordpiece")


def test_own_text(tmp_path):
    files = {}
    for language in ("en", "de"):
        files[f"a.{language}"] = text(language, 0, 60)
        files[f"b.{language}"] = text(language, 60, 120)
        files[f"t.{language}"] = text(language, 200, 205)
    own = put(tmp_path / "corpus", files)
    arguments = ["--offline", own, "--train", "a.@+b.@", "--every", 12, "--test", "t.@"]
    run("prepare_parallel.sh", "en", "de", tmp_path / "out", *arguments, "--merges", 50)
    assert counts(tmp_path / "out", "en", "de") == {"train": 110, "valid": 10, "test": 5}


def test_another_command_does_not_take_over_work(tmp_path):
    files = {
        f"{part}.{side}": text(side, 0, 30) for part in ("train", "test") for side in ("en", "de")
    }
    own = put(tmp_path / "corpus", files)
    command = ["prepare_parallel.sh", "en", "de", tmp_path / "out", "--offline", own, "--every", 9]
    done = bash(ROOT / "scripts" / command[0], *command[1:], "--longest", 1)
    assert_refused_last(done, "of them none, 30 left out")
    run(*command, "--lowercase", "--merges", 20)
    train = (tmp_path / "out/text/train.en").read_text()
    assert train == train.lower()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train.de": b"ein\n"}, "train.en has 2 lines and"),
        ({"train.de": b"gut\nein \xfc\n"}, "train.de, line 2: byte 5 (0xfc) is not valid UTF-8"),
        ({"train.en": b"", "train.de": b""}, "are empty; give a corpus"),
    ],
)
def test_what_is_no_parallel_text(tmp_path, change, said):
    good = {
        f"{part}.{side}": b"a b\nc d\n"
        for part in ("train", "valid", "test")
        for side in ("en", "de")
    }
    own = put(tmp_path / "corpus", good | change)
    done = bash(
        *(ROOT / "scripts/prepare_parallel.sh", "en", "de", tmp_path / "out", "--offline", own)
    )
    assert_refused_last(done, said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prepare_wmt14.sh", "--commentary", "v10"], ["'v10'", "v12 v9"]),
        (["prepare_wmt16.sh", "--bpe", "bpe"], ["--bpe is 'bpe'", "fastbpe subword-nmt"]),
        (["prepare_iwslt14.sh", "--merges", "many"], ["--merges is 'many'"]),
        (["prepare_iwslt15.sh", "--offline", "/nowhere"], ["--offline is '/nowhere'"]),
        (["prepare_iwslt16.sh", "--sets", "all"], ["--sets is 'all'", "usual you"]),
        (["prepare_gigaword.sh", "--pieces", "bpe", "--wordpiece", "x"], ["--wordpiece", "is bpe"]),
        (["prepare_gigaword.sh", "--bpe", "fastbpe"], ["--bpe", "--pieces is wordpiece"]),
        (["prepare_gigaword.sh", "--merges", "9", "--wordpiece", "x"], ["--merges", "--wordpiece"]),
        (["prepare_gigaword.sh", "--dictionaries", "separate"], ["'--dictionaries'", "--help"]),
        (["prepare_builtin.sh", "--offline", "/tmp"], ["'--offline'", "--help"]),
        (["prepare_gigaword.sh"], ["never downloaded", "--offline"]),
        (["prepare_gigaword.sh", "--pieces", "x"], ["--pieces is 'x'", "wordpiece bpe"]),
        (["prepare_gigaword.sh", "--positions", "9"], ["--positions is '9'", "128,64"]),
        (["prepare_gigaword.sh", "--positions", "9,"], ["--positions is '9,'", "128,64"]),
        (["prepare_gigaword.sh", "--positions", "1,64"], ["--positions is '1,64'", "from 2"]),
        (
            ["prepare_parallel.sh", *("en", "de", "/tmp/nowhere", "--offline", "/tmp")]
            + ["--ratio", "0.5"],
            ["--ratio is '0.5'", "from 1 upwards"],
        ),
        (["prepare_parallel.sh", "en"], ["SOURCE, TARGET and OUT are needed"]),
        (
            ["prepare_parallel.sh", "en", "en", "/tmp/nowhere"],
            ["are both 'en': give two"],
        ),
        (["prepare_parallel.sh", "en", "de", "/tmp/nowhere"], ["--offline is needed"]),
        (
            [*("prepare_parallel.sh", "en", "de", "/tmp/nowhere"), "--offline", "/tmp"]
            + ["--train", "part*.@"],
            ["--train is 'part*.@'", "name each of them, joined by +"],
        ),
        (["prepare_multi30k.sh", "a", "b"], ["2 words are given"]),
        (["prepare_multi30k.sh", "--dictionaries", "one"], ["'one'", "joined separate"]),
    ],
)
def test_bad_arguments(arguments, said):
    script, *rest = arguments
    assert_refused(bash(ROOT / "scripts" / script, *rest), *said)


@pytest.mark.parametrize("gone", [False, True])
def test_work_from_text_that_changed_begins_again(tmp_path, gone):
    """Old text is not prepared under a manifest that names the new one."""
    code = f'. "{ROOT}/scripts/lib/data.sh"; WORK=$1; open_work same; ls "$WORK"'
    work, text = tmp_path / "out.partial", tmp_path / "train.en"
    text.write_text("old")
    work.mkdir()
    for name, content in {"made": "x", "source": "same\n", "inputs": f"{text}\n"}.items():
        (work / name).write_text(content)
    assert bash("-c", code, "-", work).stdout.split() == ["inputs", "made", "source"]
    text.unlink() if gone else text.write_text("new")
    done = bash("-c", code, "-", work)
    said = f"{text} has changed since this was begun, so that it begins again."
    assert done.stdout.split("\n") == [said, "source", ""]
