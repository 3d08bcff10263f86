"""Byte-level BPE in GPT-2's formats: what fairseq's `--bpe gpt2` reads, of any size.

A model is a folder with encoder.json and vocab.bpe. Encoded text has the ids of tokens, parted by
spaces; empty lines stay.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from tqdm import tqdm

from fairseq_ext.data.tokenisers import load_bpe
from fairseq_ext.errors import UsageError
from fairseq_ext.files import batches, read_lines, write_lines

BYTES = 256
BATCH = 10_000  # lines


def learn(lines: Iterable[str], size: int, folder: Path) -> None:
    """Write a model of `size` tokens, the 256 bytes among them.

    Raises:
        UsageError: the size is not above 256, or the text has too few pairs that repeat.
    """
    if size <= BYTES:
        raise UsageError(f"--vocabulary is {size} and 256 tokens are the bytes; give a larger size")
    bpe = ByteLevelBPETokenizer(add_prefix_space=False)
    bpe.train_from_iterator(batches(lines, BATCH), vocab_size=size, show_progress=False)
    if bpe.get_vocab_size() < size:
        raise UsageError(
            f"--vocabulary is {size} and the text for training gives {bpe.get_vocab_size()} tokens "
            "at most; give a smaller size, or more text"
        )
    save(bpe, folder)


def save(bpe: ByteLevelBPETokenizer, folder: Path) -> None:
    """fairseq reads encoder.json in the encoding of the locale, so it is ASCII."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        bpe.save_model(name)
        ids = json.loads((work / "vocab.json").read_text("utf-8"))
        (work / "encoder.json").write_text(json.dumps(ids), "ascii")
        (work / "merges.txt").replace(folder / "vocab.bpe")
        (work / "encoder.json").replace(folder / "encoder.json")


def encode(lines: Iterable[str], bpe: ByteLevelBPETokenizer) -> Iterator[str]:
    for batch in batches(lines, BATCH):
        for line in bpe.encode_batch(batch):
            yield " ".join(map(str, line.ids))


def dictionary(encoded: Iterable[str], tokens: Iterable[str]) -> Iterator[str]:
    """The lines of fairseq's dictionary: every token with its count, most frequent first, <mask>.

    Tokens of equal count stand in the order of their names, as where fairseq sorts.
    """
    counts = Counter(dict.fromkeys(tokens, 0))
    for line in encoded:
        counts.update(line.split())
    for token, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{token} {count}"
    yield "<mask> 0"


def produce(path: Path, lines: Iterable[str]) -> None:
    """Nothing if the file is there; it gets its name when it is complete."""
    if not path.exists():
        write_lines(path, tqdm(lines, f"encoding {path.name}", unit=" lines"))


def prepare(text: Path, model: Path, out: Path, size: int | None = None) -> None:
    """Encode all files of `text` into `out`, with dict.txt; what is there already is kept.

    Args:
        model: a folder with a model, or the one to learn from the file train, of `size` tokens.
    """
    if size and not (model / "encoder.json").exists():
        learn(read_lines(text / "train"), size, model)
    bpe = load_bpe(model)
    out.mkdir(exist_ok=True)
    for part in sorted(text.iterdir()):
        produce(out / part.name, encode(read_lines(part), bpe))
    tokens = map(str, bpe.get_vocab().values())
    produce(out / "dict.txt", dictionary(read_lines(out / "train"), tokens))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.byte_bpe", description=__doc__
    )
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder with train and other files")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of the BPE")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for encoded text")
    parser.add_argument("--size", type=int, help="learn a model of so many tokens if there is none")
    given = parser.parse_args(arguments)
    prepare(given.text, given.model, given.out, given.size)


if __name__ == "__main__":
    main()
