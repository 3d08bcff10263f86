"""The built-in corpus speaks correct English and German; broken corpora are refused by name."""

import gzip
import hashlib
import io
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http.client import HTTPException
from pathlib import Path

import pytest
from files import write_tar

from fairseq_ext import files
from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.prepare import check, extract, fetch
from fairseq_ext.prepare.toy import corpus as builtin
from fairseq_ext.prepare.toy import lexicon

SHA256 = "2533a2204ebca586a6ec03a61cc623dac23e28fe6d3dead53be1e48fd64401cc"


@pytest.fixture(scope="module")
def corpus() -> dict:
    return builtin.corpus(1)


def digest(corpus: dict) -> str:
    lines = (f"{split}\t{en}\t{de}\n" for split, pairs in corpus.items() for en, de in pairs)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_same_for_the_same_seed(corpus):
    assert digest(corpus) == SHA256
    assert digest(builtin.corpus(2)) != SHA256


def test_sizes(corpus):
    assert {s: len(pairs) for s, pairs in corpus.items()} == {
        "train": 12_000,
        "valid": 500,
        "test": 500,
    }
    lengths = [len(text.split()) for pairs in corpus.values() for pair in pairs for text in pair]
    assert min(lengths) == 4 and max(lengths) == 16


@pytest.mark.parametrize("side", [0, 1], ids=["English", "German"])
def test_nothing_twice_and_no_unknown_word(corpus, side):
    texts = {split: [pair[side] for pair in pairs] for split, pairs in corpus.items()}
    everything = sum(texts.values(), [])
    assert len(set(everything)) == len(everything)
    known = set(builtin.words(" ".join(texts["train"])))
    assert set(builtin.words(" ".join(texts["valid"] + texts["test"]))) <= known


def test_every_english_sentence_has_one_german():
    speaker, german = builtin.Speaker(3), {}
    pairs = [speaker.pair() for _ in range(40_000)]
    assert all(german.setdefault(en, de) == de for en, de in pairs)
    assert len(german) < len(pairs)  # some were drawn again


def test_every_word_is_used(corpus):
    spoken = set(builtin.words(" ".join(text for pair in corpus["train"] for text in pair)))
    for noun in lexicon.NOUNS:
        assert {noun.english, noun.english_plural, noun.german, noun.plural} <= spoken
    assert {v.participle for v in lexicon.VERBS + lexicon.CLAUSAL_VERBS} <= spoken


# Checks


def written(folder: Path, **files: bytes) -> list[Path]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def test_the_corpus_is_written_and_passes_the_check(tmp_path, corpus, capsys):
    builtin.main([str(tmp_path / "new" / "folder")])
    assert capsys.readouterr().out == ("built-in corpus, seed 1: 12000 train 500 valid 500 test\n")
    folder = tmp_path / "new" / "folder"
    names = {f"{split}.{language}" for split in corpus for language in ("en", "de")}
    assert {path.name for path in folder.iterdir()} == names
    for split, pairs in corpus.items():
        for side, language in enumerate(("en", "de")):
            text = (folder / f"{split}.{language}").read_bytes().decode()
            assert text == "".join(f"{pair[side]}\n" for pair in pairs)
        assert check.check_parallel(folder / f"{split}.en", folder / f"{split}.de").lines == len(
            pairs
        )


def test_nothing_half_written_under_a_final_name(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(Unfinished, match=r"train\.en cannot be written"):
            builtin.write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]


def test_counts_of_plain_and_compressed_files(tmp_path):
    a, b = written(tmp_path, a=b"one two\nthree\n", b=gzip.compress(b"eins\nzwei drei vier"))
    b = b.rename(tmp_path / "b.gz")
    assert check.check_parallel(a, b) == check.Counts(2, (3, 4), 0)


def test_lines_end_at_line_feeds_only(tmp_path):
    odd = "a\x85b c\u2028d\x0be\n"
    a, b = written(tmp_path, a=(odd * 2).encode(), b=b"x\r\ny\r\n")
    assert list(files.read_lines(a)) == [odd[:-1]] * 2
    assert list(files.read_lines(b)) == ["x", "y"]
    assert check.check_parallel(a, b).lines == 2


def test_empty_sides_are_a_warning(tmp_path, caplog):
    a, b = written(tmp_path, a=b"x\n\ny\n \n", b=b"x\ny\n\nz\n")
    assert check.check_parallel(a, b).empty == 3
    (warning,) = caplog.messages
    assert "3 lines" in warning and "first" in warning and "a, line 2" in warning


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        (b"1\n2\n3\n", b"1\n2\n", ["a has 3 lines", "b has 2"]),
        (b"1\n", b"1\n\n", ["a has 1 lines", "b has 2"]),
        (b"", b"", ["a", "b", "are empty"]),
        (b"x\ngr\xfcn\n", b"x\ny\n", ["a, line 2: byte 3 (0xfc)", "UTF-8"]),
        (b"x\ny\n", b"x\n\xed\xa0\x80\n", ["b, line 2: byte 1 (0xed)", "UTF-8"]),
        (b"x\ny\n", b"x\ny\rz\n", ["b, line 2", "carriage return"]),
    ],
    ids=["longer", "empty last line", "empty", "latin-1", "surrogate", "carriage return"],
)
def test_no_parallel_corpus(tmp_path, a, b, parts):
    a, b = written(tmp_path, a=a, b=b)
    with pytest.raises(UsageError) as error:
        check.check_parallel(a, b)
    assert all(part in str(error.value) for part in [str(tmp_path), *parts])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("missing", "no such file"),
        ("nowhere/a", "no folder"),
        ("", "is a folder"),
        ("plain.gz", "Not a gzipped file"),
        ("cut.gz", "after line"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, name, part):
    (good,) = written(tmp_path, good=b"x\n")
    (tmp_path / "plain.gz").write_bytes(b"x\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x\n" * 100_000)[:-40])
    for pair in [(good, tmp_path / name), (tmp_path / name, good)]:
        with pytest.raises(UsageError, match=part) as error:
            check.check_parallel(*pair)
        assert str(tmp_path / name) in str(error.value)


def test_text_that_is_not_composed_is_warned_of(tmp_path, caplog):
    a, b = written(tmp_path, a="caf\u00e9\ncafe\u0301\n".encode(), b=b"x\ny\n")
    check.check_parallel(a, b)
    assert (
        f"1 pairs of lines are not in Unicode's composed form (NFC), first {a}, line 2"
        in caplog.text
    )


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    a, b = written(tmp_path, a=b"a line of a corpus\n" * 100_000, b=b"noch eine\n" * 100_000)
    tracemalloc.start()
    check.check_parallel(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_writable(tmp_path):
    assert files.check_writable(tmp_path / "not" / "there", 1000) > 1000
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="1000000000 MB are needed"):
        files.check_writable(tmp_path, 10**15)
    (file,) = written(tmp_path, file=b"")
    with pytest.raises(UsageError, match="is a file"):
        files.check_writable(file / "below", 0)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, closed to root as well")
def test_not_writable_even_for_root():
    with pytest.raises(UsageError, match="cannot write in /proc"):
        files.check_writable(Path("/proc/below"), 0)


def test_commands(tmp_path):
    def run(*arguments) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "fairseq_ext.prepare.check", *map(str, arguments)]
        root = Path(__file__).parent.parent
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)

    a, b, c = written(tmp_path, a=b"x y\n", b=b"z\n", c=b"1\n2\n")
    good = run(a, b)
    assert good.returncode == 0
    assert good.stdout == "a, b: 1 lines, 2 and 1 tokens\n"
    bad = run(a, c)
    assert bad.returncode == 1 and not bad.stdout
    assert "Traceback" not in bad.stderr and "same number" in bad.stderr


# Archives and downloads.

GZIPPED = {f"t.{language}.gz": gzip.compress(b"two\n") for language in ("en", "de")}


def extract_archives(tmp_path: Path, archives: dict[str, dict[str, bytes]]) -> list[str]:
    for name, members in archives.items():
        write_tar(tmp_path / "corpus" / name, **members)
    raw = tmp_path / "work" / "raw"
    extract.extract(tmp_path / "corpus", raw, ["en", "de"], {"train": "t.@"})
    return [(raw / f"train.{language}").read_text() for language in ("en", "de")]


@pytest.mark.parametrize(
    "archives",
    [
        {"a.tgz": {"t.en": b"one\n", "t.de": b"eins\n"}, "b.tgz": {"t.en": b"two\n"}},
        {"a.tgz": {"x/t.en": b"one\n", "y/t.en": b"two\n", "y/t.de": b"zwei\n"}},
        {"a.tgz": {"t.en": b"one\n"}, "b.tgz": GZIPPED},
        {"a.tgz": GZIPPED, "b.tgz": {"t.en": b"one\n"}},
    ],
)
def test_archives_with_different_files_of_one_name(tmp_path, archives):
    """The English of one corpus is not paired with the German of another."""
    with pytest.raises(UsageError, match=r".\.tgz has a t\.en.*, and another t\.en .*; leave one"):
        extract_archives(tmp_path, archives)
    assert not (tmp_path / "work" / "raw").exists()


def test_archives_with_the_same_files(tmp_path):
    members = {"x/t.en": b"one\n", "x/t.de": b"eins\n", "y/t.en": b"one\n"}
    archives = {"a.tgz": members, "b.tgz": members}
    assert extract_archives(tmp_path, archives) == ["one\n", "eins\n"]


class Answer(io.BytesIO):
    """A server's answer, which announces a number of bytes."""

    status = 200

    def __init__(self, content: bytes, length: int):
        super().__init__(content)
        self.headers = Message()
        self.headers["Content-Length"] = str(length)


def test_two_downloads_at_once(tmp_path, monkeypatch):
    """The second one waits for the first one, and takes its file."""
    asked = []

    def answer(request, part):
        asked.append(part)
        time.sleep(0.5)
        return Answer(b"content", 7)

    monkeypatch.setattr(fetch, "_open", answer)
    address = fetch.Address("http://127.0.0.1:9/x", "", "x.bin")
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: fetch.fetch([address], tmp_path), range(2)))
    assert found == [tmp_path / "x.bin"] * 2 and len(asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]


def test_a_download_that_another_command_wrote_to(tmp_path):
    part = tmp_path / "x.bin.part"
    part.write_bytes(b"nine byte")  # five when this command began
    with pytest.raises(HTTPException, match="13 bytes have arrived, and 9 were announced"):
        fetch._save(Answer(b"four", 4), part, 5)
