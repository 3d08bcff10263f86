"""Byte-level BPE of any size in GPT-2's formats, which fairseq reads with `--bpe gpt2`.

A model is a folder with encoder.json and vocab.bpe. Encoded text has the numbers of tokens,
separated by spaces; empty lines stay.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from tqdm import tqdm

from fairseq_ext.data.tokenisers import load_bpe
from fairseq_ext.errors import UsageError
from fairseq_ext.files import atomic_writer, batched, explain_disk_errors, read_lines, write_lines
from fairseq_ext.prepare.step import number_from, step_parser

BYTES = 256
BATCH = 10_000  # lines


def learn(lines: Iterable[str], size: int, folder: Path) -> None:
    """Learn a model of `size` tokens, the 256 bytes among them, and save it.

    Raises:
        UsageError: the size is not above 256, or the text has too few pairs that repeat.
    """
    if size <= BYTES:
        raise UsageError(f"--vocabulary is {size} and 256 tokens are the bytes; give a larger size")
    bpe = ByteLevelBPETokenizer(add_prefix_space=False)
    bpe.train_from_iterator(batched(lines, BATCH), vocab_size=size, show_progress=False)
    if (found := bpe.get_vocab_size()) < size:
        raise UsageError(
            f"--vocabulary is {size} and the text for training gives {found} tokens at most; "
            "give a smaller size, or more text"
        )
    save(bpe, folder)


def save(bpe: ByteLevelBPETokenizer, folder: Path) -> None:
    """Write a model, in ASCII: fairseq reads encoder.json in the encoding of the locale."""
    folder.mkdir(parents=True, exist_ok=True)
    written = explain_disk_errors(folder / "vocab.bpe")
    with tempfile.TemporaryDirectory(dir=folder) as work, written:
        _, merges = bpe.save_model(work)
        Path(merges).replace(folder / "vocab.bpe")
    with atomic_writer(folder / "encoder.json") as file:
        json.dump(dict(sorted(bpe.get_vocab().items(), key=lambda item: item[1])), file)


def encode(lines: Iterable[str], bpe: ByteLevelBPETokenizer) -> Iterator[str]:
    """Yield the numbers of each line's tokens, separated by spaces."""
    for batch in batched(lines, BATCH):
        for line in bpe.encode_batch(batch):
            yield " ".join(map(str, line.ids))


def dictionary(encoded: Iterable[str], tokens: Iterable[str]) -> Iterator[str]:
    """Yield the lines of fairseq's dictionary: tokens by falling counts, then <mask>."""
    yield from rank_tokens(encoded, tokens)
    yield "<mask> 0"


def rank_tokens(encoded: Iterable[str], tokens: Iterable[str]) -> Iterator[str]:
    """Yield tokens with their counts in encoded text, the most frequent first.

    Tokens of equal count stand in the order of their names, as in dictionaries that fairseq sorts.
    """
    counts = Counter(dict.fromkeys(tokens, 0))
    counts.update(token for line in encoded for token in line.split())
    for token, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{token} {count}"


def write_if_missing(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file, with a progress bar, unless the file exists."""
    if not path.exists():
        write_lines(path, tqdm(lines, f"encoding {path.name}", unit=" lines"))


def prepare(text: Path, model: Path, out: Path, size: int | None = None) -> None:
    """Encode all files of `text` into `out`, with dict.txt; files that exist are kept.

    Args:
        text: folder with the file train, and others.
        model: folder with a model, or for the one that is learned from train.
        out: folder for encoded files.
        size: tokens of the model that is learned if there is none.
    """
    if size and not (model / "encoder.json").exists():
        learn(read_lines(text / "train"), size, model)
    bpe = load_bpe(model)
    out.mkdir(exist_ok=True)
    for part in sorted(text.iterdir()):
        write_if_missing(out / part.name, encode(read_lines(part), bpe))
    tokens = map(str, bpe.get_vocab().values())
    write_if_missing(out / "dict.txt", dictionary(read_lines(out / "train"), tokens))


def main(arguments: Sequence[str] | None = None) -> None:
    """Encode a folder of text."""
    parser = step_parser("byte_bpe", __doc__)
    add = parser.add_argument
    add("text", type=Path, metavar="TEXT", help="folder with train and other files")
    add("model", type=Path, metavar="MODEL", help="folder of the BPE")
    add("out", type=Path, metavar="OUT", help="folder for encoded text")
    add("--size", type=number_from(1), help="learn a model of so many tokens if there is none")
    prepare(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
