"""Write the input embeddings of an encoder as word vectors, for --word-vectors.

The words are those of a dictionary that the encoder has as a whole: its tokeniser leaves each in
one piece. How many these are is printed. --width projects the vectors onto their first principal
components. The file is in GloVe's text form. A file of that form (.txt, .vec, .gz) may stand in the
place of the encoder: the vectors of the dictionary's words are then taken from it.

Example:
  fairseq-ext export-vectors encoders/minilm/model.pt --words data-bin/cr/dict.txt --out minilm.txt
  fairseq-ext export-vectors encoders/minilm/model.pt --words data-bin/cr/dict.txt --width 96 \
--out minilm-96.txt
  fairseq-ext export-vectors glove.6B.100d.txt --words data-bin/cr/dict.txt --width 96 \
--out glove-96.txt
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary

from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_place, write_lines
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.export_hf import find_vocabulary
from fairseq_ext.models.word_vectors import find_width, read_vectors
from fairseq_ext.safe_loading import read_checkpoint

TEXTS = (".txt", ".vec", ".gz")  # endings of vectors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext export-vectors`."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="an encoder, or vectors as text")
    add("--words", type=Path, required=True, metavar="FILE", help="dict.txt of fairseq-preprocess")
    add("--out", type=Path, required=True, metavar="FILE", help="word vectors to be written")
    add("--width", type=int, metavar="N", help="width of the vectors (default: the encoder's)")
    folder = "with dict.txt and the tokeniser (default: as of export-hf)"
    add("--vocabulary", type=Path, metavar="FOLDER", help=folder)


def run(args: argparse.Namespace) -> None:
    """Write the file, and print the share of the words that it has."""
    check_place(args.out, "--out")
    text = args.checkpoint.suffix in TEXTS
    saved = {} if text else read_checkpoint(args.checkpoint)
    if not args.words.is_file():
        raise UsageError(f"--words is {args.words}, which is not there; give a dict.txt")
    dictionary = Dictionary.load(str(args.words))
    words = dictionary.symbols[dictionary.nspecial :]
    if text:
        found, vectors = select_vectors(args.checkpoint, words)
    else:
        found, vectors = read_embeddings(saved, args, words)
    if args.width is not None:
        vectors = project(vectors, args.width)
    rows = (" ".join(f"{value:.6g}" for value in row) for row in vectors)
    write_lines(args.out, (f"{word} {row}" for word, row in zip(found, rows, strict=True)))
    shares = f"{len(found)} of {len(words)} words ({100 * len(found) / len(words):.1f}%)"
    print(f"{args.out} has vectors of {vectors.shape[1]} numbers for {shares}")


def select_vectors(path: Path, words: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the words that a file of vectors has, and these [words, C] float32.

    Raises:
        UsageError: the file is missing or malformed, or has none of the words.
    """
    vectors = read_vectors(path, {word: n for n, word in enumerate(words)}, find_width(path))
    if not vectors:
        raise UsageError(
            f"{path} has none of the {len(words)} words of --words; give vectors of such words"
        )
    return [words[number] for number in vectors], np.stack(list(vectors.values()))


def read_embeddings(
    saved: dict[str, Any], args: argparse.Namespace, words: Sequence[str]
) -> tuple[list[str], np.ndarray]:
    """Return the words that an encoder has as a whole, and their embeddings [words, C] float32.

    Raises:
        UsageError: the checkpoint is no encoder, or has none of the words.
    """
    if hf.TOKENS not in saved["model"]:
        raise UsageError(
            f"{args.checkpoint} has no {hf.TOKENS}; give an encoder, like roberta_una_12"
        )
    vocabulary = find_vocabulary(args.vocabulary, args.checkpoint, saved)
    # a word within a text has a space before it, which byte-level pieces contain
    pieces = vocabulary.encode([f" {word}" for word in words])
    unknown = vocabulary.dictionary.unk()
    numbers = {
        word: int(piece.numbers[0])
        for word, piece in zip(words, pieces, strict=True)
        if len(piece.numbers) == 1 and piece.numbers[0] != unknown
    }
    if not numbers:
        raise UsageError(
            f"{args.checkpoint} has none of the {len(words)} words of --words in one piece; give "
            "the dict.txt of words of the same language"
        )
    embeddings = saved["model"][hf.TOKENS].float().numpy()
    return list(numbers), embeddings[list(numbers.values())]


def project(vectors: np.ndarray, width: int) -> np.ndarray:
    """Return vectors [words, C] in the coordinates of their first principal components.

    Raises:
        UsageError: there are fewer components than `width`.
    """
    most = min(vectors.shape)
    if not 1 <= width <= most:
        raise UsageError(
            f"--width is {width}, and {len(vectors)} vectors of {vectors.shape[1]} numbers have "
            f"{most} components; give 1 to {most}"
        )
    centred = vectors - vectors.mean(0)
    _, _, components = np.linalg.svd(centred, full_matrices=False)
    return centred @ components[:width].T
