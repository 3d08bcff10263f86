"""Which word each token belongs to, and what is kept of it."""

import gzip
import re

import numpy as np
import pytest
from corpora import UD, needs_corpora
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer

from fairseq_ext.data.annotations import bits, record
from fairseq_ext.data.conllu import Sentence, read
from fairseq_ext.data.pieces import MARKS, PIECE_READERS, Piece
from fairseq_ext.data.word_alignment import align_tokens, group_words
from fairseq_ext.mechanisms.roles.role_masks import EXACT, MAJOR
from fairseq_ext.tools.prepared_text import split_tokens

DASHED, ENDED, HASHED, BARRED, BYTES = MARKS


def tokens(text: str, mark: str = ""):
    return [None if part == "<unk>" else PIECE_READERS[mark](part) for part in text.split()]


def aligned(text: str, words: str, mark: str = "", surfaces=None):
    """A string of digits, to be short."""
    found = align_tokens(tokens(text, mark), words.split(), surfaces or {})
    return found if found is None else "".join(map(str, found))


@pytest.mark.parametrize(
    ("mark", "text", "expected"),
    [
        ("", "The naïve fox never chased 日 dogs !", "01234567"),
        (DASHED, "T@@ he na@@ ï@@ ve fox ne@@ v@@ er chased 日 do@@ gs !", "0011123334566" + "7"),
        (
            ENDED,
            "T he</w> na ï ve</w> fox</w> ne v er</w> chased</w> 日</w> do gs</w> !</w>",
            "0011123334566" + "7",
        ),
        (HASHED, "the na ##ive fox never chas ##ed 日 dog ##s !", "01123445667"),
        (BARRED, "▁The ▁na ï ve ▁fox ▁never ▁chased ▁ 日 ▁do gs !", "011123455667"),
        (BYTES, "The Ġna Ã ¯ ve Ġfox Ġnever Ġchased Ġæ Ĺ ¥ Ġdog s !", "01111234555667"),
    ],
)
def test_one_sentence_in_every_form(mark, text, expected):
    assert aligned(text, "The naïve fox never chased 日 dogs !", mark) == expected


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (
            "do n&apos;t &quot; A &amp; B &#124; @-@ &quot;",
            "do n't `` A & B | - ''",
            "0123456789"[:9],
        ),
        ("( “ it ’ s ” ) –", "-LRB- \" it ' s '' -RRB- -", "01234567"),
        ("ＡＢ ½ … straße İ", "ab 1⁄2 ... STRASSE i", "01234"),
        ("a <unk> c", "a b c", "012"),
        ("<unk> <unk>", "a b", "01"),
        ("a b c", "a bc", "011"),  # words may be parted, as long as none goes over two
        ("ab c", "a b c", None),
        ("ab c", "a bc", None),
        ("a <unk> b", "a b", None),
        ("a <unk>", "a b c", None),
        ("a <unk>", "ab c", None),
        ("a b", "a b c", None),
        ("a b c", "a b", None),
        ("a x c", "a b c", None),
    ],
)
def test_words(text, words, expected):
    assert aligned(text, words) == expected


@pytest.mark.parametrize(
    ("mark", "text", "words", "expected"),
    [
        (DASHED, "un@@ <unk> dog", "unable dog", "001"),
        (DASHED, "<unk> able dog", "unable dog", "001"),
        (DASHED, "a@@ <unk> e <unk> c", "able b c", "00012"),
        (DASHED, "<unk> <unk>", "ab", "00"),
        (DASHED, "<unk> <unk>", "a", None),
        (DASHED, "a <unk>", "a b c", None),
        (DASHED, "<unk> c", "a b c", None),
        (BARRED, "▁caf <unk> ▁is", "café is", "001"),
        (BARRED, "▁ <unk> <unk> .", "日本 語 .", "0012"),
        (BARRED, "▁ <unk> .", "日 本 .", "002"),
        (BARRED, "▁ <unk> . <unk>", "日 本 . 語", "0023"),
        (BARRED, "▁x <unk> ▁y", "xa b cy", "002"),
        (BARRED, "▁x <unk>", "x", None),
    ],
)
def test_unknown_tokens_agree_with_any_characters(mark, text, words, expected):
    assert aligned(text, words, mark) == expected


def test_unknown_tokens_agree_with_words_that_are_not_seen():
    assert aligned("a <unk> b", "a \u200b b") == "012"


def test_escapes_in_pieces():
    assert aligned("A@@ T &@@ amp@@ ; &ap@@ os@@ ;@@ s", "AT & 's", DASHED) == "001112222"


def test_pieces_may_reach_into_the_next_word_where_words_are_not_parted():
    assert aligned('Ġ( ok )." Ġso', '( ok ) . " so', BYTES) == "0125"
    assert aligned("ab c@@ d", "a b cd", DASHED) is None


IM = {1: (3, "im")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("war im Haus", "013"), ("war in dem Haus", "0123"), ("war i@@ m Haus", "0113")]
    + [("<unk> im Haus", "013"), ("war <unk> Haus", "013"), ("war <unk> dem Haus", "0123")]
    + [("war inm Haus", None), ("war in im Haus", None), ("war indem Haus", None)],
)
def test_words_written_as_one(text, expected):
    assert aligned(text, "war in dem Haus", DASHED, IM) == expected


def test_words_come_before_what_is_written():
    assert aligned("did n't", "did n't", DASHED, {0: (2, "didn't")}) == "01"


@pytest.mark.parametrize(
    ("parts", "words", "expected"),
    [
        (["❤", "\ufe0f", "x"], ["❤\ufe0f", "x"], [0, 0, 1]),
        (["é", "", "x"], ["é", "x"], [0, 0, 1]),  # of a character's second half
        (["\u200b", "a", " ", "\u200b"], ["a"], [0, 0, 0, 0]),
        (["\u200b"], ["\u200b"], [0]),
    ],
)
def test_what_is_not_seen_belongs_to_what_is_before(parts, words, expected):
    for opens in (False, True) if len(words) == 1 else (False,):
        given = [Piece(part.encode(), opens, False) for part in parts]
        assert align_tokens(given, words, {}) == expected


def test_many_ways_end():
    """Words that are written as one, each of which could be unknown, and nothing agrees."""
    surfaces = {2 * place: (2 * place + 2, "ab") for place in range(200)}
    assert align_tokens(tokens("<unk> " * 300 + "c"), ["a", "b"] * 200, surfaces) is None


WORDS = st.lists(st.text("aéß日1-.'", min_size=1, max_size=6), min_size=1, max_size=6)


@st.composite
def split_words(draw):
    words = draw(WORDS)
    cuts = [sorted(draw(st.sets(st.integers(1, max(len(word) - 1, 1))))) for word in words]
    parts = [
        [word[i:j] for i, j in zip([0, *cut], [*cut, len(word)], strict=True) if i < j]
        for word, cut in zip(words, cuts, strict=True)
    ]
    return words, parts


@given(split=split_words(), unknown=st.sets(st.integers(0, 5)), parted=st.booleans())
def test_recovers_words(split, unknown, parted):
    words, parts = split
    given, expected = [], []
    for number, pieces in enumerate(parts):
        if number in unknown:
            pieces = [None]
        for place, piece in enumerate(pieces):
            first, last = not place, place == len(pieces) - 1
            given.append(piece and Piece(piece.encode(), first, parted and last))
            expected.append(number)
    assert align_tokens(given, words, {}) == expected


@given(words=WORDS, data=st.data())
def test_bytes(words, data):
    """However bytes are cut, a piece belongs to the word that its first byte is in."""
    whole = "".join(words).encode()
    cuts = sorted({0, *data.draw(st.sets(st.integers(0, len(whole) - 1)))})
    given = [Piece(whole[i:j], False, False) for i, j in zip(cuts, [*cuts[1:], None], strict=True)]
    owners = [number for number, word in enumerate(words) for _ in word.encode()]
    assert align_tokens(given, words, {}) == [owners[cut] for cut in cuts]


def test_words_for_a_parser():
    moses = "It is n@@ &apos;t <unk> @-@ b@@ ad"
    assert group_words(tokens(moses, DASHED)) == (
        ["It", "is", "n't", "<unk>", "-", "bad"],
        [0, 1, 2, 2, 3, 4, 5, 5],
    )
    raw = 'It Ġis n \'t , Ġ" caf Ã © ".) Ġ'
    assert group_words(tokens(raw, BYTES)) == (
        ["It", "isn", "'t", ",", '"', "café", '".)', "_"],
        [0, 1, 1, 2, 3, 4, 5, 5, 5, 6, 7],
    )
    assert group_words([]) == ([], [])


def test_words_of_raw_text():
    """Of halves of characters, which a tokeniser says to be the whole, one has it."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(["an old one"], vocab_size=260, show_progress=False)
    text = "an  öld, one"
    tokens = split_tokens(text, np.array(bpe.encode(text).offsets))
    assert b"".join(token.text for token in tokens) == "anöld,one".encode()
    assert group_words(tokens)[0] == ["an", "_", "öld", ",", "one"]


# What is kept.


@pytest.mark.parametrize(
    ("relations", "expected"),
    [
        ("nsubj obj dobj amod advmod", MAJOR | EXACT),
        ("nsubj:pass nsubjpass advmod:emph obj:lvc", MAJOR),
        ("csubj iobj obl nsubjective root det nmod:amod", 0),
    ],
)
def test_relations(relations, expected):
    assert {bits(relation) for relation in relations.split()} == {expected}


def test_record_of_pieces():
    sentence = Sentence("dogs bark".split(), [1, -1], ["nsubj", "root"])
    expected = [(0, 1, MAJOR | EXACT), (0, 1, MAJOR | EXACT), (1, -1, 0)]
    assert record([0, 0, 1], sentence).tolist() == list(map(list, expected))
    assert record([0], sentence).dtype == np.int16


def test_words_without_tokens_join_the_one_before():
    """ "There's" is one token: what depends on "'s" depends on it, and it is the root."""
    sentence = Sentence("There 's a dog".split(), [1, -1, 3, 1], "expl root det nsubj".split())
    assert record([0, 2, 3], sentence).tolist() == [[0, -1, 0], [2, 3, 0], [3, 0, 3]]


# Real text.


def surfaces_of(sentence):
    place = 0
    while place < len(sentence.words):
        place, word = sentence.surfaces.get(place, (place + 1, sentence.words[place]))
        yield word


@needs_corpora
@pytest.mark.parametrize("path", [path for path, _, _ in UD])
def test_universal_dependencies_agree_with_their_words(path):
    for sentence in read(path):
        words = [Piece(word.encode(), True, True) for word in sentence.words]
        assert align_tokens(words, sentence.words, sentence.surfaces) == list(range(len(words)))
        written = [Piece(word.encode(), True, True) for word in surfaces_of(sentence)]
        assert align_tokens(written, sentence.words, sentence.surfaces) is not None


@needs_corpora
@pytest.mark.parametrize(
    ("tokeniser", "mark"), [(ByteLevelBPETokenizer, BYTES), (BertWordPieceTokenizer, HASHED)]
)
@pytest.mark.parametrize("path", [path for path, _, _ in UD[1:]])
def test_universal_dependencies_agree_with_raw_text(path, tokeniser, mark):
    texts = re.findall("(?m)^# text = (.*)$", gzip.decompress(path.read_bytes()).decode())
    bpe = tokeniser()
    bpe.train_from_iterator(texts, vocab_size=2000, show_progress=False)
    table = {symbol: PIECE_READERS[mark](symbol) for symbol in bpe.get_vocab()} | {"[UNK]": None}
    for text, sentence in zip(texts, read(path), strict=True):
        pieces = [table[symbol] for symbol in bpe.encode(text, add_special_tokens=False).tokens]
        assert align_tokens(pieces, sentence.words, sentence.surfaces) is not None, text
