"""Documents, sentences and byte-level BPE of text for masked language modelling."""

import json

import pytest
from conftest import ROOT
from fairseq.data import Dictionary
from fairseq_bpe import STRANGE, assert_as_fairseq
from files import hash_files, write_text
from nltk.tokenize.punkt import PunktSentenceTokenizer

from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import byte_bpe, documents

RECIPE = ROOT / "scripts/prepare_mlm.sh"


# Forms and parts.

GUTENBERG = (
    "by N.\n{0}START OF THE BOOK{1}\n\nOne\ntwo\n\n{0}END OF THE BOOK{1}\nlaw\n{0}START: L\n"
)


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("file", "\n One\ntwo \n\n \nthree\n", ["One two", "three", ""]),
        ("file", "\ufeffe\u0301\t a\u0085b\x0c\n\x01\n\nc", ["\u00e9 a b", "c", ""]),
        ("file", "One\rtwo\nthree", ["One two three", ""]),
        ("file", "\n\n", [""]),
        ("blank", "One\ntwo\n\n\nthree", ["One", "two", "", "", "three", ""]),
        (
            "wikitext",
            " \n = A = \n \n = = B = = \n \n x @-@ y 1 @,@ 000 0 @.@ 5 @ \n = z = \n \n = C D = \n",
            ["", "= A =", "= = B = =", "x-y 1,000 0.5 @", "= z =", "", "= C D =", ""],
        ),
        ("gutenberg", GUTENBERG.format("*** ", " ***"), ["One two", ""]),
        ("gutenberg", GUTENBERG.format("***", "***"), ["One two", ""]),
    ],
)
def test_forms(tmp_path, form, text, expected):
    source = documents.Source("train", form, write_text(tmp_path / "a.txt", text))
    assert list(documents.read_paragraphs([source])) == expected


def test_documents_without_text_leave_nothing():
    text = ["", "It rains. We stay.", "Title", "", "", "End.", ""]
    lines = documents.split_sentences(text, PunktSentenceTokenizer())
    assert list(lines) == ["It rains.", "We stay.", "Title", "", "End."]


def test_a_file_without_text_is_named(tmp_path, caplog):
    path = write_text(tmp_path / "a.txt", "no marker\n")
    assert list(documents.read_paragraphs([documents.Source("train", "gutenberg", path)])) == [""]
    assert str(path) in caplog.text and "gutenberg" in caplog.text


def test_abbreviations_are_learned():
    names = "Peter Mary John Anna Karl Eva".split()
    text = [
        f"At noon we went home with Dr. {n} and home is far. We like {n} far too." for n in names
    ]
    splitter = documents.learn_sentences(text * 3)
    assert splitter.tokenize("With Dr. Eva at home. We went.") == [
        "With Dr. Eva at home.",
        "We went.",
    ]


def test_files_of_a_folder(tmp_path):
    names = {
        "b.txt": "train",
        "A.txt.gz": "train",
        "x/wiki.Valid.txt": "valid",
        "x/contest-invalid.txt": "train",
        "test_1/a.txt": "test",
        "dev.txt": "valid",
        "wiki.val.txt": "valid",
        "development/a.txt": "valid",
        "device-values.txt": "train",
    }
    for name in [*names, "c.md", ".d.txt", ".hidden/b-copy.txt", "b.txt.gz"]:  # b.txt, packed
        write_text(tmp_path / name, "text")
    found = documents.find_sources("named", "file", tmp_path)
    assert {s.path.relative_to(tmp_path).as_posix(): s.part for s in found} == names
    assert [s.path.name for s in found][:2] == ["A.txt.gz", "b.txt"]
    assert {s.part for s in documents.find_sources("train", "file", tmp_path)} == {"train"}


def test_a_file_alone_has_the_part_that_its_name_says(tmp_path):
    names = {"book.valid.txt": "valid", "contest-invalid.txt": "train"}
    for name, part in names.items():
        path = write_text(tmp_path / "test" / name, "text")
        assert documents.find_sources("named", "blank", path) == [(part, "blank", path)]
        assert documents.find_sources("test", "blank", path) == [("test", "blank", path)]


@pytest.mark.parametrize("place", ["", "a.txt"])
def test_parts_are_those_of_the_corpus(tmp_path, place):
    write_text(tmp_path / "a.txt", "text")
    with pytest.raises(
        UsageError, match="^PART is 'validation' and must be one of train, valid, t"
    ):
        documents.find_sources("validation", "file", tmp_path / place)


@pytest.mark.parametrize(
    ("text", "wanted", "held"),
    [
        (["a", "b", "", "c", "", "d", "e"], None, [["b"], ["e"]]),
        (["a", "b", "", "c", "", "d", "e"], 2, [["c"], ["d", "e"]]),
        (["a", "b", "c"], None, [["c"]]),
        ([f"{n}" for n in range(250)], None, [["248", "249"]]),
        ([*"abcde", "", *"fghijklmnopqrstuvwxyz"], None, [["e"], ["z"]]),
        (["a", "", "b"], None, [["b"]]),
        (["a", "", "b", "", "c", "", "d"], None, [["c"], ["d"]]),
        (["a", ""] * 299 + ["z"], None, [["a"], ["a"], ["z"]]),
    ],
)
def test_hold_out(tmp_path, text, wanted, held):
    train = write_text(tmp_path / "train", "".join(f"{line}\n" for line in text))
    before = list(documents._read_documents(train))
    documents.hold_out(train, tmp_path / "valid", wanted)
    assert list(documents._read_documents(tmp_path / "valid")) == held
    kept = list(documents._read_documents(train))
    assert sorted(sum(kept + held, [])) == sorted(sum(before, []))
    assert all(any(own == each[: len(own)] for each in before) for own in kept)


def test_few_books_are_not_held_out_whole():
    """Two books give the ends of both, many documents the last ones whole."""
    assert documents.choose_held_out([3902, 4983]) == [39, 49]
    assert documents.choose_held_out([100] * 300) == [0] * 297 + [100] * 3


def test_a_corpus_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="nowhere: there is no such file or folder; correct"):
        documents.find_sources("train", "file", tmp_path / "nowhere")


def test_a_folder_that_has_something_in_it_is_left_as_it_is(tmp_path):
    write_text(tmp_path / "out" / "mine", "text")
    corpus = documents.find_sources("train", "file", write_text(tmp_path / "corpus", "A b.\n"))
    for out in (tmp_path / "out", tmp_path / "corpus"):
        with pytest.raises(UsageError, match=f"^{out} is there already; delete it, or give anoth"):
            documents.prepare(out, corpus)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["corpus", "mine", "out"]


@pytest.mark.parametrize(
    ("text", "wanted", "said"), [("a\n\nb\n", 2, "2 documents"), ("a\n", None, "a single sentence")]
)
def test_too_much_held_out(tmp_path, text, wanted, said):
    with pytest.raises(UsageError, match=said):
        documents.hold_out(write_text(tmp_path / "train", text), tmp_path / "valid", wanted)


# Byte-level BPE.


def stop_within(patch: pytest.MonkeyPatch, name: str, *, skipped: bool) -> None:
    """Interrupted in the first call of a function of byte_bpe, or in the second."""
    original, calls = getattr(byte_bpe, name), []

    def lines(*args):
        calls.append(args)
        result = original(*args)
        if len(calls) <= skipped:
            yield from result
        else:
            yield next(result)
            raise KeyboardInterrupt

    def save(bpe, folder):
        write_text(folder / "vocab.bpe", "half")
        raise KeyboardInterrupt

    patch.setattr(byte_bpe, name, save if name == "save" else lines)


def test_bpe_is_fairseqs(tmp_path, english, monkeypatch):
    monkeypatch.setattr(byte_bpe, "BATCH", 7)
    byte_bpe.learn(english, 500, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.json", "vocab.bpe"]
    assert sorted(json.loads((tmp_path / "encoder.json").read_text("ascii")).values()) == [
        *range(500)
    ]
    assert_as_fairseq(tmp_path, english + STRANGE)


@pytest.mark.parametrize(
    ("size", "said"), [(256, "256 tokens"), (9000, "gives 2.. tokens at most")]
)
def test_sizes_that_cannot_be(tmp_path, size, said):
    with pytest.raises(UsageError, match=said):
        byte_bpe.learn(["abab abab"], size, tmp_path / "bpe")
    assert not (tmp_path / "bpe").exists()


def test_dictionary_is_sorted_as_fairseqs(tmp_path):
    encoded = ["10 2 2", "", "3 10"]
    theirs = Dictionary()
    for token, count in [("2", 2), ("10", 2), ("3", 1), ("11", 0), ("4", 0)]:
        theirs.add_symbol(token, count)
    theirs.finalize(padding_factor=1)
    theirs.add_symbol("<mask>", 0)
    theirs.save(str(tmp_path / "dict.txt"))
    lines = list(byte_bpe.dictionary(encoded, ["4", "3", "2", "11", "10"]))
    assert lines == (tmp_path / "dict.txt").read_text().splitlines()
    assert lines[-1] == "<mask> 0"


@pytest.mark.parametrize("step", ["save", "encode train", "encode valid", "dictionary"])
def test_encoding_goes_on_where_it_was(tmp_path, english, monkeypatch, step):
    """Stopped after half of each step; then the same files as in one go."""
    for part, lines in (("train", english), ("valid", english[:9])):
        write_text(tmp_path / "text" / part, "".join(f"{line}\n" for line in lines))

    def run(name: str) -> dict[str, str]:
        byte_bpe.prepare(tmp_path / "text", tmp_path / name / "bpe", tmp_path / name / "out", 400)
        return hash_files(tmp_path / name)

    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = run("whole")
    name, part = f"{step} ".split(" ", 1)
    with monkeypatch.context() as patch:
        stop_within(patch, name, skipped=part.strip() == "valid")
        with pytest.raises(KeyboardInterrupt):
            run("parts")
    assert hash_files(tmp_path / "parts") != whole
    assert run("parts") == whole
