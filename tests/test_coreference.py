"""Corpora of coreference: what is read, parts of long texts, distractors, rules."""

import gzip
import random
from pathlib import Path

import pytest
from corpora import format_gap_row
from files import write_lines

from fairseq_ext.analysis.coreference.corpus_readers import (
    HEADER,
    classify_tag,
    find_head,
    read_corpus,
)
from fairseq_ext.analysis.coreference.mentions import (
    Mention,
    Text,
    make_phrase,
    windows,
    with_distractors,
)
from fairseq_ext.analysis.coreference.sieves import BASELINES, agree, choose_by_rules, features
from fairseq_ext.errors import UsageError

FIXTURES = Path(__file__).parent / "fixtures" / "coreference"


def said(text: Text, phrase) -> str:
    return " ".join(text.words[i] for i in phrase.words)


# Synthetic reflexives.


def test_reflexives(tmp_path):
    file = write_lines(
        tmp_path / "refl.5",
        "my queen who can kick her girl would remember your lady by herself\t12\t0 1\t5 6 9 10 ",
        "our prince will love himself\t4\t0 1\t",
    )
    corpus = read_corpus(file)
    assert (corpus.name, corpus.left_out, corpus.synthetic) == ("refl.5", 0, True)
    first, second = corpus.texts
    (mention,) = first.mentions
    assert (mention.phrase.head, mention.kind, first.ends) == (12, "pronominal", [13])
    assert [said(first, p) for p in mention.antecedents] == ["my queen"]
    assert [said(first, p) for p in mention.others] == ["her girl", "your lady"]
    assert mention.antecedents[0].targets == (0, 1) and mention.antecedents[0].head == 1
    assert second.mentions[0].others == []


def test_real_reflexives(corpora):
    corpus = read_corpus(corpora / "coref-synthetic" / "refl.1.gz", limit=50)
    assert corpus.name == "refl.1" and len(corpus.texts) == 50
    for text in corpus.texts:
        (mention,) = text.mentions
        assert text.words[mention.phrase.head] in ("himself", "herself")
        assert len(mention.others) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("he sees himself\t2\t0 0", "refl.0, line 2: expected are four columns separated by tabs"),
        ("he sees himself\tx\t0 0\t", "line 2: expected are four columns"),
        ("he sees himself\t2\t0 0\t1", "line 2: expected are four columns"),
        ("he sees himself\t3\t0 0\t", "line 2: has index 3; expected are 0 to 2"),
        ("he sees himself\t2\t0 0\t1 9", "line 2: has index 9; expected are 0 to 2"),
    ],
)
def test_bad_reflexives(tmp_path, line, says):
    file = write_lines(tmp_path / "refl.0", "he sees himself\t2\t0 0\t", line)
    with pytest.raises(UsageError, match=says):
        read_corpus(file)


# GAP.


TEXT = "Mary Ann met Jane's aunt. She left."


def test_gap(tmp_path):
    rows = [format_gap_row(TEXT, "She", "Mary Ann", "Jane", true) for true in ("A", "B", "neither")]
    corpus = read_corpus(write_lines(tmp_path / "gap-test.tsv", "\t".join(HEADER), *rows))
    assert (corpus.name, corpus.left_out, corpus.synthetic) == ("gap-test.tsv", 1, False)
    one, other = corpus.texts
    assert one.words == ["Mary", "Ann", "met", "Jane", "'", "s", "aunt", ".", "She", "left", "."]
    assert one.ends == [8, 11]
    (mention,) = one.mentions
    assert (said(one, mention.phrase), mention.kind) == ("She", "pronominal")
    assert [said(one, p) for p in mention.antecedents] == ["Mary Ann"]
    assert [said(one, p) for p in mention.others] == ["Jane"]
    assert [said(other, p) for p in other.mentions[0].antecedents] == ["Jane"]


def test_real_gap(corpora):
    corpus = read_corpus(corpora / "gap" / "gap-validation.tsv.gz")
    assert len(corpus.texts) == 392 and corpus.left_out == 62
    first = read_corpus(corpora / "gap" / "gap-validation.tsv.gz", limit=10)
    assert len(first.texts) + first.left_out == 10
    pronouns = {text.words[m.phrase.head].lower() for text in corpus.texts for m in text.mentions}
    assert pronouns <= {"he", "him", "his", "she", "her", "hers"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"A-offset": "1"}, "line 2: A-offset is '1', where 'Mary Ann' was expected"),
        ({"B-offset": "first"}, "line 2: B-offset is 'first', where 'Jane' was expected"),
        ({"Pronoun": ""}, "line 2: Pronoun-offset is '26', where '' was expected"),
        ({"A-coref": "yes"}, "line 2: has 11 columns; expected are 11, with TRUE or FALSE"),
        ({"URL": "a\tb"}, "line 2: has 12 columns; expected are 11"),
    ],
)
def test_bad_gap(tmp_path, change, says):
    row = format_gap_row(TEXT, "She", "Mary Ann", "Jane", "A", **change)
    with pytest.raises(UsageError, match=f"gap-x.tsv, {says}"):
        read_corpus(write_lines(tmp_path / "gap-x.tsv", "\t".join(HEADER), row))


def test_gap_without_a_header(tmp_path):
    row = format_gap_row(TEXT, "She", "Mary Ann", "Jane", "A")
    with pytest.raises(UsageError, match="line 1: expected are the columns ID, Text, Pronoun"):
        read_corpus(write_lines(tmp_path / "gap-x.tsv", row))


# CoNLL-2012.

BEGIN, END = "#begin document (x); part 000", "#end document"


def test_conll():
    """A phrase in another, two that end or begin together, a document in two parts."""
    corpus = read_corpus(FIXTURES / "two_parts.v4_gold_conll")
    assert (corpus.left_out, corpus.synthetic, len(corpus.texts)) == (0, False, 2)
    text, nobody = corpus.texts
    assert text.ends == [12, 17] and nobody.mentions == []
    found = [
        (
            said(text, m.phrase),
            [said(text, p) for p in m.antecedents],
            [said(text, p) for p in m.others],
            m.kind,
        )
        for m in text.mentions
    ]
    anna, head, school = "Anna Miller", "the head of a school", "a school"
    assert found == [
        (head, [anna], [], "nominal"),
        ("it", [school], [anna, head], "pronominal"),
        ("Her", [anna, head], [school, "it", "Her friend"], "pronominal"),
        ("Miller", [anna, head, "Her"], [school, "it", "Her friend"], "proper"),
    ]
    heads = {said(text, p): p for m in text.mentions for p in (*m.antecedents, *m.others)}
    assert heads[head].targets == (4,) and heads[anna].targets == (1,)


def test_folder_of_conll(tmp_path):
    for name in ("b/x_conll.gz", "a/y_conll"):
        (tmp_path / name).parent.mkdir()
        content = (FIXTURES / "two_parts.v4_gold_conll").read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    corpus = read_corpus(tmp_path)
    assert len(corpus.texts) == 4 and corpus.name == tmp_path.name


def test_order_and_nesting_of_brackets(tmp_path):
    """Two of one entity, one in the other: the later one ends first."""
    marks = ["(7", "(7", "7)", "-", "7)", "(7)"]
    rows = [f"x 0 {i} w{i} NN * - {mark}" for i, mark in enumerate(marks)]
    (text,) = read_corpus(write_lines(tmp_path / "x_conll", BEGIN, *rows, END)).texts
    assert [(m.phrase.words[0], m.phrase.words[-1]) for m in text.mentions] == [(1, 2), (5, 5)]
    assert text.ends == [6]


def test_phrases_of_one_head(tmp_path):
    """Of one entity they are no antecedents of each other, of two no choice."""
    marks = ["(1)", "-", "(1|(1|(2", "1)|2)", "1)", "(1)"]
    tags = ["NN", "VB", "DT", "NN", "RB", "PRP"]
    rows = [f"x 0 {i} w{i} {t} * - {m}" for i, (t, m) in enumerate(zip(tags, marks, strict=True))]
    (text,) = read_corpus(write_lines(tmp_path / "x_conll", BEGIN, *rows, END)).texts
    around, inside, pronoun = text.mentions
    assert around.phrase.words == (2, 3, 4) and inside.phrase.words == (2, 3)
    assert around.phrase.head == inside.phrase.head == 3
    for mention, expected in ((around, [0]), (inside, [0]), (pronoun, [0, 3, 3])):
        assert [p.head for p in mention.antecedents] == expected and mention.others == []


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("DT NN", 1),
        ("DT NN IN DT NN", 1),
        ("NNP POS NN NN , DT NN", 3),
        ("PRP", 0),
        ("IN DT NN", 2),
        ("DT CD", 1),
        ("DT NNS WDT VBP NN", 1),
        ("DT IN DT NN", 0),  # those in the room
        ("PRP WP VBD DT NN", 0),  # he who ate the cake
        ("DT/The VBN NN", 2),  # the proposed plan
        ("DT/a VBG JJ NN IN NN", 3),  # a growing private economy of China
        ("DT VBN RB", 0),  # those left behind
        ("DT VBN NNP", 0),  # those killed Tuesday
        ("DT VBN IN NN", 0),  # those made of wood
        ("JJR IN CD NNS", 3),  # more than 20 people
        ("CD TO CD", 2),
    ],
)
def test_head_words(tags, expected):
    """A determiner is "those" if the case does not say which one it is."""
    pairs = [tag.partition("/") for tag in ("NN", "IN", *tags.split(), "NN")]
    words = [word or "those" for _, _, word in pairs]
    found = find_head(2, 1 + len(tags.split()), words, [tag for tag, _, _ in pairs])
    assert found == 2 + expected


def test_kinds():
    tags = ["PRP", "PRP$", "NNP", "NNPS", "NN", "NNS", "DT", "CD"]
    expected = ["pronominal"] * 2 + ["proper"] * 2 + ["nominal"] * 4
    assert [classify_tag(tag) for tag in tags] == expected


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            [BEGIN, "x 0 0 w NN"],
            "line 2: has 5 columns that end with 'NN'; expected are at least 6",
        ),
        ([BEGIN, "x 0 0 w NN * (1|2"], r"line 2: has 7 columns that end with '\(1\|2'"),
        ([BEGIN, "x 0 0 w NN * 1)", END], r"line 2: '1\)' ends what has not begun; expected '\(1'"),
        (
            [BEGIN, "x 0 0 w NN * (3", "", END],
            r"line 2: '\(3' has no '3\)' before .*x_conll, line 4",
        ),
        (["x 0 0 w NN * -"], "line 1: is outside of a document; begin it with '#begin document'"),
        ([BEGIN, "x 0 0 w NN * -"], "line 2: '#end document' is missing after it"),
        ([BEGIN, "x 0 0 w NN * -", END], "x_conll has no mention with an antecedent"),
    ],
)
def test_bad_conll(tmp_path, lines, says):
    with pytest.raises(UsageError, match=says):
        read_corpus(write_lines(tmp_path / "x_conll", *lines))


# All of them.


def test_lower_case():
    corpus = read_corpus(FIXTURES / "two_parts.v4_gold_conll", lowercase=True)
    assert corpus.texts[0].words[:2] == ["anna", "miller"]


@pytest.mark.parametrize("name", ["refl.0.pos", "gap.csv", "some.txt"])
def test_what_is_no_corpus(tmp_path, name):
    with pytest.raises(UsageError, match=f"{name} is no corpus of coreference; give files named"):
        read_corpus(write_lines(tmp_path / name, "x"))
    with pytest.raises(UsageError, match="is no corpus of coreference"):
        read_corpus(tmp_path)


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        read_corpus(tmp_path / "refl.0")


# Distractors.


def test_distractors():
    """Before each text others; what they are about may be confused with the antecedent."""
    texts = [
        Text(
            [f"{noun}{i}" for noun in ("a", "b", "self")],
            [3],
            [Mention(make_phrase(2, 2), [make_phrase(0, 0)], [make_phrase(1, 1)], "pronominal")],
        )
        for i in range(5)
    ]
    found = with_distractors(texts, 2, seed=1)
    drawn = set()
    for number, text in enumerate(found):
        (mention,) = text.mentions
        assert text.words[-3:] == texts[number].words and len(text.words) == 11
        assert text.words[3] == text.words[7] == "." and text.ends == [4, 8, 11]
        assert said(text, mention.phrase) == f"self{number}"
        assert [said(text, p) for p in mention.antecedents] == [f"a{number}"]
        others = [said(text, p) for p in mention.others]
        assert others[-1] == f"b{number}" and sorted(o[0] for o in others) == ["a"] * 2 + ["b"] * 3
        assert f"a{number}" not in others
        drawn.update(others)
    assert len(drawn) == 10
    assert with_distractors(texts, 2, seed=1) == found != with_distractors(texts, 2, seed=2)
    assert with_distractors(texts, 0, seed=1) == texts
    assert with_distractors(texts[:1], 2, seed=1) == texts[:1]


# Parts of long texts.


def long_text() -> Text:
    """Six sentences of four words."""
    mentions = [
        Mention(
            make_phrase(21, 21),
            [make_phrase(12, 13)],
            [make_phrase(0, 0), make_phrase(14, 14)],
            "pronominal",
        ),
        Mention(make_phrase(9, 9), [make_phrase(1, 1)], [], "nominal"),
        Mention(
            make_phrase(10, 10),
            [make_phrase(8, 8), make_phrase(2, 2)],
            [make_phrase(13, 13)],
            "proper",
        ),
    ]
    return Text([f"w{i}" for i in range(24)], [4, 8, 12, 16, 20, 24], mentions)


def test_a_text_that_fits_is_whole():
    text = long_text()
    assert windows(text, lambda words: True) == [text]


def test_parts_of_a_long_text():
    """With 13 words: three sentences, those before first."""
    text = long_text()
    first, second = windows(text, lambda words: len(words) <= 13)
    assert first.words == text.words[:12] and first.ends == [4, 8, 12]
    assert [m.phrase.head for m in first.mentions] == [9, 10]
    assert first.mentions[1].others == []  # it stands later
    assert second.words == text.words[12:] and second.ends == [4, 8, 12]
    (mention,) = second.mentions
    assert said(second, mention.phrase) == "w21"
    assert [said(second, p) for p in mention.antecedents] == ["w12 w13"]
    assert [said(second, p) for p in mention.others] == ["w14"]


def test_mentions_out_of_reach_are_left_out():
    found = windows(long_text(), lambda words: len(words) <= 4)
    (part,) = found
    assert [said(part, m.phrase) for m in part.mentions] == ["w10"]
    assert [said(part, p) for p in part.mentions[0].antecedents] == ["w8"]
    assert windows(long_text(), lambda words: len(words) <= 3) == []


def test_what_comes_after_is_seen_too():
    """An antecedent that comes later, once all before is there."""
    text = Text(
        list("abcdef"),
        [2, 4, 6],
        [Mention(make_phrase(1, 1), [make_phrase(3, 3)], [], "pronominal")],
    )
    (part,) = windows(text, lambda words: len(words) <= 5)
    assert part.words == list("abcd") and part.mentions == text.mentions


def test_parts_hold_what_they_say():
    draw = random.Random(3)
    for _ in range(50):
        sizes = [draw.randint(2, 6) for _ in range(8)]
        ends = [sum(sizes[: i + 1]) for i in range(8)]
        words = [f"w{i}" for i in range(ends[-1])]
        drawn = draw.sample(range(len(words)), 12)
        heads = zip(drawn[:4], drawn[4:8], drawn[8:], strict=True)
        names = {f"w{a}": (f"w{b}", f"w{c}") for a, b, c in heads}
        places = [[int(w[1:]) for w in (a, *both)] for a, both in names.items()]
        mentions = [
            Mention(make_phrase(a, a), [make_phrase(b, b)], [make_phrase(c, c)], "x")
            for a, b, c in places
        ]
        text, most = Text(words, ends, mentions), draw.randint(5, 20)
        for part in windows(text, lambda words: len(words) <= most):  # noqa: B023
            assert len(part.words) <= most or part == text
            for mention in part.mentions:
                antecedent, other = names[said(part, mention.phrase)]
                assert [said(part, p) for p in mention.antecedents] == [antecedent]
                assert [said(part, p) for p in mention.others] in ([], [other])
                assert (other in part.words) == bool(mention.others)


# Rules.


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("she", "the girl", True),
        ("she", "the boy", False),
        ("himself", "her king", True),  # the possessive says nothing of him
        ("himself", "her boss", True),
        ("himself", "the queen 's brother", True),
        ("they", "the girl", False),
        ("they", "two girls", True),
        ("it", "John", False),
        ("he", "Mr. Ford", True),
        ("he", "Mrs. Ford", False),
        ("i", "my boss", False),
        ("you", "the Fords", False),
        ("her", "the princess", True),
    ],
)
def test_agreement(one, other, same):
    found = [features(each.lower().split(), each.lower().split()[-1]) for each in (one, other)]
    assert agree(*found) == same


def sentence(words: str, mention: int, *phrases: tuple[int, int]) -> tuple[Text, Mention]:
    """The first phrase is the antecedent."""
    first, *others = (make_phrase(*phrase) for phrase in phrases)
    asked = Mention(make_phrase(mention, mention), [first], others, "nominal")
    return Text(words.split(), [len(words.split())], [asked]), asked


@pytest.mark.parametrize(
    ("words", "mention", "phrases", "taken"),
    [
        ("Ford saw Kim and Ann . Ford", 6, [(0, 0), (2, 2), (4, 4)], "Ford"),  # the same words
        ("old Ford saw Kim . Ford", 5, [(0, 1), (3, 3)], "old Ford"),  # the same head
        ("the girl saw a boy . she", 6, [(0, 1), (3, 4)], "the girl"),  # agreement
        ("rain hit rocks . John", 4, [(0, 0), (2, 2)], "rain"),  # number
        ("my girl could kick our mother by herself", 7, [(0, 1), (4, 5)], "our mother"),  # nearest
        ("you saw them . we", 4, [(0, 0), (2, 2)], "them"),  # nothing agrees
    ],
)
def test_sieves(words, mention, phrases, taken):
    text, asked = sentence(words, mention, *phrases)
    assert said(text, choose_by_rules(text, asked)) == taken
    assert BASELINES["rules"](text, asked) == (said(text, asked.antecedents[0]) == taken)


def test_previous_and_nearest():
    text, asked = sentence("a boy saw a girl himself", 5, (0, 1), (3, 4))
    found = {name: right(text, asked) for name, right in BASELINES.items()}
    assert found == {"previous word": False, "nearest noun phrase": False, "rules": True}
    swapped = asked._replace(antecedents=asked.others, others=asked.antecedents)
    found = {name: right(text, swapped) for name, right in BASELINES.items()}
    assert found == {"previous word": True, "nearest noun phrase": True, "rules": False}


@pytest.mark.parametrize(
    ("number", "expected"), [(0, 1.0), (1, 0.0), (2, 1.0), (4, 1.0), (5, 0.0), (8, 1.0)]
)
def test_rules_on_real_reflexives(corpora, number, expected):
    """Others of the same gender are nearer than the antecedent, those of the other do not agree."""
    corpus = read_corpus(corpora / "coref-synthetic" / f"refl.{number}.gz", limit=300)
    right = [BASELINES["rules"](text, m) for text in corpus.texts for m in text.mentions]
    assert sum(right) / len(right) == expected
