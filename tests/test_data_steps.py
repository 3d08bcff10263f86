"""Steps of data recipes: tokens, byte-pair encoding, lengths, held-out pairs, summaries."""

import errno
import gzip
import json
import os
import re
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import pytest
from corpora import CORPORA, needs_corpora
from hypothesis import given
from hypothesis import strategies as st
from sacremoses.util import xml_unescape
from subword_nmt.learn_bpe import learn_bpe as subword_nmt_learn

from fairseq_ext import files as lines
from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import atomic_writer, list_files, read_lines, write_lines
from fairseq_ext.prepare import (
    bitext,
    check,
    corpora_readers,
    extract,
    gigaword,
    step,
    subwords,
    tokenise,
)
from fairseq_ext.prepare import manifest as summary
from fairseq_ext.prepare.step import map_lines

needs_fastbpe = pytest.mark.skipif(
    subwords.best_tool() != "fastbpe", reason="fastBPE is not installed"
)


def real(name: str, count: int) -> list[str]:
    return list(islice(read_lines(CORPORA / "newstest-en-de" / name), count))


def write(path: Path, *lines: str) -> Path:
    write_lines(path, lines)
    return path


# In parallel.


def shout(lines: list[str]) -> list[str]:
    return [line.upper() for line in lines]


@pytest.mark.parametrize("processes", [1, 2])
def test_lines_keep_their_order(processes):
    lines = [f"line {number}" for number in range(9001)]
    assert list(map_lines(shout, lines, processes)) == shout(lines)


def test_no_more_is_read_than_needed():
    """Memory does not grow with the text."""
    read = Counter()

    def endless():
        while True:
            read["lines"] += 1
            yield "x"

    assert next(map_lines(shout, endless(), 2)) == "X"
    assert read["lines"] < 30_000


def die(lines: list[str]) -> list[str]:
    os._exit(1)


def test_a_process_that_is_killed():
    with pytest.raises(Unfinished, match="a process that worked on the text was killed"):
        list(map_lines(die, ["x"] * 9000, 2))


# Tokens.


def test_no_line_is_lost_or_added(tmp_path):
    strange = ["Zwei\u0085Hunde.", "", "A\u2028B\u00a0C\u3000D", "ÄÖÜ, ẞ!", "\x1cx\x0cy", "Ende"]
    write(tmp_path / "raw" / "train.de", *strange)
    tokenise.main([str(tmp_path / "raw"), str(tmp_path / "out"), "--lowercase"])
    lines = (tmp_path / "out" / "train.de").read_bytes().decode().split("\n")
    assert len(lines) == len(strange) + 1, lines
    assert lines[0] == "zwei hunde ." and lines[3] == "äöü , ß !"


@pytest.mark.parametrize(
    ("options", "text", "tokens"),
    [
        ({}, "Well-known “quotes”", "Well-known &quot; quotes &quot;"),
        ({"normalise": False}, "“quotes”", "“ quotes ”"),
        ({"hyphens": True}, "well-known", "well @-@ known"),
        ({"printed": True}, "a\u200bb\u00adc", "a b c"),
        ({}, "a\u200bb", "a \u200b b"),
        ({"lowercase": True}, "He said 'Yes.'", "he said &apos; yes . &apos;"),
    ],
)
def test_what_options_do(options, text, tokens):
    assert tokenise.MosesPipeline("en", **options)([text]) == [tokens]


def test_a_period_goes_behind_a_quotation_mark_at_the_end_too():
    """As in the Perl script, of German."""
    assert tokenise.MosesPipeline("de")(['Er sagt: "Ja."']) == ["Er sagt : &quot; Ja &quot; ."]


# Byte-pair encoding.


def naive(vocabulary: dict[str, int], merges: int) -> list[tuple[str, str]]:
    """Counts all pairs anew for each merge."""
    words = {(*word[:-1], word[-1] + "</w>"): count for word, count in vocabulary.items()}
    found = []
    while len(found) < merges:
        pairs: Counter = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        found.append(best)
        words = {join(word, best): count for word, count in words.items()}
    return found


def join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    joined: list[str] = []
    rest = list(word)
    while rest:
        size = 2 if tuple(rest[:2]) == pair else 1
        joined.append("".join(rest[:size]))
        del rest[:size]
    return tuple(joined)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 5), max_size=12))
def test_merges_are_those_of_the_naive_way(vocabulary):
    assert list(islice(subwords.learn_merges(vocabulary), 30)) == naive(vocabulary, 30)


@needs_corpora
def test_merges_are_those_of_subword_nmt(tmp_path):
    lines = tokenise.MosesPipeline("en")(real("newstest2009.en.gz", 600))
    train = write(tmp_path / "train.en", *lines)
    with (tmp_path / "codes").open("w", encoding="utf-8") as out, train.open(encoding="utf-8") as f:
        subword_nmt_learn(f, out, 2000)
    assert list(subwords.learn([train], 2000)) == list(read_lines(tmp_path / "codes"))


@needs_fastbpe
@needs_corpora
@pytest.mark.parametrize("language", ["en", "de"])
def test_tools_split_alike(tmp_path, language):
    lines = tokenise.MosesPipeline(language)(real(f"newstest2012.{language}.gz", 3003))
    lines += ["", " ", " x  y ", "x", "日本 語 \u200b 🙂🙂", "@@ a@@ @@b", "&apos;s"]
    codes = write(tmp_path / "codes", *subwords.learn([write(tmp_path / "t", *lines[:900])], 1500))
    one, other = (subwords.splitter(codes, tool)(lines) for tool in subwords.TOOLS)
    assert one == other and "@@" in one[0]


def test_too_many_merges(tmp_path, caplog):
    found = list(subwords.learn([write(tmp_path / "train", "ab ab")], 9))
    assert found == ["#version: 0.2", "a b</w>"]
    assert "of 9 merges, the training text gives 1" in caplog.text


def test_fastbpe_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(subwords, "find_spec", lambda name: None)
    assert subwords.best_tool() == "subword-nmt"
    with pytest.raises(UsageError, match="--bpe is fastbpe, which is not installed"):
        subwords.splitter(tmp_path, "fastbpe")


def test_learned_from_training_text_and_applied_to_all(tmp_path):
    write(tmp_path / "text" / "train.en", "low low", "lower")
    write(tmp_path / "text" / "test.en", "low newer")
    paths = [str(tmp_path / name) for name in ("text", "codes", "out")]
    subwords.main([*paths, "--merges", "2"])
    assert list(read_lines(tmp_path / "codes")) == ["#version: 0.2", "l o", "lo w</w>"]
    assert list(read_lines(tmp_path / "out" / "test.en")) == ["low n@@ e@@ w@@ e@@ r"]
    kept = (tmp_path / "out" / "test.en").stat().st_mtime_ns
    subwords.main([*paths, "--merges", "2"])
    assert (tmp_path / "out" / "test.en").stat().st_mtime_ns == kept


# Pairs.


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("a b", "a b c", True),
        ("a b", "a b c d", False),
        ("a b c d", "a b", False),
        ("", "a", False),
        ("a", "", False),
        ("a b c d e", "a b c d e f", False),
        ("a b c d e", "a b c d e", True),
    ],
)
def test_lengths_that_are_kept(source, target, allowed):
    reason = bitext.Limits(longest=5, ratio=1.5).find_reason(source, target)
    assert (reason is None) is allowed


def test_pairs_are_left_out_before_others_are_held_out(tmp_path):
    texts = [*"abcd", "e e e e", *"fg"]
    for view in ("tokens", "pieces"):
        for language in ("de", "en"):
            lines = [f"{text} {view}" for text in texts]
            write(tmp_path / view / f"train.{language}", *lines)
            write(tmp_path / view / f"test.{language}", "kept " * 9)
    views = {tmp_path / name: tmp_path / f"{name}-sorted" for name in ("tokens", "pieces")}
    counts = bitext.filter_parts(
        ["de", "en"], views, ["train"], bitext.Limits(3, 1.5), bitext.HoldOut(3)
    )
    assert counts["train"].kept == {"train": 4, "valid": 2}
    assert counts["train"].left_out == {"over 3 tokens": 1}
    assert list(read_lines(tmp_path / "pieces-sorted" / "valid.en")) == ["c pieces", "g pieces"]
    assert list(read_lines(tmp_path / "tokens-sorted" / "train.de")) == [
        f"{text} tokens" for text in "abdf"
    ]
    assert list(read_lines(tmp_path / "tokens-sorted" / "test.de")) == ["kept " * 9]


def test_sides_of_different_lengths(tmp_path):
    write(tmp_path / "a" / "train.de", "a", "b")
    write(tmp_path / "a" / "train.en", "a")
    with pytest.raises(UsageError, match=r"train.de has 2 lines and .*train.en has 1"):
        bitext.filter_parts(["de", "en"], {tmp_path / "a": tmp_path / "b"}, ["train"], None)
    assert not list((tmp_path / "b").iterdir())


@pytest.mark.parametrize(
    ("longest", "held_out", "said"),
    [
        (1, bitext.NONE, "train has 2 pairs, of them none, 2 left out .2 for over 1 tokens.; give"),
        (9, bitext.HoldOut(every=3), "of them 2 train, 0 left out; --every 3 holds none out: give"),
        (9, bitext.HoldOut(last=2), "--test-last is 2 and the text has 2 pairs; give a smaller"),
        (9, bitext.HoldOut(every=1, last=1), "of them 1 valid, 1 test, 0 left out; give more text"),
    ],
)
def test_nothing_is_left(tmp_path, longest, held_out, said):
    for language in ("de", "en"):
        write(tmp_path / "a" / f"train.{language}", "a b", "c d")
    limits = bitext.Limits(longest, 1.5)
    with pytest.raises(UsageError, match=said):
        bitext.filter_parts(
            ["de", "en"], {tmp_path / "a": tmp_path / "b"}, ["train"], limits, held_out
        )
    assert not list((tmp_path / "b").iterdir())


def test_the_last_pairs_test_and_reasons_are_counted(tmp_path, capsys):
    """Test pairs stay as they are, whatever their lengths."""
    texts = {"de": ["a", "", "a a a", "a " * 9, "a", "", "b " * 9], "en": [*"aaaaa", "x", "b"]}
    for language, sides in texts.items():
        write(tmp_path / "a" / f"train.{language}", *sides)
    flags = ["--longest", "5", "--test-last", "2", "--every", "2"]
    bitext.main([f"{tmp_path / 'a'}={tmp_path / 'b'}", "--languages", "de", "en", *flags])
    assert capsys.readouterr().out == (
        "train: 7 pairs, of them 1 train, 1 valid, 2 test, 3 left out (1 for an empty side, 1 for "
        "a side over 1.5 times the other, 1 for over 5 tokens)\n"
    )
    assert [*read_lines(tmp_path / "b" / "test.de")] == ["", "b " * 9]
    write(tmp_path / "a" / "test.de", "a")
    with pytest.raises(
        UsageError, match="--test-last 2 makes the part test, and there is .*test.de"
    ):
        bitext.main([f"{tmp_path / 'a'}={tmp_path / 'c'}", "--languages", "de", "en", *flags])


def test_a_part_that_is_held_out_may_not_be_there(tmp_path):
    for name in ("train.de", "train.en", "valid.de", "valid.en"):
        write(tmp_path / "a" / name, *"ab")
    with pytest.raises(UsageError, match="--every 2 makes the part valid, and there is .*valid.de"):
        bitext.filter_parts(
            ["de", "en"], {tmp_path / "a": tmp_path / "b"}, ["train"], None, bitext.HoldOut(2)
        )
    assert not (tmp_path / "b").exists()


def test_text_that_is_tokenised_already(tmp_path):
    write(tmp_path / "raw" / "train.xx", " a\u00a0b\u0085 , \tc. ")
    tokenise.main([str(tmp_path / "raw"), str(tmp_path / "out"), "--tokenised"])
    assert list(read_lines(tmp_path / "out" / "train.xx")) == ["a b , c."]
    assert tokenise.normalise_spaces(["a <unk> </s>."]) == ["a <unk> </s>."]
    for word in ("<s>", "<pad>", "</s>"):  # which fairseq would take for its own
        with pytest.raises(UsageError, match=f"has the word {word} .'b {word}'"):
            tokenise.normalise_spaces(["a", f"b {word}"])


def test_lines_are_named_by_the_files_of_the_user(tmp_path, caplog):
    """A part of two files: the third line of the work is the first one of the second file."""
    corpus = {"a.xx": "a\nb", "a.yy": "a\nb", "b.xx": "c <s>\nd", "b.yy": "\nd"}
    for name, text in corpus.items():
        write(tmp_path / "corpus" / name, text)
    raw = tmp_path / "out.partial" / "raw"
    extract.extract(tmp_path / "corpus", raw, ["xx", "yy"], {"train": "a.@+b.@"})
    check.check_parallel(raw / "train.xx", raw / "train.yy")
    place = tmp_path / "corpus" / "b.xx"
    assert f"1 lines have an empty side, first {place}, line 1" in caplog.text
    with pytest.raises(UsageError, match=f"^{place}, line 1: the line has the word <s>"):
        tokenise.main([str(raw), str(tmp_path / "out"), "--tokenised"])
    for name in corpus:
        (tmp_path / "corpus" / name).write_text("")
    extract.extract(tmp_path / "corpus", tmp_path / "none", ["xx", "yy"], {"train": "a.@"})
    with pytest.raises(UsageError, match="corpus/a.xx and .*corpus/a.yy are empty"):
        check.check_parallel(tmp_path / "none" / "train.xx", tmp_path / "none" / "train.yy")


def test_tokenised_text_is_not_tokenised_again_in_silence(tmp_path, caplog):
    kinds = ["I don &apos;t know", "a well @-@ known &#91; x &#93;", "pie@@ ces", "R&amp;D"]
    write(tmp_path / "raw" / "train.en", *kinds, *["Plain text: a@b.c, x @ y & z;"] * 96)
    write(tmp_path / "raw" / "train.de", "R&amp;D", *["Text."] * 500)
    tokenise.main([str(tmp_path / "raw"), str(tmp_path / "kept"), "--tokenised"])
    assert caplog.text == ""
    tokenise.main([str(tmp_path / "raw"), str(tmp_path / "out")])
    (record,) = caplog.records
    assert "train.en: 4 of 100 lines look tokenised already (first line 1)" in record.message
    assert "give --tokenised" in record.message


def test_a_language_that_sacremoses_does_not_know(tmp_path, caplog):
    write(tmp_path / "raw" / "train.xx", "a.")
    write(tmp_path / "raw" / "train.vi", "a.")
    tokenise.main([str(tmp_path / "raw"), str(tmp_path / "out")])
    assert "no abbreviations of 'xx'" in caplog.text and "'de'" not in caplog.text


# Gigaword.


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("<unk> and UNK .", "unk and unk ."),
        ("UNKNOWN <unk>s #.##", "UNKNOWN <unk>s #.##"),
        (" a  b ", "a b"),
        ("UNK", "unk"),
        ("UNK UNK", "unk unk"),
    ],
)
def test_marks_of_rare_words(line, normal):
    assert gigaword.normalise(line) == normal


def test_gigaword_in_the_layout_of_its_authors(tmp_path):
    for part, name in {"train": "{}.txt", "valid": "{}.filter.txt"}.items():
        for side in ("article", "title"):
            lines = [f"{side} <unk> {number}" for number in range(7)]
            write(tmp_path / "sumdata/train" / f"{part}.{name.format(side)}", *lines)
    write(tmp_path / "sumdata/Giga/input.txt", "test UNK")
    write(tmp_path / "sumdata/Giga/task1_ref0.txt", "UNK test")
    gigaword.extract(tmp_path, tmp_path / "w/raw", valid=3)
    assert list(read_lines(tmp_path / "w/raw/test.title")) == ["unk test"]
    assert list(read_lines(tmp_path / "w/raw/valid.article")) == [
        f"article unk {number}" for number in (0, 2, 4)
    ]
    assert len(list(read_lines(tmp_path / "w/raw/train.title"))) == 7
    assert len(list(read_lines(tmp_path / "w/inputs"))) == 6


def test_sides_of_the_validation_part_of_different_lengths(tmp_path):
    for part, name in {"train": "{}.txt", "valid": "{}.filter.txt"}.items():
        for number, side in enumerate(("article", "title")):
            write(tmp_path / f"{part}.{name.format(side)}", *"ab"[: 2 - number])
    for name in ("input.txt", "task1_ref0.txt"):
        write(tmp_path / name, "a")
    with pytest.raises(UsageError, match="has 2 lines and .* has 1"):
        gigaword.extract(tmp_path, tmp_path / "raw", valid=1)


def test_json_lines_without_a_summary(tmp_path):
    path = write(tmp_path / "test1951.jsonl", '{"text": "a", "summaries": ["b"]}', '{"text": "a"}')
    assert next(gigaword.sentences(path, "title")) == "b"
    with pytest.raises(UsageError, match="line 2: has no text and summaries"):
        list(gigaword.sentences(path, "title"))


def test_lines_are_cut(tmp_path):
    write(tmp_path / "p" / "test.article", "a b c d", "a")
    for part in ("valid", "test"):
        write(tmp_path / "p" / f"{part}.title", "a b c d", "")
    gigaword.main(["truncate", str(tmp_path / "p"), "--positions", "4", "3"])
    assert list(read_lines(tmp_path / "p" / "test.article")) == ["a b c", "a"]
    assert list(read_lines(tmp_path / "p" / "valid.title")) == ["a b", ""]
    assert list(read_lines(tmp_path / "p" / "test.title")) == ["a b c d", ""]  # references


# Summaries.


def test_facts_of_a_text():
    found = summary.measure_text(["a b c", "a", "", "x x"], {"a", "b", "c"})
    lengths = {"50%": 1, "90%": 3, "99%": 3}
    assert found == {"lines": 4, "tokens": 6, "unknown": 2, "lengths": lengths, "longest": 3}


@given(st.lists(st.integers(0, 20), min_size=1), st.sampled_from(summary.SHARES))
def test_percentiles(lengths, share):
    found = summary.percentile(Counter(lengths), share)
    assert sum(n <= found for n in lengths) >= share * len(lengths)
    assert sum(n < found for n in lengths) < share * len(lengths)


def test_manifest(tmp_path):
    source = write(tmp_path / "source.de", "Ein Hund.")
    out = tmp_path / "out"
    write(out / "dict.de.txt", "ein 1", "hund@@ 1")
    write(out / "text" / "train.de", "ein hund .")
    write(out / "inputs", str(source))
    write(out / "binarise.log", "noise")
    write(tmp_path / "pieces" / "train.de", "ein hund@@ e .")
    settings = ["--merges 2", "--train a b"]
    summary.write_manifest(out, tmp_path / "pieces", "prepare_x.sh --merges 2", settings=settings)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["command"] == "prepare_x.sh --merges 2" and manifest["settings"] == settings
    assert set(manifest["outputs"]) == {"dict.de.txt", "text/train.de"}
    assert manifest["inputs"] == {str(source): summary.checksum_of(source, "sha256")}
    assert manifest["text"]["train.de"]["unknown"] == 2
    assert {"python", "sacremoses", "subword-nmt"} <= set(manifest["versions"])
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="none has no files; give the folder of the text"):
        summary.write_manifest(out, tmp_path / "none", "prepare_x.sh")


# Files.


def test_a_file_has_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "a" / "file"

    def lines():
        yield "one"
        raise KeyError

    with pytest.raises(KeyError):
        write_lines(path, lines())
    assert not list(path.parent.iterdir())
    write_lines(path, ["one"])
    assert path.read_bytes() == b"one\n"


def test_a_link_stays(tmp_path):
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    write_lines(tmp_path / "link", ["one"])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "one\n"


def test_a_pipe_is_written_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_lines(tmp_path / "pipe", ["one"])
    assert os.read(reader, 100) == b"one\n" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("before")
    with pytest.raises(Unfinished, match="file/x cannot be written"):
        write_lines(tmp_path / "file" / "x", ["one"])


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "new").symlink_to("/dev/full")
    monkeypatch.setattr(lines, "private_folder", lambda parent: nullcontext(tmp_path / "hidden"))
    with (
        pytest.raises(Unfinished, match="file cannot be written .No space left.*run the same"),
        atomic_writer(tmp_path / "file") as file,
    ):
        file.write("text")


@pytest.mark.parametrize(("error", "code"), [(UsageError, 65), (Unfinished, None), (OSError, None)])
def test_only_text_that_is_refused_has_the_code_of_a_refusal(monkeypatch, error, code):
    def ended(arguments):
        assert arguments == ["a", "b"]
        raise error("said")

    monkeypatch.setattr(check, "main", ended)
    with pytest.raises(SystemExit if code else error) as found:
        step.main(["fairseq_ext.prepare.check", "a", "b"])
    assert code == getattr(found.value, "code", None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\nb\rc\n", "line 2: holds a carriage return"),
        (b"a\nb\0c\n", "line 2: holds U.0000"),
        (gzip.compress(b"a\n" * 9000, mtime=0)[:-9], "cannot be read after line"),
    ],
)
def test_text_that_is_refused(tmp_path, content, said):
    path = tmp_path / ("a.gz" if content[:2] == b"\x1f\x8b" else "a")
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as found:
        list(read_lines(path))
    assert not isinstance(found.value, Unfinished)


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "text").write_text("\ufeffone\n\ufefftwo\n", "utf-8")
    assert list(read_lines(tmp_path / "text")) == ["one", "\ufefftwo"]


def test_a_disk_that_cannot_be_read(tmp_path, monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(lines, "open_binary", broken)
    with pytest.raises(Unfinished, match="cannot be read after line 0 .Input/output error"):
        list(read_lines(tmp_path))


def test_compressed_text_is_read(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress("ä\n".encode()))
    assert list(read_lines(tmp_path / "a.gz")) == ["ä"]


# The outcome of a well-known recipe.

CONTRACTION = re.compile(r" '(?=[a-z])")
ABBREVIATION = re.compile(r"\b(\w+)\.(?= |$)")


@needs_corpora
@pytest.mark.parametrize("part", ["valid", "tst2010", "tst2011", "tst2012", "dev2010"])
@pytest.mark.parametrize("language", ["de", "en"])
def test_iwslt14_of_the_well_known_recipe(part, language):
    """Its tokens, put through our tokeniser again as words, are what they were, but for two rules.

    Lower-casing hides abbreviations (`Nr.`, `Dr.`), whose periods become tokens; and apostrophes
    of English that begin a word are put to the word before, as they were in raw text.
    """
    folder = CORPORA / "iwslt14-de-en"
    path = next(folder.glob(f"{part}.{language}*"))
    tokens = list(read_lines(path))
    words = [xml_unescape(line) for line in tokens]
    if language == "en":
        words = [CONTRACTION.sub("'", line) for line in words]
    again = tokenise.MosesPipeline(language, normalise=False, lowercase=True)(words)
    differing = [pair for pair in zip(tokens, again, strict=True) if pair[0] != pair[1]]
    assert len(differing) <= 0.001 * len(tokens)
    for ours, theirs in differing:
        assert ABBREVIATION.sub(r"\1 .", ours) == theirs


def test_an_odd_number_of_files_is_no_corpora(tmp_path, capsys):
    with pytest.raises(SystemExit):
        check.main([str(write(tmp_path / "train.de", "a"))])
    assert "give two files for each corpus" in capsys.readouterr().err


def test_lines_of_json_are_objects(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}', "[1]")
    with pytest.raises(UsageError, match=r"a.jsonl:2.* is no JSON object"):
        list(corpora_readers.json_lines(path))


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        (tokenise, ["text", ""], "argument OUT: '' is no path; give one, or . for this folder"),
        (gigaword, ["extract", "", "out"], "argument FOLDER: '' is no path"),
        (bitext, ["text=", "--languages", "de", "en"], "'text=' is not VIEW=OUT, two folders"),
        (extract, [".", "out", "--languages", "de", "--parts", ""], "'' is not PART=PATTERN"),
        (bitext, ["", "--languages", "de", "en"], "'' is not VIEW=OUT, two folders"),
        (bitext, ["a=b", "--languages", "de", "en", "--ratio", "nan"], "nan is no number from 1"),
    ],
)
def test_bad_arguments(capsys, module, arguments, said):
    with pytest.raises(SystemExit, match="2"):
        module.main(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("there", "missing"), [("en", "de"), ("de", "en"), ("", "de")])
def test_a_part_that_is_missing_in_a_language(tmp_path, there, missing):
    for language in there.split():
        (tmp_path / f"train.{language}").write_text("a\n")
    views, languages = {tmp_path: tmp_path / "out"}, ["de", "en"]
    with pytest.raises(UsageError, match=f"train.{missing} is missing; give the part train in"):
        bitext.filter_parts(languages, views, ["train"], None)
    assert not (tmp_path / "out").exists()


def test_codes_need_training_text(tmp_path):
    (tmp_path / "valid.de").write_text("a b\n")
    with pytest.raises(
        UsageError, match=r"has no train.LANGUAGE to learn codes from; give a folder"
    ):
        subwords.main([str(tmp_path), str(tmp_path / "codes"), str(tmp_path / "out"), "--merges=1"])
    assert [path.name for path in tmp_path.iterdir()] == ["valid.de"]


def test_a_link_to_nothing_is_not_passed_over(tmp_path):
    (tmp_path / "train.de").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"train.de: a link to a file that is not there; correct"):
        list_files(tmp_path)
