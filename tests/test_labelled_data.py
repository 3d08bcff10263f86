"""Labelled examples: tags, windows, rows, files, vocabularies, batches."""

import json
import re

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st
from labelled import WORDS, write_examples, write_vocabulary

from fairseq_ext.data.examples import in_fold, parse, read
from fairseq_ext.data.reordered import BUCKET
from fairseq_ext.data.rows import (
    IGNORED,
    Item,
    LabelledDataset,
    Row,
    Rows,
    best_span,
    fit,
    span,
    windows,
)
from fairseq_ext.data.tags import (
    SCHEMES,
    Entity,
    describe_fault,
    entities,
    first_fault,
    write,
)
from fairseq_ext.data.vocabulary import Vocabulary, load_bpe
from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import byte_bpe
from fairseq_ext.tasks.multiple_choice import MultipleChoiceTask
from fairseq_ext.tasks.sentences import SentenceClassificationTask, SentenceRegressionTask
from fairseq_ext.tasks.sequence_tagging import SequenceTaggingTask
from fairseq_ext.tasks.span_extraction import SpanExtractionTask

# Tags.

TAGS = st.lists(st.sampled_from(["O", *(f"{mark}-{kind}" for mark in "BIES" for kind in "ab")]))


@st.composite
def marked(draw):
    """Entities, many of which touch, and the number of tokens they are in."""
    found, place = [], 0
    for kind in draw(st.lists(st.sampled_from(["a", "b-c"]), max_size=6)):
        first = place + draw(st.integers(0, 2))
        last = first + draw(st.integers(0, 3))
        found.append(Entity(kind, first, last))
        place = last + 1
    return found, place + draw(st.integers(0, 2))


WORKED = [Entity("a", 0, 1), Entity("a", 2, 2), Entity("b", 3, 5), Entity("a", 7, 7)]


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("iob1", "I-a I-a B-a I-b I-b I-b O I-a"),
        ("iob2", "B-a I-a B-a B-b I-b I-b O B-a"),
        ("bioes", "B-a E-a S-a B-b I-b E-b O S-a"),
    ],
)
def test_schemes(scheme, tags):
    assert entities(tags.split()) == WORKED
    assert write(WORKED, 8, scheme) == tags.split()


@pytest.mark.parametrize("scheme", SCHEMES)
@given(marked=marked())
def test_what_is_written_is_read(marked, scheme):
    found, length = marked
    tags = write(found, length, scheme)
    assert entities(tags) == found and first_fault(tags, scheme) is None


@given(tags=TAGS)
def test_every_sequence_has_the_meaning_of_conll(tags):
    """An entity begins and ends where conlleval's rules, which look at two tags, say so."""
    marks = ["O", *(tag[0] for tag in tags), "O"]
    kinds = ["", *(tag[2:] for tag in tags), ""]

    def parted(place):  # between a tag and the one before it
        return (
            marks[place] in "BSO" or marks[place - 1] in "ESO" or kinds[place] != kinds[place - 1]
        )

    inside = [place for place in range(1, len(tags) + 1) if marks[place] != "O"]
    first = [place for place in inside if parted(place)]
    last = [place for place in inside if parted(place + 1)]
    assert entities(tags) == [
        Entity(kinds[one], one - 1, end - 1) for one, end in zip(first, last, strict=True)
    ]


@pytest.mark.parametrize(
    ("scheme", "tags", "place"),
    [
        ("iob1", "B-a I-a", 0),  # only where two touch
        ("iob1", "I-a B-b", 1),
        ("iob2", "B-a I-b", 1),
        ("iob2", "O I-a", 1),
        ("iob2", "B-a E-a", 1),
        ("bioes", "B-a I-a O", 1),
        ("bioes", "O B-a", 1),
        ("bioes", "S-a I-a E-a", 1),
        ("iob2", "O NN O", 1),
        ("iob2", "O", None),
    ],
)
def test_the_first_fault(scheme, tags, place):
    assert first_fault(tags.split(), scheme) == place


@pytest.mark.parametrize(
    ("tag", "scheme", "said"),
    [
        ("0", "iob2", "is not the letter O; write O"),
        ("o", "iob2", "is not the letter O; write O"),
        ("B_X", "iob2", "is no tag of an entity; write B-X"),
        ("i-per", "iob1", "is no tag of an entity; write I-per"),
        ("L-PER", "bioes", "is no tag of an entity; write E-PER"),
        ("U-PER", "bioes", "is no tag of an entity; write S-PER"),
        ("I-X", "iob2", "where iob2 has another; give --tag-scheme, one of iob1, iob2, bioes"),
        ("B", "iob2", "names no kind; write B-KIND, or give --tag-scheme none"),
        ("B-", "iob2", "names no kind; write B-KIND, or give --tag-scheme none"),
        ("DT", "iob2", "marks no entity, .* or give --tag-scheme none for tags without"),
        ("", "none", "is empty; write a tag"),
    ],
)
def test_what_a_wrong_tag_is_not(tag, scheme, said):
    assert first_fault([tag], scheme) == 0
    assert re.search(said, describe_fault(tag, scheme))


# Windows.

SMALL = st.integers(1, 12)


@given(length=st.integers(0, 40), room=SMALL, stride=SMALL)
def test_windows(length, room, stride):
    """A further one as long as the last left something out, and nothing between two."""
    step = max(1, min(stride, room // 2))
    count = 1 + sum(1 for seen in range(room, length, step) if seen < length)
    expected = [(n * step, min(n * step + room, length)) for n in range(count)]
    assert list(windows(length, room, stride)) == expected


@given(
    parts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=9),
    start=st.integers(0, 20),
    size=st.integers(1, 5),
)
def test_spans_of_characters(parts, start, size):
    """Of pieces with gaps of so many characters before them."""
    ends = np.cumsum([sum(part) for part in parts], dtype=int)
    offsets = np.stack([ends - [length for _, length in parts], ends], 1).astype(int)
    wanted = set(range(start, start + size))
    found = [place for place, (a, b) in enumerate(offsets) if wanted & set(range(a, b))]
    assert span(offsets, start, start + size) == ((found[0], found[-1]) if found else None)


@given(
    scores=st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=9),
    longest=st.integers(1, 10),
)
def test_the_best_span(scores, longest):
    starts, ends = np.array(scores, float).T
    sums = {
        (first, last): starts[first] + ends[last]
        for first in range(len(scores))
        for last in range(first, min(first + longest, len(scores)))
    }
    score, first, last = best_span(starts, ends, longest)
    assert score == max(sums.values()) == sums[first, last]


# Rows.


def shorten(lengths, room, cut):
    """One token at a time: of equal lengths that which was not the longer at first gives one."""
    kept = list(lengths)
    loses = 0 if kept[0] < kept[-1] else len(kept) - 1
    while sum(kept) > room:
        if cut is not None and kept[cut]:
            kept[cut] -= 1
        elif cut is None and len(set(kept)) == 1:
            kept[loses] -= 1
        else:
            kept[kept.index(max(kept))] -= 1
    return kept


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=2),
    room=st.integers(2, 20),
    data=st.data(),
)
def test_what_is_too_long_loses_its_end(lengths, room, data):
    cut = data.draw(st.sampled_from([None, *range(len(lengths))]))
    assert fit(lengths, room, cut) == shorten(lengths, room, cut)


@pytest.fixture
def dictionary():
    made = Dictionary()
    for word in "abcdefgh":
        made.add_symbol(word)
    return made


def numbers(dictionary, text):
    return np.array([dictionary.index(symbol) for symbol in text.split()], int)


@pytest.mark.parametrize(
    ("separators", "room", "parts", "tokens", "segments", "first", "kept"),
    [
        (2, 8, ["a b"], "<s> a b </s>", "0000", [1], [2]),
        (2, 9, ["a b", "c"], "<s> a b </s> </s> c </s>", "0000011", [1, 5], [2, 1]),
        (1, 9, ["a b", "c"], "<s> a b </s> c </s>", "000011", [1, 4], [2, 1]),
        (1, 8, ["", "a"], "<s> </s> a </s>", "0011", [1, 2], [0, 1]),
        (2, 8, ["a", ""], "<s> a </s> </s> </s>", "00001", [1, 4], [1, 0]),
        (2, 4, ["a b c"], "<s> a b </s>", "0000", [1], [2]),
        (2, 8, ["a b c d", "e f g"], "<s> a b </s> </s> e f </s>", "00000111", [1, 5], [2, 2]),
        (1, 8, ["a b c d", "e f g"], "<s> a b c </s> e f </s>", "00000111", [1, 5], [3, 2]),
        (1, 6, ["a", "b c d e"], "<s> a </s> b c </s>", "000111", [1, 3], [1, 2]),
    ],
)
def test_rows(dictionary, separators, room, parts, tokens, segments, first, kept):
    rows = Rows(dictionary, room, separators, strict=False)
    row = rows.make([numbers(dictionary, part) for part in parts], "x:1")
    assert row.tokens.tolist() == numbers(dictionary, tokens).tolist()
    assert "".join(map(str, row.segments)) == segments
    assert (row.first, row.kept) == (first, kept)
    assert len(row.tokens) == 1 + sum(kept) + 1 + separators * (len(parts) - 1) <= room


def test_an_example_of_several_rows_counts_once(dictionary):
    rows = Rows(dictionary, 4, 2, strict=False)
    for where, text in [("x:1", "a b"), ("x:2", "a b c"), ("x:2", "a b c"), ("x:3", "a b c")]:
        rows.make([numbers(dictionary, text)], where)
    assert list(rows.lost) == ["x:2", "x:3"]


def test_the_end_of_a_chosen_part_goes_first(dictionary):
    rows = Rows(dictionary, 8, 1, strict=False)
    parts = [numbers(dictionary, "a b"), numbers(dictionary, "c d e f")]
    assert rows.make(parts, "x:1", cut=0).kept == [1, 4]
    assert rows.make(parts, "x:1").kept == [2, 3]


def test_strict(dictionary):
    rows = Rows(dictionary, 8, 1, strict=True)
    rows.make([numbers(dictionary, "a b c"), numbers(dictionary, "d e")], "x:1")
    with pytest.raises(UsageError, match="x:2 has 6 tokens, and a row has room for 5; .* --strict"):
        rows.make([numbers(dictionary, "a b c"), numbers(dictionary, "d e f")], "x:2")


# Files.

SPAN = {"text": "t", "question": "q", "answers": [{"text": "t", "start": 0}]}
GOOD = [
    (SentenceClassificationTask, {"text": "", "label": "x"}),
    (SentenceClassificationTask, {"text": "a", "pair": "", "label": "0", "source": 3}),
    (SentenceRegressionTask, {"text": "a", "label": 3}),
    (SentenceRegressionTask, {"text": "a", "pair": "b", "label": -0.5}),
    (MultipleChoiceTask, {"text": "a", "choices": ["b", ""], "label": 1}),
    (MultipleChoiceTask, {"text": "a", "question": "q", "choices": ["b", "c"], "label": 0}),
    (SequenceTaggingTask, {"words": ["a", ""], "tags": ["O", "O"]}),
    (SpanExtractionTask, SPAN),
    (SpanExtractionTask, SPAN | {"id": "7", "answers": []}),
]


@pytest.mark.parametrize(("task", "example"), GOOD)
def test_examples_have_what_is_to_be_predicted(tmp_path, task, example):
    path = write_examples(tmp_path / "x.jsonl", [example])
    assert read(path, task.fields) == [(example, f"{path}:1")]
    (target,) = (key for key, field in task.fields.items() if field.target)
    unlabelled = {key: value for key, value in example.items() if key != target}
    write_examples(path, [unlabelled])
    with pytest.raises(UsageError, match=rf"x\.jsonl:1 has no '{target}'"):
        read(path, task.fields)


@pytest.mark.parametrize(
    ("task", "key", "value"),
    [
        (SentenceClassificationTask, "text", None),
        (SentenceClassificationTask, "pair", ["b"]),
        (SentenceClassificationTask, "label", 1),
        (SentenceRegressionTask, "text", 5),
        (SentenceRegressionTask, "label", "3.5"),
        (SentenceRegressionTask, "label", True),
        (SentenceRegressionTask, "label", None),
        (MultipleChoiceTask, "question", 1),
        (MultipleChoiceTask, "choices", ["b"]),
        (MultipleChoiceTask, "choices", ["b", 2]),
        (MultipleChoiceTask, "choices", "bc"),
        (MultipleChoiceTask, "label", "1"),
        (MultipleChoiceTask, "label", True),
        (MultipleChoiceTask, "label", 1.0),
        (SequenceTaggingTask, "words", "a b"),
        (SequenceTaggingTask, "words", []),
        (SequenceTaggingTask, "tags", [1, 2]),
        (SpanExtractionTask, "question", None),
        (SpanExtractionTask, "answers", "t"),
        (SpanExtractionTask, "answers", ["t"]),
        (SpanExtractionTask, "answers", [{"text": "t"}]),
        (SpanExtractionTask, "answers", [{"text": "t", "start": True}]),
        (SpanExtractionTask, "answers", [{"text": 5, "start": 0}]),
    ],
)
def test_a_value_of_another_kind_is_refused(tmp_path, task, key, value):
    good = next(example for kind, example in GOOD if kind is task)
    path = write_examples(tmp_path / "x.jsonl", [good, good | {key: value}])
    with pytest.raises(UsageError, match=rf"x\.jsonl:2 has .* as '{key}'; give "):
        read(path, task.fields)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "is no JSON object; give one with text, pair, label"),
        ("a touching film", "is no JSON object"),
        ('["a"]', "is no JSON object"),
        ('{"text": "a", "label": "x"', "is no JSON object"),
        ("{}", r"has no 'text' \(it has none\); give a text"),
        ('{"sentence": "a", "label": "x"}', r"has no 'text' \(it has sentence, label\)"),
        ('{"text": "a"}', r"has no 'label' \(it has text\); give the name of a class"),
    ],
)
def test_lines_that_are_no_example_are_refused(tmp_path, line, says):
    path = write_examples(tmp_path / "x.jsonl", [{"text": "a\u0085b\u2028", "label": "x"}])
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(UsageError, match=rf"x\.jsonl:2 {says}"):
        read(path, SentenceClassificationTask.fields)


def test_files_that_are_not_there_or_empty_are_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    with pytest.raises(UsageError, match=r"x\.jsonl is not there; make it with scripts/"):
        read(path, SentenceClassificationTask.fields)
    path.touch()
    with pytest.raises(UsageError, match=r"x\.jsonl is empty; give at least one example"):
        read(path, SentenceClassificationTask.fields)


def test_lines_are_numbered_from_anywhere():
    lines = [("new:7", '{"text": "a", "label": "x"}'), ("new:8", "b")]
    found = parse(lines, SentenceClassificationTask.fields)
    assert next(found) == ({"text": "a", "label": "x"}, "new:7")
    with pytest.raises(UsageError, match="new:8 is no JSON object"):
        next(found)


@given(folds=st.integers(2, 10), more=st.integers(0, 40))
def test_folds(folds, more):
    count = folds + more
    parts = np.stack([in_fold(count, folds, fold) for fold in range(1, folds + 1)])
    assert (parts.sum(0) == 1).all()  # each example in one of them
    assert np.ptp(parts.sum(1)) <= 1
    again = np.stack([in_fold(count, folds, fold) for fold in range(1, folds + 1)])
    assert (parts == again).all()


def test_folds_are_drawn():
    held_out = np.flatnonzero(in_fold(1000, 10, 1))
    assert 400 < held_out.mean() < 600 and len(set(np.diff(held_out))) > 10


# Vocabularies.


def symbols(vocabulary, pieces):
    return [vocabulary.dictionary[number] for number in pieces.numbers]


@pytest.fixture
def word_pieces(tmp_path):
    return write_vocabulary(tmp_path / "wordpiece")


LINES = ["the cat sat", "the cats ran", "é the sun"]


@pytest.fixture
def byte_pairs(tmp_path):
    """As scripts/prepare_mlm.sh lays it out: dict.txt names tokens by id, the BPE is in bpe/."""
    text, out = tmp_path / "text", tmp_path / "bytes"
    text.mkdir()
    out.mkdir()
    (text / "train").write_text("\n".join(LINES * 3), "utf-8")
    byte_bpe.prepare(text, out / "bpe", out, 264)
    return out


def test_word_pieces(word_pieces):
    vocabulary = Vocabulary.load(word_pieces)
    text = "The cats, \u200b SAT!"
    pieces, empty = vocabulary.encode([text, ""])
    assert symbols(vocabulary, pieces) == ["the", "cat", "##s", "<unk>", "sat", "!"]
    assert [text[a:b] for a, b in pieces.offsets] == ["The", "cat", "s", ",", "SAT", "!"]
    assert empty.numbers.shape == (0,) and empty.offsets.shape == (0, 2)
    assert empty.numbers.dtype == pieces.numbers.dtype == np.int64
    assert (
        not vocabulary.by_id and vocabulary.dictionary[len(vocabulary.dictionary) - 1] == "<mask>"
    )


def test_special_tokens_are_those_of_fairseq(word_pieces):
    vocabulary = Vocabulary.load(word_pieces)
    ids = vocabulary.tokenizer.get_vocab()
    words = vocabulary.dictionary
    of_bert = [
        vocabulary.numbers[ids[f"[{name}]"]] for name in ("CLS", "PAD", "SEP", "UNK", "MASK")
    ]
    assert of_bert == [words.bos(), words.pad(), words.eos(), words.unk(), words.index("<mask>")]


def test_what_dict_txt_lacks_is_unknown(word_pieces):
    (word_pieces / "dict.txt").write_text("".join(f"{word} 5\n" for word in WORDS if word != "cat"))
    vocabulary = Vocabulary.load(word_pieces)
    assert symbols(vocabulary, vocabulary.encode(["the cat sat"])[0]) == ["the", "<unk>", "sat"]
    assert vocabulary.dictionary[len(vocabulary.dictionary) - 1] == "<mask>"


def test_byte_level_pieces(byte_pairs):
    """As fairseq-preprocess reads what byte_bpe encoded; the pieces lead back to the text."""
    vocabulary = Vocabulary.load(byte_pairs)
    text = "the cat é \U0001f642"
    (pieces,) = vocabulary.encode([text])
    (encoded,) = byte_bpe.encode([text], load_bpe(byte_pairs / "bpe"))
    lines = vocabulary.dictionary.encode_line(encoded, append_eos=False, add_if_not_exist=False)
    assert pieces.numbers.tolist() == lines.tolist()
    assert vocabulary.dictionary.unk() not in pieces.numbers
    covered = [set(range(a, b)) for a, b in pieces.offsets]
    assert set.union(*covered) == set(range(len(text)))


def test_tokenizer_json_comes_first_and_the_bpe_may_lie_beside_dict_txt(byte_pairs, word_pieces):
    for file in (byte_pairs / "bpe").iterdir():
        file.rename(byte_pairs / file.name)
    assert Vocabulary.load(byte_pairs).by_id
    (word_pieces / "encoder.json").write_text("{}")
    assert not Vocabulary.load(word_pieces).by_id


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_a_vocabulary_from_its_state(kind, request):
    vocabulary = Vocabulary.load(request.getfixturevalue(kind))
    state = vocabulary.state()
    again = Vocabulary.from_state(state)
    assert again.state() == state and again.dictionary == vocabulary.dictionary
    for one, other in zip(
        *(v.encode([*LINES, "a \u200b?"]) for v in (vocabulary, again)), strict=True
    ):
        assert one.numbers.tolist() == other.numbers.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()


def test_truncation_and_padding_of_a_tokenizer_are_left_out(word_pieces):
    path = word_pieces / "tokenizer.json"
    given = json.loads(path.read_text("utf-8"))
    given["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    given["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    path.write_text(json.dumps(given))
    (pieces,) = Vocabulary.load(word_pieces).encode(["the cat sat ran"])
    assert len(pieces.numbers) == 4


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("dict.txt", None, "has no dict.txt; give --vocabulary, the folder"),
        ("tokenizer.json", None, "has no tokeniser; put tokenizer.json, or encoder.json"),
        ("tokenizer.json", "{}", r"tokenizer\.json cannot be read \(.+\); give"),
    ],
)
def test_a_vocabulary_that_is_missing_or_damaged_is_refused(word_pieces, file, text, says):
    (word_pieces / file).unlink() if text is None else (word_pieces / file).write_text(text)
    with pytest.raises(UsageError, match=rf"wordpiece.*{says}"):
        Vocabulary.load(word_pieces)


# Batches.

PAD = 1


def item(*lengths, target=None):
    """An item of rows of these lengths; every token of a row is its length."""
    rows = [Row(np.full(n, n), np.arange(n) % 2, [1], [n - 2]) for n in lengths]
    return Item(None, rows, target)


def dataset(items, segments=False, seed=1):
    return LabelledDataset(items, pad=PAD, segments=segments, seed=seed)


def collated(*items, **options):
    data = dataset(items, **options)
    return data.collater([data[index] for index in range(len(items))])


def test_rows_of_several_items_are_padded_on_the_right():
    items = item(3, 5, target=2), item(4, target=0)
    batch = collated(*items, segments=True)
    tokens, segments = batch["net_input"]["src_tokens"], batch["net_input"]["segments"]
    assert tokens.tolist() == [[3, 3, 3, PAD, PAD], [5] * 5, [4, 4, 4, 4, PAD]]
    assert segments.tolist() == [[0, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0]]
    assert batch["counts"].tolist() == [2, 1] and batch["id"].tolist() == [0, 1]
    assert (batch["nsentences"], batch["ntokens"]) == (2, 12)
    assert batch["target"].tolist() == [2, 0] and batch["target"].dtype == torch.int64
    assert batch["items"] == list(items)
    assert "segments" not in collated(*items)["net_input"]


def test_targets():
    assert "target" not in collated(item(3), item(4))
    scores = collated(item(3, target=0.5), item(4, target=2.0))["target"]
    assert torch.equal(scores, torch.tensor([0.5, 2.0]))
    arrays = [np.array([7, IGNORED, 8])], [np.array([5]), np.array([6, 9])]
    tags = collated(item(3, target=arrays[0]), item(2, 2, target=arrays[1]))["target"]
    assert tags.tolist() == [[7, IGNORED, 8], [5, IGNORED, IGNORED], [6, 9, IGNORED]]


def test_sizes():
    data = dataset([item(3, 5), item(4)])
    assert [data.size(index) for index in (0, 1)] == [5, 4] == data.sizes.tolist()
    assert [data.num_tokens(index) for index in (0, 1)] == [10, 4]  # with padding
    assert dataset([item(3)]).collater([]) == {}


def orders(data, *epochs):
    for epoch in epochs:
        data.set_epoch(epoch)
        yield data.ordered_indices().tolist()


def test_every_epoch_is_drawn_anew_and_again_the_same():
    lengths = np.random.default_rng(0).integers(3, 60, 200)
    data = dataset([item(n) for n in lengths])
    first, second, again = orders(data, 1, 2, 1)
    assert first == again != second
    assert next(orders(dataset(data.items, seed=2), 1)) != first
    assert not data.can_reuse_epoch_itr_across_epochs
    for order in (first, second):
        assert sorted(order) == list(range(200))
        assert (np.diff(data.sizes[order] // BUCKET) >= 0).all()
        assert (np.diff(data.sizes[order]) < 0).any()
    same = [[index for index in order if data.sizes[index] == 30] for order in (first, second)]
    assert sorted(same[0]) == sorted(same[1]) and len(same[0]) > 1


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (SentenceRegressionTask, '{"text": "a", "label": NaN}'),
        (SentenceRegressionTask, '{"text": "a", "label": -Infinity}'),
        (SentenceClassificationTask, '{"text": "\\ud83d", "label": "x"}'),
        (SentenceClassificationTask, "[" * 100_000),
        (SpanExtractionTask, json.dumps(SPAN | {"answers": [{"text": "t", "start": -1}]})),
    ],
)
def test_what_json_can_say_and_a_model_cannot_use(tmp_path, task, line):
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match=r"x\.jsonl:1 "):
        read(path, task.fields)


def test_text_that_looks_like_a_special_token_is_text(word_pieces):
    vocabulary = Vocabulary.load(word_pieces)
    vocabulary.tokenizer.add_special_tokens(["[SEP]", "[MASK]"])
    (pieces,) = vocabulary.encode(["the [SEP] cat [MASK]"])
    words = symbols(vocabulary, pieces)
    assert words[0] == "the" and "cat" in words and not {"</s>", "<mask>"} & set(words)


def test_a_tokeniser_of_another_dictionary_is_refused(word_pieces):
    (word_pieces / "dict.txt").write_text("x 0\ny 0\n")
    with pytest.raises(UsageError, match="the dictionary lacks most of the"):
        Vocabulary.load(word_pieces)


@pytest.mark.parametrize(
    ("name", "content"),
    [("dict.txt", b"the\n"), ("dict.txt", b"\xff 0\n"), ("dict.txt", b"a 0\na 0\n")],
)
def test_a_damaged_dictionary_is_named(word_pieces, name, content):
    (word_pieces / name).write_bytes(content)
    with pytest.raises(UsageError, match=rf"{name} cannot be read"):
        Vocabulary.load(word_pieces)


def test_half_a_bpe_is_named(byte_pairs):
    (byte_pairs / "bpe" / "vocab.bpe").unlink()
    with pytest.raises(UsageError, match="bpe cannot be read"):
        Vocabulary.load(byte_pairs)


def test_targets_are_there_if_all_items_have_one(dictionary):
    row = Rows(dictionary, 8, 1, strict=False).make([numbers(dictionary, "a")], "x:1")
    items = [Item(None, [row], 1), Item(None, [row], None)]
    data = LabelledDataset(items, pad=dictionary.pad(), segments=False, seed=1)
    assert "target" not in data.collater([data[0], data[1]])
    assert data.collater([data[0]])["target"].tolist() == [1]
