"""Variants of trainings: mechanisms of attention, two at a time, and objectives on text."""

from collections.abc import Sequence
from itertools import combinations

from fairseq_ext.criterions.composite import OBJECTIVES

MECHANISMS = {  # of 8 heads the first two are hard-coded, the next two have roles or are guided
    "ag": "--ag-encoder-heads next:1,prev:1 --ag-alpha 10",
    "dna": "--encoder-normaliser doubly",
    "hna": "--encoder-normaliser hybrid",
    "roles": "--encoder-roles rare,relative",
    "asa": "--asa-layers all",
    "gaussian": "--encoder-gaussian-heads 2",
    "gate": "--head-gate",
}
NORMALISERS = {"dna", "hna"}  # one flag
PAIRS = [pair for pair in combinations(MECHANISMS, 2) if not NORMALISERS.issuperset(pair)]


def cover(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return few sets of mechanisms that go together, such that each pair is in one of them."""
    missing, sets = list(pairs), []
    while missing:
        chosen = list(missing[0])
        for name in MECHANISMS:
            new = {(one, name) for one in chosen} | {(name, one) for one in chosen}
            if name not in chosen and len(new & {*pairs}) == len(chosen):
                chosen.append(name)
        sets.append(tuple(name for name in MECHANISMS if name in chosen))
        missing = [pair for pair in missing if not {*pair} <= {*chosen}]
    return sets


COVERING = cover(PAIRS)

PRETRAINING = [
    name + more
    for name in OBJECTIVES
    if name.startswith(("masked_lm", "replaced"))
    for more in ("", "_ag")
]
