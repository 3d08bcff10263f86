"""WordPiece, which splits words into the longest pieces of a vocabulary: "injur ##y".

  learn --size N OUT FILE...     a vocabulary, in the format of BERT's vocab.txt
  apply VOCAB <TEXT >PIECES
  dict VOCAB >DICT               for fairseq-preprocess --srcdict DICT --joined-dictionary

Words are parted by white space alone, and put together again as they were, in single spaces: no
piece that begins a word begins with ##, so that words like ## and ###,### can be told from pieces.
What fairseq or BERT takes for a special symbol (<unk>, [SEP]) is split like any other word. Words
with unknown characters, or more than 100 of them, are [UNK]; dictionaries leave that out, so that
it becomes fairseq's <unk>. Text is to be in lower case already.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import BpeTrainer
from tqdm import tqdm

from fairseq_ext.data.wordpiece import MARK, UNKNOWN, Pieces, is_usable, load
from fairseq_ext.errors import UsageError
from fairseq_ext.files import batches, decode_line, read_lines, write_lines

HEADER = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000  # most frequent characters that are kept, as in BERT's
FEWEST = 2  # occurrences of what becomes a piece
SPARE = 1000  # pieces that are learned in the place of those that cannot be used
BATCH = 10_000  # lines, or words


class Alphabet:
    """Characters as two letters each, for the first one of a word and for others.

    The trainer for WordPiece numbers what continues words in an order that differs from run to
    run, and so do its pieces. That for BPE takes letters in their order.
    """

    FIRST = 0xE000  # of the letters, which are for private use

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters, self.others = characters, self.FIRST + len(characters)
        self.begins = {ord(c): code for code, c in enumerate(characters, self.FIRST)}
        self.continues = {ord(c): code for code, c in enumerate(characters, self.others)}

    def letters(self) -> list[str]:
        return list(map(chr, [*self.begins.values(), *self.continues.values()]))

    def write(self, word: str) -> str:
        return word[0].translate(self.begins) + word[1:].translate(self.continues)

    def read(self, token: str) -> str:
        """A piece; empty if it begins words and looks as if it did not."""
        size = len(self.characters)
        text = "".join(self.characters[(ord(letter) - self.FIRST) % size] for letter in token)
        if ord(token[0]) >= self.others:
            return MARK + text
        return "" if text.startswith(MARK) else text


def count_words(lines: Iterable[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def learn(words: Counter[str], size: int) -> list[str]:
    """A vocabulary of `size` pieces, or fewer if the text has no more that occur twice.

    Each character is there twice, to begin words and to continue them.

    Args:
        words: how often each occurs.

    Raises:
        UsageError: there is no word, or no room for the characters.
    """
    if not words:
        raise UsageError("the text has no word; give text to learn pieces from")
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update(dict.fromkeys(word, count))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = Alphabet(sorted(ranked[:ALPHABET]))
    least = len(HEADER) + 2 * len(alphabet.characters)
    if size < least:
        raise UsageError(f"--size is {size} and characters alone need {least}; give a larger one")
    found = map(alphabet.read, _trained(words, alphabet, size + SPARE))
    return [*HEADER, *filter(is_usable, found)][:size]


def _trained(words: Counter[str], alphabet: Alphabet, size: int) -> list[str]:
    """Tokens in letters of the alphabet: these, then what is merged, the most frequent first."""
    known = set(alphabet.characters)
    text = (
        " ".join([alphabet.write(word)] * min(BATCH, count - begin))
        for word, count in words.items()
        if known.issuperset(word)
        for begin in range(0, count, BATCH)
    )
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = WhitespaceSplit()
    trainer = BpeTrainer(
        vocab_size=size,
        min_frequency=FEWEST,
        initial_alphabet=alphabet.letters(),
        show_progress=False,
    )
    bpe.train_from_iterator(text, trainer)
    tokens = bpe.get_vocab()
    return sorted(tokens, key=tokens.__getitem__)


def dictionary(pieces: Iterable[str]) -> Iterator[str]:
    """The lines of fairseq's dictionary; what is not in it is <unk>."""
    return (f"{piece} 1" for piece in dict.fromkeys(filter(is_usable, pieces)))


def _learn(given: argparse.Namespace) -> None:
    words: Counter[str] = Counter()
    for path in given.texts:
        words.update(count_words(tqdm(read_lines(path), f"reading {path.name}", unit=" lines")))
    pieces = learn(words, given.size)
    write_lines(given.out, pieces)
    print(f"{given.out}: {len(pieces):,} pieces", file=sys.stderr)


def _apply(given: argparse.Namespace) -> None:
    pieces = Pieces(load(given.vocabulary))
    read = (
        decode_line(line, f"standard input, line {number}").rstrip("\r\n")
        for number, line in enumerate(sys.stdin.buffer, 1)
    )
    for batch in batches(tqdm(read, "splitting", unit=" lines"), BATCH):
        sys.stdout.buffer.writelines(f"{line}\n".encode() for line in pieces.encode(batch))


def _dictionary(given: argparse.Namespace) -> None:
    sys.stdout.buffer.writelines(
        f"{line}\n".encode() for line in dictionary(load(given.vocabulary))
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.wordpiece",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="learn | apply | dict")
    verb = verbs.add_parser("learn", help="write a vocabulary")
    verb.add_argument("--size", type=int, required=True, metavar="N", help="pieces, at most")
    verb.add_argument("out", type=Path, metavar="OUT")
    verb.add_argument("texts", type=Path, nargs="+", metavar="FILE", help="plain text or .gz")
    verb.set_defaults(run=_learn)
    for name, run, help in (
        ("apply", _apply, "split standard input into pieces"),
        ("dict", _dictionary, "print fairseq's dictionary"),
    ):
        verb = verbs.add_parser(name, help=help)
        verb.add_argument("vocabulary", type=Path, metavar="VOCAB")
        verb.set_defaults(run=run)
    given = parser.parse_args(arguments)
    given.run(given)


if __name__ == "__main__":
    main()
