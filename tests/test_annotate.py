"""`fairseq-ext annotate`."""

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from cases import slow_but_first
from corpora import UD, format_conllu, needs_corpora
from fairseq.data import Dictionary, indexed_dataset
from files import read_files
from labelled import write_examples, write_vocabulary
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_ext import cli
from fairseq_ext.data.annotations import Annotations
from fairseq_ext.data.conllu import Sentence, read
from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import byte_bpe
from fairseq_ext.tools import parses


def binarise(folder: Path, name: str, lines: list[str], words: str) -> Path:
    """What fairseq-preprocess makes of a text."""
    folder.mkdir(exist_ok=True)
    known = (folder / words).is_file()
    dictionary = Dictionary.load(str(folder / words)) if known else Dictionary()
    encoded = [dictionary.encode_line(line, add_if_not_exist=not known) for line in lines]
    dictionary.save(str(folder / words))
    path = folder / name
    builder = indexed_dataset.make_builder(f"{path}.bin", "mmap", len(dictionary))
    for line in encoded:
        builder.add_item(line)
    builder.finalize(f"{path}.idx")
    return path


TEXT = ["the c@@ at sat .", "", "it barks", "a dog sat"]
COUNTS = [5, 0, 2, 3]
PARSE = [("The cat sat .", "2 3 0 3"), ("It barks", "2 0"), ("A dog sat", "2 3 0")]
EXPECTED = [
    [[0, 1, 3], [1, 2, 3], [1, 2, 3], [2, -1, 3], [3, 2, 3]],
    [],
    [[0, 1, 3], [1, -1, 3]],
    [[0, 1, 3], [1, 2, 3], [2, -1, 3]],
]


@pytest.fixture
def data(tmp_path):
    binarise(tmp_path / "data", "train.en-de.en", TEXT, "dict.en.txt")
    binarise(tmp_path / "data", "train.en-de.de", TEXT[:2], "dict.de.txt")
    binarise(tmp_path / "data", "train", TEXT, "dict.txt")
    return tmp_path / "data"


@pytest.fixture
def parse(tmp_path):
    (tmp_path / "a.conllu").write_text("".join(format_conllu(*each, "nsubj") for each in PARSE))
    return tmp_path / "a.conllu"


def annotate(data, *flags):
    cli.main(["annotate", str(data), "--split", "train", *map(str, flags)])


def opened(path: Path, words: str, lengths: list[int]) -> list[list[list[int]]]:
    symbols = Dictionary.load(str(path.with_name(words))).symbols
    found = Annotations.open(path.with_name(f"{path.name}.annotations"), symbols, lengths)
    return [record.tolist() for record in found]


@pytest.mark.parametrize(
    ("flags", "name", "words"),
    [(["--lang", "en"], "train.en-de.en", "dict.en.txt"), ([], "train", "dict.txt")],
)
def test_binarised(data, parse, capsys, flags, name, words):
    if not flags:
        for path in data.glob("train.en-de.*"):
            path.unlink()
    annotate(data, "--conllu", parse, *flags)
    assert opened(data / name, words, COUNTS) == EXPECTED
    said = capsys.readouterr().out
    assert f"{name}.annotations: 4 sentences, 10 tokens, 0 sentences without" in said


def test_several_files(data, parse, tmp_path):
    rest = tmp_path / "b.conllu"
    first, *others = parse.read_text().split("\n\n")
    parse.write_text(first)
    rest.write_text("\n\n".join(others))
    annotate(data, "--lang", "en", "--conllu", parse, rest)
    assert opened(data / "train.en-de.en", "dict.en.txt", COUNTS) == EXPECTED


def test_labelled_text(tmp_path, parse):
    """Words that the tokeniser does not know, or changes, are found where they stand."""
    write_vocabulary(tmp_path)
    texts = ["The CAT sat.", " ", "It barks", "a dógs sat"]
    write_examples(tmp_path / "train.jsonl", [{"text": text, "label": "x"} for text in texts])
    parse.write_text(parse.read_text().replace("dog", "dógs"))
    annotate(tmp_path, "--conllu", parse)
    assert opened(tmp_path / "train", "dict.txt", [4, 0, 2, 4]) == [
        [[0, 1, 3], [1, 2, 3], [2, -1, 3], [3, 2, 3]],
        [],
        [[0, 1, 3], [1, -1, 3]],
        [[0, 1, 3], [1, 2, 3], [1, 2, 3], [2, -1, 3]],
    ]


def test_text_of_numbers(tmp_path, parse):
    """fairseq's gpt2 BPE: the dictionary has the numbers of tokens."""
    texts = ["The cat sat .", "It barks", "A dog sat"]
    byte_bpe.learn(texts * 9, 270, tmp_path / "data/bpe")
    bpe = byte_bpe.load_bpe(tmp_path / "data/bpe")
    lines = list(byte_bpe.encode(texts, bpe))
    numbers = map(str, bpe.get_vocab().values())
    (tmp_path / "data/dict.txt").write_text("\n".join(byte_bpe.dictionary(lines, numbers)) + "\n")
    path = binarise(tmp_path / "data", "train", lines, "dict.txt")
    annotate(tmp_path / "data", "--conllu", parse)
    found = opened(path, "dict.txt", [len(line.split()) for line in lines])
    tokens = [bpe.encode(text).tokens for text in texts]
    words = [np.cumsum([token.startswith("Ġ") for token in row]).tolist() for row in tokens]
    assert [[word for word, _, _ in record] for record in found] == words
    with pytest.raises(UsageError, match="no dict.txt"):
        annotate(tmp_path / "data", "--conllu", parse, "--vocabulary", tmp_path)


# What is refused.


def refused(data, *flags) -> str:
    before = read_files(data)
    with pytest.raises(UsageError) as caught:
        annotate(data, *flags)
    assert read_files(data) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pairs_of_sentences_have_no_annotations(tmp_path, parse):
    pairs = [{"text": "a dog sat", "pair": "it barks", "label": "x"}]
    write_examples(write_vocabulary(tmp_path) / "train.jsonl", pairs)
    assert "train.jsonl:1 has a 'pair', and annotations" in refused(tmp_path, "--conllu", parse)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "give --lang, de or en"),
        (["--lang", "fr"], "no train.*-*.fr.bin"),
        (["--lang", "en", "--split", "valid"], "no valid.*-*.en.bin"),
        (["--lang", "en", "--threshold", "5"], "--threshold is 5.0; give a share from 0 to 1"),
        (["--lang", "en", "--mismatches", "/no/such"], "--mismatches is /no/such"),
    ],
)
def test_wrong_flags(data, parse, flags, says):
    assert says in refused(data, "--conllu", parse, *flags)


def test_files_that_are_missing(data, parse, tmp_path):
    flags = ["--lang", "en", "--conllu"]
    assert "no such file" in refused(data, *flags, tmp_path / "b.conllu")
    (data / "dict.en.txt").unlink()
    assert "dict.en.txt is not there" in refused(data, *flags, parse)
    assert "no train.jsonl or train.bin" in refused(tmp_path / "none", "--conllu", parse)
    assert "give the name of a split" in refused(data, "--split", "/dev/full", "--conllu", parse)


def test_empty_split(data, parse):
    binarise(data, "train.en-de.en", [], "dict.en.txt")
    assert "train.en-de.en.bin is empty" in refused(data, "--lang", "en", "--conllu", parse)


@pytest.mark.parametrize(("count", "got"), [(2, 2), (4, 4)])
def test_counts_differ(data, parse, count, got, tmp_path):
    parse.write_text("\n\n".join((parse.read_text() * 2).split("\n\n")[:count]) + "\n")
    listing = tmp_path / "mismatches"
    said = refused(data, "--lang", "en", "--conllu", parse, "--mismatches", listing)
    assert f"has 3 sentences and {parse} {got};" in said
    assert not list(tmp_path.glob("mismatches*"))


def test_faulty_parse(data, parse):
    parse.write_text(parse.read_text().replace("\t3\tnsubj", "\t9\tnsubj", 1))
    said = refused(data, "--lang", "en", "--conllu", parse)
    assert f"{parse}:2 has the HEAD '9'" in said


def test_mismatches(data, parse, tmp_path, capsys):
    parse.write_text(parse.read_text().replace("barks", "bites"))
    listing = tmp_path / "mismatches"
    flags = ["--lang", "en", "--conllu", parse, "--mismatches", listing]
    assert "1 of 4 sentences (25.0%)" in refused(data, *flags)
    assert listing.read_text() == f"2\tit barks\tIt bites\t{parse}:6\n"
    assert "sentence 2 is 'it barks', parsed 'It bites'" in capsys.readouterr().err

    annotate(data, *flags, "--threshold", "0.25")
    found = opened(data / "train.en-de.en", "dict.en.txt", COUNTS)
    assert found[2] == [[-1, -1, 0]] * 2 and found[3] == EXPECTED[3]
    assert "1 sentences without annotations" in capsys.readouterr().out


def test_sentences_that_are_too_long_have_none(data, parse, monkeypatch):
    monkeypatch.setattr(parses, "MOST", 3)
    annotate(data, "--lang", "en", "--conllu", parse, "--threshold", "0.25")
    found = opened(data / "train.en-de.en", "dict.en.txt", COUNTS)
    assert found == [[[-1, -1, 0]] * 5, *EXPECTED[1:]]


def test_shuffled_trees_keep_their_links():
    """The same tree but for the names of its words; the seed decides."""
    sentence = Sentence("a b c d e".split(), [1, 3, 3, -1, 3], ["det", "nsubj", "x", "root", "y"])

    def shuffled(seed):
        matches = [parses.Match([], sentence, [0, 1, 2, 3, 4])] * 20
        return [match.sentence for match in parses.shuffle_trees(matches, seed)]

    def links(tree):
        """Each word's relation, with those on its way to the root: no names of words."""

        def path(word):
            return () if word < 0 else (tree.relations[word], *path(tree.heads[word]))

        return sorted(path(word) for word in range(5))

    first = shuffled(1)
    assert all(links(tree) == links(sentence) and tree.words == sentence.words for tree in first)
    assert len({tuple(tree.heads) for tree in first}) > 10
    assert first == shuffled(1) != shuffled(2)


def test_annotations_of_shuffled_trees(data, parse):
    annotate(data, "--lang", "en", "--conllu", parse, "--shuffle", "1", "--threshold", "0.25")
    folder = data / "train.en-de.en.annotations"
    found = opened(data / "train.en-de.en", "dict.en.txt", COUNTS)
    assert found != EXPECTED and sorted(row[0] for row in found[0]) == [
        row[0] for row in EXPECTED[0]
    ]
    assert any(f"{parse}, shuffled 1" in file.read_text() for file in folder.glob("*.json"))


# Parsers.


class Spacy(ModuleType):
    """Each word depends on the next one; the last, as in spacy, on itself."""

    labels = ["nsubj", "ROOT"]

    def __init__(self):
        super().__init__("spacy")
        self.tokens = SimpleNamespace(Doc=lambda vocab, words: words)

    def load(self, model, exclude):
        if model != "small":
            raise OSError("[E050] Can't find model")
        return SimpleNamespace(vocab=None, pipe=self.pipe, pipe_labels={"parser": self.labels})

    def pipe(self, docs):
        for words in docs:
            places = [SimpleNamespace(i=place) for place in range(len(words))]
            for place, word in enumerate(places):
                word.head = places[min(place + 1, len(places) - 1)]
                word.dep_ = "nsubj"
            yield places


class Stanza(ModuleType):
    def __init__(self):
        super().__init__("stanza")

    def Pipeline(self, lang, *, processors, tokenize_pretokenized, **kwargs):  # noqa: N802
        assert tokenize_pretokenized and "depparse" in processors
        if lang != "en":
            raise FileNotFoundError("no models")
        return self.parse

    def parse(self, batch):
        def word(place, count):
            return SimpleNamespace(head=(place + 2) % (count + 1), deprel="nsubj")

        rows = [[word(place, len(words)) for place in range(len(words))] for words in batch]
        return SimpleNamespace(sentences=[SimpleNamespace(words=row) for row in rows])


@pytest.mark.parametrize(("library", "name"), [(Spacy, "spacy:small"), (Stanza, "stanza:en")])
def test_parsers(data, monkeypatch, library, name):
    monkeypatch.setitem(sys.modules, name.split(":")[0], library())
    annotate(data, "--lang", "en", "--parser", name)
    found = opened(data / "train.en-de.en", "dict.en.txt", COUNTS)
    assert found[1:] == EXPECTED[1:]
    assert found[0] == [[0, 1, 3], [1, 2, 3], [1, 2, 3], [2, 3, 3], [3, -1, 3]]


def test_sentences_that_are_too_long_for_records_have_none(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", Spacy())
    monkeypatch.setattr(parses, "MOST", 3)
    annotate(data, "--lang", "en", "--parser", "spacy:small", "--threshold", "0.25")
    found = opened(data / "train.en-de.en", "dict.en.txt", COUNTS)
    assert found == [[[-1, -1, 0]] * 5, *EXPECTED[1:]]


@pytest.mark.parametrize(
    ("name", "library", "says"),
    [
        ("corenlp:en", None, "give spacy:MODEL"),
        ("spacy", None, "give spacy:MODEL"),
        (
            "spacy:small",
            None,
            r"small needs spacy, which is not installed; pip install 'fairseq_ext\[spacy\]'",
        ),
        ("spacy:large", Spacy(), "python -m spacy download large"),
        ("stanza:fr", Stanza(), r"stanza.download\('fr'\)"),
    ],
)
def test_parsers_that_are_missing(data, monkeypatch, name, library, says):
    monkeypatch.setitem(sys.modules, name.split(":")[0], library)
    with pytest.raises(UsageError, match=says):
        annotate(data, "--lang", "en", "--parser", name)


def test_model_with_other_relations(data, monkeypatch):
    monkeypatch.setattr(Spacy, "labels", ["sb", "oa"])
    monkeypatch.setitem(sys.modules, "spacy", Spacy())
    assert "no nsubj" in refused(data, "--lang", "en", "--parser", "spacy:small")


# Real text.


@needs_corpora
@pytest.mark.parametrize(("path", "sentences", "words"), slow_but_first(reversed(UD)))
def test_universal_dependencies(tmp_path, capsys, path, sentences, words):
    """Their words, one token each, and parted by a small BPE."""
    lines = [" ".join(s.words) for s in read(path) if not any(" " in word for word in s.words)]
    assert len(lines) == sentences
    codes = io.StringIO()
    learn_bpe(lines[:500], codes, 200)
    bpe = BPE(codes)
    for form, texts in {"words": lines, "bpe": list(map(bpe.process_line, lines))}.items():
        binarise(tmp_path / form, "train", texts, "dict.txt")
        annotate(tmp_path / form, "--conllu", path, "--threshold", 0)
        assert f"{sentences:,} sentences" in capsys.readouterr().out
    found = opened(tmp_path / "words/train", "dict.txt", [line.count(" ") + 1 for line in lines])
    for record, sentence in zip(found, read(path), strict=True):
        assert [row[:2] for row in record] == list(map(list, enumerate(sentence.heads)))
