"""WordPiece, which splits words into the longest pieces of a vocabulary: "injur ##y".

  learn --size N OUT FILE...     a vocabulary, in the format of BERT's vocab.txt
  apply VOCAB <TEXT >PIECES
  dict VOCAB >DICT               for fairseq-preprocess --srcdict DICT --joined-dictionary

Words are separated by white space alone, and can be put together again as they were, in single
spaces: no piece that begins a word begins with ##, so that words like ## and ###,### can be told
from pieces. Special symbols of fairseq or BERT (<unk>, [SEP]) are split like any other word. Words
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
from fairseq_ext.files import batched, decode_lines, write_lines
from fairseq_ext.prepare.step import number_from, read_with_progress, step_parser

HEADER = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000  # most frequent characters that are kept, as in BERT's
FEWEST = 2  # occurrences of a sequence that becomes a piece
SPARE = 1000  # pieces that are learned in the place of those that cannot be used
BATCH = 10_000  # lines, or words


class Alphabet:
    """A code of two letters for each character: one to begin words, one to continue them.

    The trainer for WordPiece in `tokenizers` numbers the characters that continue words in an order
    that differs from run to run, so its pieces differ from run to run too. The trainer for BPE is
    deterministic, since it takes letters in the order of their code points, but it cannot tell
    where a word begins. So words are rewritten for the trainer for BPE: the n-th of N characters
    becomes the letter U+E000 + n at the beginning of a word, and U+E000 + N + n elsewhere. These
    letters are of Unicode's private use area, which stands for no character of a text. The learned
    tokens are rewritten back, with ## before those that continue words.
    """

    FIRST = 0xE000  # code point of the first letter

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters, self.inner = characters, self.FIRST + len(characters)
        self.begins = {ord(c): code for code, c in enumerate(characters, self.FIRST)}
        self.continues = {ord(c): code for code, c in enumerate(characters, self.inner)}

    def encode(self, word: str) -> str:
        """Return a word in letters."""
        return word[0].translate(self.begins) + word[1:].translate(self.continues)

    def decode(self, token: str) -> str:
        """Return a piece; an empty one if it begins words and yet begins with ##."""
        size = len(self.characters)
        text = "".join(self.characters[(ord(letter) - self.FIRST) % size] for letter in token)
        if ord(token[0]) >= self.inner:
            return MARK + text
        return "" if text.startswith(MARK) else text


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Return the count of each word, separated by white space."""
    return Counter(word for line in lines for word in line.split())


def learn(words: Counter[str], size: int) -> list[str]:
    """Return a vocabulary of `size` pieces, or fewer if no other sequence occurs twice.

    Each character is there twice, to begin words and to continue them.

    Args:
        words: the count of each word.
        size: pieces, at most.

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
        raise UsageError(f"--merges is {size} and characters alone need {least}; give a larger one")
    pieces = map(alphabet.decode, _train(words, alphabet, size + SPARE))
    return [*HEADER, *filter(is_usable, pieces)][:size]


def _train(words: Counter[str], alphabet: Alphabet, size: int) -> list[str]:
    """Return tokens in letters: the alphabet, then merged ones, the most frequent first."""
    known = set(alphabet.characters)
    text = (
        " ".join([alphabet.encode(word)] * min(BATCH, count - begin))
        for word, count in words.items()
        if known.issuperset(word)
        for begin in range(0, count, BATCH)
    )
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = WhitespaceSplit()
    letters = [*map(chr, range(alphabet.FIRST, alphabet.FIRST + 2 * len(alphabet.characters)))]
    trainer = BpeTrainer(
        vocab_size=size, min_frequency=FEWEST, initial_alphabet=letters, show_progress=False
    )
    bpe.train_from_iterator(text, trainer)
    tokens = bpe.get_vocab()
    return sorted(tokens, key=tokens.__getitem__)


def dictionary(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the lines of fairseq's dictionary; a piece that is not in it is <unk>."""
    return (f"{piece} 1" for piece in dict.fromkeys(filter(is_usable, pieces)))


def _learn(args: argparse.Namespace) -> None:
    pieces = learn(count_words(read_with_progress("reading", *args.texts)), args.size)
    write_lines(args.out, pieces)
    print(f"{args.out}: {len(pieces):,} pieces", file=sys.stderr)


def _apply(args: argparse.Namespace) -> None:
    pieces = Pieces(load(args.vocabulary))
    lines = decode_lines(sys.stdin.buffer, "standard input")
    for batch in batched(tqdm(lines, "splitting", unit=" lines"), BATCH):
        _print_lines(pieces.encode(batch))


def _print_dictionary(args: argparse.Namespace) -> None:
    _print_lines(dictionary(load(args.vocabulary)))


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines in UTF-8, whatever the locale is."""
    sys.stdout.buffer.writelines(f"{line}\n".encode() for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, apply or convert a vocabulary."""
    parser = step_parser("wordpiece", __doc__)
    verbs = parser.add_subparsers(required=True, metavar="learn | apply | dict")
    verb = verbs.add_parser("learn", help="write a vocabulary")
    verb.add_argument(
        "--size", type=number_from(1), required=True, metavar="N", help="pieces, at most"
    )
    verb.add_argument("out", type=Path, metavar="OUT")
    verb.add_argument("texts", type=Path, nargs="+", metavar="FILE", help="plain text or .gz")
    verb.set_defaults(run=_learn)
    verb = verbs.add_parser("apply", help="split standard input into pieces")
    verb.add_argument("vocabulary", type=Path, metavar="VOCAB")
    verb.set_defaults(run=_apply)
    verb = verbs.add_parser("dict", help="print fairseq's dictionary")
    verb.add_argument("vocabulary", type=Path, metavar="VOCAB")
    verb.set_defaults(run=_print_dictionary)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
