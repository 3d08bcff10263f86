"""Embeddings that begin as word vectors, read from a text file of words and numbers."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import nn

from fairseq_ext.errors import UsageError
from fairseq_ext.files import numbered_lines, read_lines

logger = logging.getLogger(__name__)


def check_word_vectors(path: str | None, by_id: bool) -> None:
    """Raise UsageError for --word-vectors if tokens have numbers."""
    if path and by_id:
        raise UsageError(
            "--word-vectors need a dictionary of words, and that of --vocabulary has numbers; "
            "leave them out, or make one by scripts/prepare_task.sh --words"
        )


def begin_embeddings(model: nn.Module, options: Any, words: Dictionary) -> None:
    """Let new embeddings begin as word vectors, unless a checkpoint lets training continue.

    Without a file of vectors, warn of the role "rare": its heads see words that occur once in
    training, whose random embeddings the model learns by heart, and untrained ones later.

    Args:
        model: it has `embed_tokens`.
        options: --word-vectors, --save-dir and --restore-file.
        words: its dictionary.
    """
    if not options.word_vectors:
        own = vars(model.args)
        if "rare" in own.get("encoder_roles", "") and not own["role_rare_min_count"]:
            logger.warning(
                "--encoder-roles has rare and embeddings begin at random, so that rare words of "
                "training are learned by heart; give --word-vectors, or --role-rare-min-count 10"
            )
        return
    # the --restore-file of this name, fairseq's default, lies in --save-dir
    folder = options.save_dir if options.restore_file == "checkpoint_last.pt" else "."
    if not Path(folder, options.restore_file).is_file():
        embedding = next(m for n, m in model.named_modules() if n.endswith(".embed_tokens"))
        load_vectors(Path(options.word_vectors), embedding, words)


def load_vectors(path: Path, embedding: nn.Embedding, words: Dictionary) -> None:
    """Copy the vectors of a file, plain or .gz, to the embeddings of the words of a dictionary.

    Raises:
        UsageError: the file is malformed, its vectors have another width, or it has no word of
            the dictionary.
    """
    own = words.symbols[words.nspecial :]
    numbers = {word: number for number, word in enumerate(own, words.nspecial)}
    vectors = read_vectors(path, numbers, embedding.embedding_dim)
    if not vectors:
        raise UsageError(
            f"{path} has none of the {len(own)} words of the dictionary ({', '.join(own[:3])}, "
            "...); give vectors of such words, or leave --word-vectors out"
        )
    with torch.no_grad():
        rows = torch.from_numpy(np.stack(list(vectors.values())))
        embedding.weight[list(vectors)] = rows.to(embedding.weight)
    shares = len(vectors), len(own), 100 * len(vectors) / len(own)
    logger.info("%s: %d of %d words (%.1f%%) begin with their vectors", path, *shares)


def read_vectors(path: Path, numbers: Mapping[str, int], width: int) -> dict[int, np.ndarray]:
    """Return vectors [width], float32, by the numbers of their words; a word's first one counts.

    Each line is a word, which may have spaces in it, and its vector, separated by spaces (GloVe).
    The first line may be a header: the number of vectors and their width (word2vec).

    Raises:
        UsageError: a line is malformed, or the vectors have another width.
    """
    vectors: dict[int, np.ndarray] = {}
    for word, fields, where in _read_words(path, width):
        if word in numbers and numbers[word] not in vectors:
            vectors[numbers[word]] = _parse_vector(fields, where)
    return vectors


def _read_words(path: Path, width: int) -> Iterator[tuple[str, list[str], str]]:
    """Yield the word, the fields of the vector and the place of each line but the header."""
    for where, text in numbered_lines(path):
        text = text.rstrip(" ")
        if where == f"{path}:1" and _is_header(text.split(" "), path, width):
            continue
        word, *fields = text.rsplit(" ", width)
        _check_count(word.split(" ")[1:] + fields, where, width)
        yield word, fields, where


class WordVectors(dict[str, torch.Tensor]):
    """Vectors of a file by their words, as fairseq's `parse_embedding` returns them.

    Raises:
        UsageError: the file is not there, or malformed.
    """

    def __init__(self, path: str) -> None:
        self.path, self.width = path, find_width(Path(path))
        words = _read_words(Path(path), self.width)
        super().__init__((w, torch.from_numpy(_parse_vector(v, where))) for w, v, where in words)

    def check(self, words: Dictionary, width: int) -> None:
        """Raise UsageError unless the vectors have a width, and one is of a word of `words`."""
        if self.width != width:
            raise UsageError(
                f"{self.path} has vectors of {self.width} numbers and the embeddings {width} "
                "(--encoder-embed-dim, --decoder-embed-dim); give vectors of that width, or "
                "embeddings of theirs"
            )
        known = sum(symbol in self for symbol in words.symbols)
        if not known:
            raise UsageError(
                f"{self.path} has none of the {len(words)} symbols of the dictionary; give vectors "
                "of its words, or leave --encoder-embed-path and --decoder-embed-path out"
            )
        logger.info("%s: %d of %d symbols begin with their vectors", self.path, known, len(words))


def _is_header(fields: Sequence[str], path: Path, width: int) -> bool:
    """Tell whether the first line is a header; raise UsageError if its width is another."""
    header, own = _read_first(fields)
    if own != width:
        raise UsageError(
            f"{path}:1 has vectors of {own} numbers and --encoder-embed-dim is {width}; give "
            "vectors of that width, or embeddings of theirs"
        )
    return header


def _read_first(fields: Sequence[str]) -> tuple[bool, int]:
    """Return whether the first line is a header, and the width of the vectors by it."""
    header = len(fields) == 2 and all(field.isdecimal() for field in fields)
    return header, int(fields[1]) if header else len(fields) - 1


def find_width(path: Path) -> int:
    """Return the width of the vectors of a file, by its first line.

    Raises:
        UsageError: there is no such file, or no vector in its first line.
    """
    if not path.is_file():
        raise UsageError(f"{path} is not there; give a file of word vectors")
    _, width = _read_first(next(iter(read_lines(path)), "").rstrip(" ").split(" "))
    if width < 1:
        raise UsageError(f"{path}:1 has no vector; give a word and its numbers in each line")
    return width


def _check_count(fields: Sequence[str], where: str, width: int) -> None:
    """Raise UsageError unless there are `width` numbers, after fields of a word with spaces."""
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


def _parse_vector(fields: Sequence[str], where: str) -> np.ndarray:
    for field in fields:
        if not (_is_number(field) and np.isfinite(float(field))):
            raise UsageError(
                f"{where} has '{field[:40]}' in the place of a number; correct the line, or get "
                "the file again"
            )
    return np.array(fields, np.float32)
