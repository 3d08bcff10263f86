"""The five roles of a head (Wang et al. 2020, Section 3): functions of a batch of sentences.

A role returns keys that every row may look at, bool [B, S], or which keys each row may look at,
bool [B, S, S]. A row that is left empty looks at itself; no row looks at padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.context import AttentionContext
from fairseq_ext.errors import UsageError

NO_WORD = -1  # in place of a word's index
NEVER_RARE = torch.iinfo(torch.long).min  # the rarity of a word that cannot be rare
NO_PARSE = (NO_WORD, NO_WORD, 0)  # of a token without a parse, in `TokenFeatures.parse`
MAJOR, EXACT = 1, 2  # bits of a relation: a major one, and one that is so without its subtype


class Definitions(NamedTuple):
    """Definitions of the roles, by default the paper's; its released code differs from them.

    Attributes:
        window: how many tokens `relative` looks away to each side.
        rarest: number of words [B, 1] -> how many of them are rare.
        later: of equally rare words the later one counts as rarer.
        short: words of one character, and numbers, can be rare.
        stand_in: the first token is looked at if there are too few words that can be rare.
        ends: `major` looks at the ends of a sentence.
        relation: the bit of a major relation.
        children: what depends on a word in a major relation counts too.
        symbols: the separators.
        scaled_by_width: scores of the layer are divided by the root of the model's width, not of
            the width of a head.
    """

    window: int = 1
    rarest: Callable[[Tensor], Tensor] = lambda words: (words / 10).ceil().clamp(min=1)
    later: bool = False
    short: bool = True
    stand_in: bool = False
    ends: bool = False
    relation: int = MAJOR
    children: bool = False
    symbols: tuple[str, ...] = (",", ";", ".", "?", "!")
    scaled_by_width: bool = False


DEFINITIONS = {
    "paper": Definitions(),
    "code": Definitions(
        window=2,
        rarest=lambda words: (words / 10).floor().clamp(min=2),
        later=True,
        short=False,
        stand_in=True,
        ends=True,
        relation=EXACT,
        children=True,
        symbols=(",", ";", ".", "?", ":"),
        scaled_by_width=True,
    ),
}


@dataclass(frozen=True)
class TokenFeatures:
    """The features of a batch's tokens that roles read; a sentence's real tokens stand together.

    Args:
        real: [B, S] bool, False at padding.
        ends: [B, S] bool, symbols before and after the words of a sentence.
        begins: [B, S] bool, the first tokens of words.
        separators: [B, S] bool, symbols that separate.
        rarity: [B, S] long, how rare the word of a token is; NEVER_RARE where it cannot be rare.
        parse: [B, S, 3] for each token: its word, the word on which that one depends, and bits of
            their relation. NO_WORD where there is no word; None without parses.
    """

    real: Tensor
    ends: Tensor
    begins: Tensor
    separators: Tensor
    rarity: Tensor
    parse: Tensor | None = None

    def words_heads_relations(self, role: str) -> tuple[Tensor, ...]:
        """Return the parse as three tensors [B, S].

        Raises:
            UsageError: there are no parses for this role.
        """
        if self.parse is None:
            raise UsageError(
                f"the role {role} of the model needs parses, which these sentences lack; give a"
                " split with them, or fairseq-generate --model-overrides with none in encoder_roles"
            )
        return self.parse.unbind(-1)


def rare(tokens: TokenFeatures, rule: Definitions) -> Tensor:
    """Return all tokens of the tenth of the words with the highest inverse document frequency."""
    scores = tokens.rarity.masked_fill(~tokens.begins, NEVER_RARE)
    if rule.later:
        scores = scores.flip(1)
    ranks = scores.argsort(stable=True, dim=1, descending=True).argsort(1)
    wanted = rule.rarest(tokens.begins.sum(1, keepdim=True))
    chosen = (ranks < wanted) & (scores != NEVER_RARE)
    if rule.later:
        chosen = chosen.flip(1)
    chosen = _spread_over_words(tokens.begins, chosen) & ~tokens.ends
    if rule.stand_in:
        too_few = (chosen & tokens.begins).sum(1, keepdim=True) < wanted
        chosen = chosen | too_few & (tokens.real.cumsum(1) == 1)
    return chosen


def separator(tokens: TokenFeatures, rule: Definitions) -> Tensor:
    """Return the ends of the sentence and the symbols that separate."""
    return tokens.ends | tokens.separators


def dependency(tokens: TokenFeatures, rule: Definitions) -> Tensor:
    """Return each row's word, the word on which it depends, and the words that depend on it."""
    word, head, _ = tokens.words_heads_relations("dependency")
    is_head = _equal_words(head, word)
    return _equal_words(word, word) | is_head | is_head.transpose(1, 2)


def major(tokens: TokenFeatures, rule: Definitions) -> Tensor:
    """Return words in a major relation, and the words on which they depend.

    Major relations are subject, object, adjective and adverb.
    """
    word, head, relation = tokens.words_heads_relations("major")
    in_relation = (relation & rule.relation).bool()
    # tokens whose word is the head of one in a relation
    chosen = in_relation | (_equal_words(head, word) & in_relation[:, :, None]).any(1)
    if rule.children:  # tokens whose head is in a relation
        chosen = chosen | (_equal_words(word, head) & in_relation[:, :, None]).any(1)
    return chosen | tokens.ends if rule.ends else chosen


def relative(tokens: TokenFeatures, rule: Definitions) -> Tensor:
    """Return a window around each position."""
    place = torch.arange(tokens.real.size(1), device=tokens.real.device)
    return ((place - place[:, None]).abs() <= rule.window).expand(tokens.real.size(0), -1, -1)


def no_role(tokens: TokenFeatures, rule: Definitions) -> Tensor:
    """Return all tokens."""
    return tokens.real


NO_ROLE = "none"

ROLES: dict[str, Callable[[TokenFeatures, Definitions], Tensor]] = {
    "rare": rare,
    "separator": separator,
    "dependency": dependency,
    "major": major,
    "relative": relative,
    NO_ROLE: no_role,
}

PARSED_ROLES = ("dependency", "major")
"""The roles that need `TokenFeatures.parse`."""


def allowed_keys(role: str, tokens: TokenFeatures, definitions: str = "paper") -> Tensor:
    """Return which keys each row of a head with this role looks at, [B, S, S] bool.

    Raises:
        UsageError: the role needs parses, and there are none.
    """
    keys = ROLES[role](tokens, DEFINITIONS[definitions])
    if keys.dim() == 2:
        keys = keys[:, None].expand(-1, keys.size(1), -1)
    keys = keys & tokens.real[:, None]
    itself = torch.eye(keys.size(1), dtype=torch.bool, device=keys.device)
    return keys | itself & ~keys.any(2, keepdim=True)


@dataclass(frozen=True)
class RoleMask:
    """A mask function for a group of heads with one role each.

    The mask of a role is computed once for each forward pass, for all heads and layers.

    Attributes:
        names: the role of each head.
        definitions: a key of DEFINITIONS.
    """

    names: tuple[str, ...]
    definitions: str = "paper"

    def __call__(self, context: AttentionContext) -> Tensor:
        """Return the mask, [B, h, S, S] bool, True = may not be attended."""
        return torch.stack([self._mask(name, context) for name in self.names], 1)

    def _mask(self, name: str, context: AttentionContext) -> Tensor:
        tokens, definitions = context.inputs.token_features, self.definitions
        key = ("role", name, definitions)
        return context.inputs.cached(key, lambda: ~allowed_keys(name, tokens, definitions))


def _spread_over_words(begins: Tensor, values: Tensor) -> Tensor:
    """Return for each token the value of its word's first token, [B, S]."""
    place = torch.arange(begins.size(1), device=begins.device)
    return values.gather(1, (begins * place).cummax(1).values)


def _equal_words(rows: Tensor, columns: Tensor) -> Tensor:
    """Return where two words are the same and not NO_WORD: [B, S], [B, S] -> [B, S, S] bool."""
    return (rows[:, :, None] == columns[:, None]) & (rows != NO_WORD)[:, :, None]
