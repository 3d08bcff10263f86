"""Lookup of the features that roles read in tokens, by the symbols of a dictionary."""

import re

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_ext.data.pieces import Piece, are_numeric, read_pieces
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.roles.role_masks import (
    DEFINITIONS,
    NEVER_RARE,
    Definitions,
    TokenFeatures,
)

MASK = "<mask>"
LANGUAGE_TAG = re.compile(r"__\w+__|\[\w+\]")  # as multilingual tasks add it, counted once
SPECIAL = Piece(b"", True, True)


class SymbolTable(nn.Module):
    """Tables of a dictionary's symbols that turn tokens into `TokenFeatures`, on their device.

    The rarity of a word is how often dict.txt has counted the rarest of its pieces, negated: only
    the order matters, in which inverse document frequencies hardly differ.

    Args:
        dictionary: the symbols, and how often each was counted.
        definitions: a name in `DEFINITIONS`.
        least: words counted less often cannot be rare, unknown words (0 times) among them.
    """

    flags: Tensor
    rarity: Tensor

    def __init__(self, dictionary: Dictionary, definitions: str, least: int = 0) -> None:
        super().__init__()
        self.pad, self.least, rule = dictionary.pad(), least, DEFINITIONS[definitions]
        symbols = dictionary.symbols
        pieces = _read_dictionary(dictionary)
        flags = [
            [i in (dictionary.bos(), dictionary.eos()) for i in range(len(symbols))],
            [piece.starts_word for piece in pieces],
            [piece.ends_word for piece in pieces],
            [_separates(symbol, rule) for symbol in symbols],
        ]
        self.register_buffer("flags", torch.tensor(flags), persistent=False)
        rarity = torch.tensor(_rarity(dictionary, pieces, rule))
        self.register_buffer("rarity", rarity, persistent=False)

    def forward(self, tokens: Tensor, parse: Tensor | None = None) -> TokenFeatures:
        """Return the features of tokens [B, S] and their parse [B, S, 3], if any."""
        real, (ends, starts, stops, separators) = tokens != self.pad, self.flags[:, tokens]
        after_word = F.pad(stops | ends | ~real, (1, 0), value=True)[:, :-1]
        begins = (starts | after_word) & real & ~ends
        rarity = _rarity_of_words(self.rarity[tokens], begins)
        rarity = rarity.masked_fill(rarity > -self.least, NEVER_RARE)
        return TokenFeatures(real, ends & real, begins, separators, rarity, parse)


def check_symbols(dictionary: Dictionary, roles: set[str], definitions: str) -> None:
    """Raise UsageError if a dictionary does not have what roles need to know of it."""
    rule, words = DEFINITIONS[definitions], dictionary.symbols[dictionary.nspecial :]
    counts = zip(words, dictionary.count[dictionary.nspecial :], strict=True)
    distinct = {count for word, count in counts if not word.startswith((MASK, "madeupword"))}
    if "rare" in roles and len(distinct - {0}) < 2:
        raise UsageError(
            "--encoder-roles has rare, and the dictionary has no counts of the training text; give "
            "data whose dict.txt fairseq-preprocess made of it, or leave rare out"
        )
    if "rare" in roles and are_numeric(words):
        raise UsageError(
            "--encoder-roles has rare, and numbers in dict.txt hide where words begin; leave it out"
        )
    if "separator" in roles and not any(_separates(word, rule) for word in words):
        raise UsageError(
            "--encoder-roles has separator, and the dictionary has none of "
            f"{' '.join(rule.symbols)} (text encoded as numbers does not show them); leave it out"
        )


def _read_dictionary(dictionary: Dictionary) -> list[Piece]:
    """Return the piece of each symbol; special symbols, masks and language tags are SPECIAL."""
    symbols, special = dictionary.symbols, dictionary.nspecial
    pieces = [SPECIAL] * special + read_pieces(symbols[special:])
    for place, (symbol, count) in enumerate(zip(symbols, dictionary.count, strict=True)):
        if symbol == MASK or (count == 1 and LANGUAGE_TAG.fullmatch(symbol)):
            pieces[place] = SPECIAL
    return pieces


def _rarity(dictionary: Dictionary, pieces: list[Piece], rule: Definitions) -> list[int]:
    rarity = [
        -count if piece is not SPECIAL and (rule.short or _can_be_rare(piece)) else NEVER_RARE
        for piece, count in zip(pieces, dictionary.count, strict=True)
    ]
    rarity[dictionary.unk()] = 0  # the rarest
    return rarity


def _rarity_of_words(rarity: Tensor, begins: Tensor) -> Tensor:
    """Return for each token the rarity of its word's rarest piece, [B, S].

    Rarities are whole numbers: in 16 bits different counts would be alike.
    """
    word = (begins.long().cumsum(1) - 1).clamp(min=0)
    lowest = torch.full_like(rarity, NEVER_RARE)
    return lowest.scatter_reduce(1, word, rarity, "amax").gather(1, word)


def _can_be_rare(piece: Piece) -> bool:
    text = piece.text.decode(errors="replace")
    return len(text) > 1 and not text.replace(".", "").replace(",", "").isnumeric()


def _separates(symbol: str, rule: Definitions) -> bool:
    """Return whether a symbol separates, also with a mark in front of it.

    A symbol that continues in the next token does not separate.
    """
    return symbol.lstrip("\u2581\u0120") in rule.symbols
