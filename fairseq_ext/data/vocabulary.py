"""A tokeniser together with fairseq's dictionary: text to the numbers that a model reads."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fairseq.data import Dictionary
from tokenizers import Tokenizer

from fairseq_ext.data.tokenisers import load_bpe, name_special_tokens
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_not_pointer


def digest(symbols: Iterable[str]) -> str:
    """Return the fingerprint of a dictionary: SHA-256 of its symbols in order."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()


def build_dictionary(symbols: Sequence[str]) -> Dictionary:
    """Build a dictionary from the symbols of another one, fairseq's special ones among them."""
    dictionary = Dictionary()
    for symbol in symbols[dictionary.nspecial :]:
        dictionary.add_symbol(symbol, overwrite=True)  # if there are two of its name
    return dictionary


class Pieces(NamedTuple):
    """A tokenised text: numbers [n] of its pieces, and offsets [n, 2] in characters."""

    numbers: np.ndarray
    offsets: np.ndarray


class Vocabulary:
    """A tokeniser and a dictionary, from a folder or from a checkpoint.

    Args:
        by_id: symbols of the dictionary are the tokeniser's ids as text, as in fairseq's gpt2 BPE.
    """

    def __init__(self, tokenizer: Tokenizer, dictionary: Dictionary, by_id: bool) -> None:
        self.tokenizer, self.dictionary, self.by_id = tokenizer, dictionary, by_id
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # text that looks like a special token is text
        tokens, special = tokenizer.get_vocab(), name_special_tokens(tokenizer)
        self.numbers = np.full(max(tokens.values()) + 1, dictionary.unk())
        for token, number in tokens.items():
            symbol = special.get(token) or (str(number) if by_id else token)
            self.numbers[number] = dictionary.index(symbol)
        if 2 * (self.numbers == dictionary.unk()).sum() > len(self.numbers):
            raise UsageError(
                f"the dictionary lacks most of the {len(tokens)} tokens of the tokeniser, so they "
                "do not belong together; give --vocabulary, the folder with both of the encoder"
            )

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """Load dict.txt and either tokenizer.json, or encoder.json and vocab.bpe (perhaps in bpe/).

        Raises:
            UsageError: a file is missing or cannot be read.
        """
        path = folder / "dict.txt"
        if not path.is_file():
            raise UsageError(
                f"{folder} has no dict.txt; give --vocabulary, the folder with that of the encoder "
                "(what fairseq-ext import-hf or scripts/prepare_mlm.sh made)"
            )
        dictionary = _read(path, Dictionary.load)
        dictionary.add_symbol("<mask>")  # as in fairseq, of dictionaries without one
        if (folder / "tokenizer.json").is_file():
            return cls(_read(folder / "tokenizer.json", Tokenizer.from_file), dictionary, False)
        for bpe in (folder / "bpe", folder):
            if (bpe / "encoder.json").is_file():
                return cls(_read(bpe, load_bpe)._tokenizer, dictionary, by_id=True)
        raise UsageError(
            f"{folder} has no tokeniser; put tokenizer.json, or encoder.json and vocab.bpe, there"
        )

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Vocabulary":
        """Build a vocabulary from what `state` returned."""
        dictionary = build_dictionary(state["symbols"])
        dictionary.count = list(state.get("counts", dictionary.count))
        return cls(Tokenizer.from_str(state["tokenizer"]), dictionary, state["by_id"])

    def state(self) -> dict[str, Any]:
        """Return everything that `from_state` needs, for a checkpoint."""
        return {
            "symbols": self.dictionary.symbols,
            "counts": self.dictionary.count,
            "tokenizer": json.dumps(json.loads(self.tokenizer.to_str()), sort_keys=True),
            "by_id": self.by_id,
        }

    def separators(self) -> int | None:
        """Return how many special tokens separate two texts, or None if none surround texts."""
        added = self.tokenizer.num_special_tokens_to_add(is_pair=True)
        return added - 2 if added else None

    def encode(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the pieces of each text, without special tokens around them."""
        return [
            Pieces(self.numbers[found.ids], np.array(found.offsets, int).reshape(-1, 2))
            for found in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]


def _read(path: Path, load: Callable) -> Any:
    try:
        return load(path if path.is_dir() else str(path))
    except Exception as error:  # what the libraries raise has no name
        check_not_pointer(path)
        raise UsageError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); give that of the encoder"
        ) from None
