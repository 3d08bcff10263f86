"""Fingerprints of the text that a model was trained on: its dictionaries and its tokeniser.

A model reads numbers of symbols. With a dictionary of the same size and another order it gives
results without a sign that they mean nothing.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_ext.data.tokenisers import SENTENCEPIECE
from fairseq_ext.errors import UsageError
from fairseq_ext.permissions import is_given

logger = logging.getLogger(__name__)

FINGERPRINTS = "fingerprints"  # in the extra state of a checkpoint
TOKENISERS = ("bpe.codes", "bpe/encoder.json", "bpe/vocab.bpe", "tokenizer.json", SENTENCEPIECE)
"""Files in a folder of data that say how its text was split."""

_noted: set[str] = set()  # checkpoints without a fingerprint


def take_fingerprints(task: Any) -> dict[str, Any]:
    """Return the symbols of a task's dictionaries, and the SHA-256 of each file of its tokeniser.

    The target's symbols are left out if they are the source's.
    """
    symbols = {side: words.symbols for side, words in _dictionaries(task)}
    if symbols.get("target") == symbols.get("source"):
        symbols.pop("target", None)
    return {**symbols, "tokeniser": _hash_tokeniser(task)}


def check_fingerprints(checkpoint: str, extra_state: Mapping[str, Any] | None, task: Any) -> None:
    """Raise UsageError if a checkpoint was trained with another dictionary or tokeniser.

    Args:
        checkpoint: its path.
        extra_state: its state of that name; in older checkpoints it has no fingerprints.
        task: with the dictionaries and the folder of data that are used now.
    """
    if is_given("--other-dictionary"):
        return
    saved = (extra_state or {}).get(FINGERPRINTS)
    if not saved:
        if checkpoint not in _noted:
            logger.warning("%s does not say which dictionary it was trained with", checkpoint)
        _noted.add(checkpoint)
        return
    for side, words in _dictionaries(task):
        _compare(saved.get(side) or saved.get("source"), words.symbols, side, checkpoint)
    for name, digest in _hash_tokeniser(task).items():
        if saved.get("tokeniser", {}).get(name, digest) != digest:
            raise UsageError(
                f"{checkpoint} was trained on text split by another {name} than the one in "
                f"{_folder(task)}; give the data that it was trained on, or --other-dictionary"
            )


def _compare(saved: list[str] | None, symbols: list[str], side: str, checkpoint: str) -> None:
    if not saved or saved == symbols:
        return
    pairs = enumerate(zip_longest(saved, symbols))
    number, (theirs, ours) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
    raise UsageError(
        f"{checkpoint} was trained with another {side} dictionary: its symbol {number} is "
        f"{_quote(theirs)}, and here {_quote(ours)}; give the data that it was trained on, or "
        "--other-dictionary"
    )


def _quote(symbol: str | None) -> str:
    return "missing" if symbol is None else repr(symbol)


def _dictionaries(task: Any) -> Iterator[tuple[str, Dictionary]]:
    for side in ("source", "target"):
        words = getattr(task, f"{side}_dictionary", None)
        if isinstance(words, Dictionary):
            yield side, words


def _folder(task: Any) -> Path | None:
    data = getattr(getattr(task, "cfg", None) or getattr(task, "args", None), "data", None)
    return Path(data.split(os.pathsep)[0]) if isinstance(data, str) and data else None


def _hash_tokeniser(task: Any) -> dict[str, str]:
    if (folder := _folder(task)) is None:
        return {}
    names = [name for name in TOKENISERS if (folder / name).is_file()]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
