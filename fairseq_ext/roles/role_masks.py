"""The five roles of a head, each as a function of a batch of sentences.

It returns keys that every row may look at, bool [B, S], or which keys each row may, bool
[B, S, S]. A row that is left empty looks at itself; padding is never looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.context import AttentionContext
from fairseq_ext.errors import UsageError

NO_WORD = -1  # no word
NEVER_RARE = torch.iinfo(torch.long).min  # of what cannot be rare
NO_PARSE = (NO_WORD, NO_WORD, 0)  # of a token without a parse, in `Sentences.parse`
MAJOR, EXACT = 1, 2  # bits of a relation: a major one, and one that is so without its subtype


class Definitions(NamedTuple):
    """What the paper and its released code understand differently.

    Attributes:
        window: tokens that `relative` looks away to each side.
        rarest: of so many words, how many are rare.
        later: of words equally rare the later one counts.
        short: words of one character, and numbers, can be rare.
        unknown: words that are not in the dictionary are the rarest; else the least rare.
        stand_in: the first token is looked at if there are too few words that can be rare.
        ends: the ends of a sentence are looked at by `major`.
        relation: the bit of a major relation.
        children: what depends on a word in a major relation counts too.
        symbols: that separate.
    """

    window: int
    rarest: Callable[[Tensor], Tensor]
    later: bool
    short: bool
    unknown: bool
    stand_in: bool
    ends: bool
    relation: int
    children: bool
    symbols: tuple[str, ...]


DEFINITIONS = {
    "paper": Definitions(
        window=1,
        rarest=lambda words: (words / 10).ceil().clamp(min=1),
        later=False,
        short=True,
        unknown=True,
        stand_in=False,
        ends=False,
        relation=MAJOR,
        children=False,
        symbols=(",", ";", ".", "?", "!"),
    ),
    "code": Definitions(
        window=2,
        rarest=lambda words: (words / 10).floor().clamp(min=2),
        later=True,
        short=False,
        unknown=False,
        stand_in=True,
        ends=True,
        relation=EXACT,
        children=True,
        symbols=(",", ";", ".", "?", ":"),
    ),
}


@dataclass(frozen=True)
class TokenFeatures:
    """A batch, as roles see it; S positions, the real ones of a sentence stand together.

    Args:
        real: [B, S] bool, no padding.
        ends: [B, S] bool, what stands around the words of a sentence.
        begins: [B, S] bool, the first tokens of words.
        separators: [B, S] bool, symbols that separate.
        rarity: [B, S] long, how rare the word of a token is; NEVER where it cannot be rare.
        parse: [B, S, 3] of each token: the word it belongs to, the word which that one depends on,
            and bits of their relation. NONE where there is no word; None without parses.
    """

    real: Tensor
    ends: Tensor
    begins: Tensor
    separators: Tensor
    rarity: Tensor
    parse: Tensor | None = None


def rare(view: TokenFeatures, rule: Definitions) -> Tensor:
    """The tenth of the words with the highest inverse document frequency, all their tokens."""
    scores = view.rarity.masked_fill(~view.begins, NEVER_RARE)
    if rule.later:
        scores = scores.flip(1)
    ranks = scores.argsort(stable=True, dim=1, descending=True).argsort(1)
    wanted = rule.rarest(view.begins.sum(1, keepdim=True))
    chosen = (ranks < wanted) & (scores != NEVER_RARE)
    chosen = first_tokens(view.begins, chosen.flip(1) if rule.later else chosen) & ~view.ends
    if rule.stand_in:
        few = (chosen & view.begins).sum(1, keepdim=True) < wanted
        chosen = chosen | few & (view.real.cumsum(1) == 1)
    return chosen


def separator(view: TokenFeatures, rule: Definitions) -> Tensor:
    """Ends and symbols that separate."""
    return view.ends | view.separators


def dependency(view: TokenFeatures, rule: Definitions) -> Tensor:
    """A word, what it depends on, and what depends on it."""
    word, head, _ = view.parse.unbind(-1)
    up = _same(head, word)
    return _same(word, word) | up | up.transpose(1, 2)


def major(view: TokenFeatures, rule: Definitions) -> Tensor:
    """Words in a major relation (subject, object, adjective, adverb), and what they depend on."""
    word, head, relation = view.parse.unbind(-1)
    inside = (relation & rule.relation).bool()
    chosen = inside | _named(inside, head, word)
    if rule.children:
        chosen = chosen | _named(inside, word, head)
    return chosen | view.ends if rule.ends else chosen


def relative(view: TokenFeatures, rule: Definitions) -> Tensor:
    """A window around each position."""
    place = torch.arange(view.real.size(1), device=view.real.device)
    return ((place - place[:, None]).abs() <= rule.window).expand(len(view.real), -1, -1)


def none(view: TokenFeatures, rule: Definitions) -> Tensor:
    """No role: all tokens."""
    return view.real


NO_ROLE = "none"

ROLES: dict[str, Callable[[TokenFeatures, Definitions], Tensor]] = {
    "rare": rare,
    "separator": separator,
    "dependency": dependency,
    "major": major,
    "relative": relative,
    NO_ROLE: none,
}

PARSED_ROLES = ("dependency", "major")
"""Those that need `Sentences.parse`."""


def allowed_keys(role: str, view: TokenFeatures, definitions: str = "paper") -> Tensor:
    """[B, S, S] bool: which keys each row of a head with this role looks at.

    Raises:
        UsageError: it needs parses, and there are none.
    """
    if role in PARSED_ROLES and view.parse is None:
        raise UsageError(
            f"the role {role} of the model needs parses, which these sentences do not have; give a "
            "split with annotations, or to fairseq-generate --model-overrides with none in its "
            "place in encoder_roles"
        )
    given = ROLES[role](view, DEFINITIONS[definitions])
    keys = given if given.dim() == 3 else given[:, None].expand(-1, given.size(1), -1)
    keys = keys & view.real[:, None]
    itself = torch.eye(keys.size(1), dtype=torch.bool, device=keys.device)
    return torch.where(keys.any(2, keepdim=True), keys, itself)


class RoleMask(NamedTuple):
    """The roles of a group's heads, one each; of DEFINITIONS whose they are.

    A mask is made once a forward pass, for all heads and layers with its role.
    """

    names: tuple[str, ...]
    definitions: str = "paper"

    def __call__(self, context: AttentionContext) -> Tensor:
        """[B, h, S, S]."""
        return torch.stack([self._mask(name, context) for name in self.names], 1)

    def _mask(self, name: str, context: AttentionContext) -> Tensor:
        inputs, definitions = context.inputs, self.definitions
        return inputs.cached(
            ("role", name, definitions),
            lambda: ~allowed_keys(name, inputs.token_features, definitions),
        )


def first_tokens(begins: Tensor, values: Tensor) -> Tensor:
    """[B, S] for each token the value of its word's first one."""
    place = torch.arange(begins.size(1), device=begins.device)
    return values.gather(1, (begins * place).cummax(1).values)


def _named(inside: Tensor, named: Tensor, names: Tensor) -> Tensor:
    """[B, S] tokens whose name is what a token inside calls by `named`."""
    return (_same(named, names) & inside[:, :, None]).any(1)


def _same(one: Tensor, other: Tensor) -> Tensor:
    """[B, S], [B, S] -> [B, S, S] where they are the same, and something."""
    return (one[:, :, None] == other[:, None]) & (one != NO_WORD)[:, :, None]
