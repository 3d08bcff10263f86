"""Embeddings that begin as word vectors: a text file of words and numbers, parted by spaces."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import nn

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

logger = logging.getLogger(__name__)


def load_vectors(path: Path, embedding: nn.Embedding, words: Dictionary) -> None:
    """Give the words of a dictionary that are in a file, plain or .gz, their vectors.

    Raises:
        UsageError: the file is malformed, its vectors are of another width, or none is of a word.
    """
    own = words.symbols[words.nspecial :]
    numbers = {word: number for number, word in enumerate(own, words.nspecial)}
    found = read(path, numbers, embedding.embedding_dim)
    if not found:
        raise UsageError(
            f"{path} has none of the {len(own)} words of the dictionary ({', '.join(own[:3])}, "
            "...); give vectors of such words, or leave --word-vectors out"
        )
    with torch.no_grad():
        vectors = torch.from_numpy(np.stack(list(found.values())))
        embedding.weight[list(found)] = vectors.to(embedding.weight)
    shares = len(found), len(own), 100 * len(found) / len(own)
    logger.info("%s: %d of %d words (%.1f%%) begin with their vectors", path, *shares)


def read(path: Path, numbers: Mapping[str, int], width: int) -> dict[int, np.ndarray]:
    """Vectors [width] of words, by the numbers of these; of a word's vectors the first counts.

    Each line is a word, which may have spaces in it, and its vector (GloVe); the first line may
    say how many they are and how wide (word2vec).
    """
    found: dict[int, np.ndarray] = {}
    for line, text in enumerate(read_lines(path), 1):
        where = f"{path}:{line}"
        text = text.rstrip(" ")
        if line == 1 and _check_width(text.split(" "), path, width):
            continue
        word, *fields = text.rsplit(" ", width)
        _check_count(word.split(" ")[1:] + fields, where, width)
        if word in numbers and numbers[word] not in found:
            found[numbers[word]] = _vector(fields, where)
    return found


def _check_width(fields: Sequence[str], path: Path, width: int) -> bool:
    """Whether the first line is a header; raises UsageError if it says another width."""
    header = len(fields) == 2 and all(field.isdecimal() for field in fields)
    given = int(fields[1]) if header else len(fields) - 1
    if given != width:
        raise UsageError(
            f"{path}:1 has vectors of {given} numbers and --encoder-embed-dim is {width}; give "
            "vectors of that width, or embeddings of theirs"
        )
    return header


def _check_count(fields: Sequence[str], where: str, width: int) -> None:
    """Raise UsageError unless there are as many numbers as in the first line; what is no number
    before them is of the word."""
    more = len(fields) - width
    if more < 0 or any(map(_is_number, fields[:more])):
        raise UsageError(
            f"{where} has {len(fields)} fields after the word and the first line {width}; correct "
            "the line, or get the file again"
        )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _vector(fields: Sequence[str], where: str) -> np.ndarray:
    for field in fields:
        if not (_is_number(field) and np.isfinite(float(field))):
            raise UsageError(
                f"{where} has '{field[:40]}' in the place of a number; correct the line, or get "
                "the file again"
            )
    return np.array(fields, np.float32)
