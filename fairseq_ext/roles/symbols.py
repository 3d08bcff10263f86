"""A dictionary as roles see it: which symbols end sentences, begin words, separate, are rare."""

import re

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_ext.errors import UsageError
from fairseq_ext.roles.pieces import Piece, are_numeric, read_pieces
from fairseq_ext.roles.role_masks import DEFINITIONS, NEVER_RARE, Definitions, TokenFeatures

MASK = "<mask>"
LANGUAGE = re.compile(r"__\w+__|\[\w+\]")  # as multilingual tasks add them, counted once
WHOLE = Piece(b"", True, True)  # special symbols


class SymbolTable(nn.Module):
    """Makes `Sentences` of tokens, on their device.

    How rare a word is follows from how often dict.txt has counted the rarest of its pieces: only
    the order matters, in which inverse document frequencies hardly differ.
    """

    def __init__(self, dictionary: Dictionary, definitions: str) -> None:
        super().__init__()
        self.pad, rule = dictionary.pad(), DEFINITIONS[definitions]
        symbols, special = dictionary.symbols, dictionary.nspecial
        found = [WHOLE] * special + read_pieces(symbols[special:])
        each = zip(symbols, dictionary.count, found, strict=True)
        found = [WHOLE if _is_tag(symbol, count) else piece for symbol, count, piece in each]
        ends = [number in (dictionary.bos(), dictionary.eos()) for number in range(len(symbols))]
        self.register_buffer("ends", torch.tensor(ends), persistent=False)
        tables = {
            "starts_word": [piece.starts_word for piece in found],
            "ends_word": [piece.ends_word for piece in found],
            "separates": [_separates(symbol, rule) for symbol in symbols],
            "rarity": _rarity(dictionary, found, rule),
        }
        for name, values in tables.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def forward(self, tokens: Tensor, parse: Tensor | None = None) -> TokenFeatures:
        """Args: tokens: [B, S]; parse: [B, S, 3] or None."""
        real, ends = tokens != self.pad, self.ends[tokens]
        after = F.pad(
            self.ends_word[tokens[:, :-1]] | ends[:, :-1] | ~real[:, :-1], (1, 0), value=True
        )
        begins = (self.starts_word[tokens] | after) & real & ~ends
        return TokenFeatures(
            real=real,
            ends=ends & real,
            begins=begins,
            separators=self.separates[tokens],
            rarity=self._of_words(self.rarity[tokens], begins),
            parse=parse,
        )

    def _of_words(self, rarity: Tensor, begins: Tensor) -> Tensor:
        """[B, S] of each token's word that of its rarest piece; whole numbers, for in 16 bits
        counts are alike."""
        word = (begins.long().cumsum(1) - 1).clamp(min=0)
        lowest = torch.full_like(rarity, NEVER_RARE)
        return lowest.scatter_reduce(1, word, rarity, "amax").gather(1, word)


def check_symbols(dictionary: Dictionary, roles: set[str], definitions: str) -> None:
    """Raises UsageError if a dictionary does not say what roles ask of it."""
    rule, words = DEFINITIONS[definitions], dictionary.symbols[dictionary.nspecial :]
    counts = zip(words, dictionary.count[dictionary.nspecial :], strict=True)
    known = {count for word, count in counts if not word.startswith((MASK, "madeupword"))}
    if "rare" in roles and len(known - {0}) < 2:
        raise UsageError(
            "--encoder-roles has rare, and the dictionary has no counts of the training text; give "
            "data whose dict.txt fairseq-preprocess made of it, or leave rare out"
        )
    if "rare" in roles and are_numeric(words):
        raise UsageError(
            "--encoder-roles has rare, and the dictionary has numbers of pieces, which do not show "
            "where words begin; leave rare out"
        )
    if "separator" in roles and not any(_separates(word, rule) for word in words):
        raise UsageError(
            "--encoder-roles has separator, and the dictionary has none of "
            f"{' '.join(rule.symbols)} (text encoded as numbers does not show them); leave it out"
        )


def _rarity(dictionary: Dictionary, found: list[Piece], rule: Definitions) -> list[int]:
    rarity = [
        -count if piece is not WHOLE and (rule.short or _can_be_rare(piece)) else NEVER_RARE
        for piece, count in zip(found, dictionary.count, strict=True)
    ]
    rarity[dictionary.unk()] = 0 if rule.unknown else -max(dictionary.count) - 1
    return rarity


def _is_tag(symbol: str, count: int) -> bool:
    return symbol == MASK or (count == 1 and LANGUAGE.fullmatch(symbol) is not None)


def _can_be_rare(piece: Piece) -> bool:
    text = piece.text.decode(errors="replace")
    return len(text) > 1 and not text.replace(".", "").replace(",", "").isnumeric()


def _separates(symbol: str, rule: Definitions) -> bool:
    """A symbol with a mark in front of it does; one that goes on in the next token does not."""
    return symbol.lstrip("\u2581\u0120") in rule.symbols
