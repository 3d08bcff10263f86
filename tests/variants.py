"""Variants of trainings: mechanisms of attention, two at a time, and objectives on text."""

from collections.abc import Sequence
from itertools import combinations

from mechanism_cases import list_cases

from fairseq_ext.criterions.composite import OBJECTIVES

CASES = {case.name: case for case in list_cases() if case.flags is not None}
MECHANISMS = {name: case.flags for name, case in CASES.items()}  # for 8 heads
PAPERS = {name: flags for name, flags in MECHANISMS.items() if CASES[name].paper}
ALTERNATIVES = {name: flags for name, flags in MECHANISMS.items() if name not in PAPERS}


def in_slot(slot: str) -> set[str]:
    """Return the mechanisms that stand in one slot, where there is one of them at a time."""
    return {name for name, case in CASES.items() if case.slot == slot}


def go_together(one: str, other: str) -> bool:
    """Tell whether two mechanisms are in different slots, and neither is declared to be apart."""
    first, second = CASES[one], CASES[other]
    return first.slot != second.slot and not any(
        {case.name, case.slot} & {*another.apart}
        for case, another in ((first, second), (second, first))
    )


PAIRS = [pair for pair in combinations(MECHANISMS, 2) if go_together(*pair)]
PAPER_PAIRS = [pair for pair in PAIRS if PAPERS.keys() >= {*pair}]


def cover(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return few sets of mechanisms that go together, such that each pair is in one of them."""
    both = {*pairs} | {pair[::-1] for pair in pairs}
    missing, sets = dict.fromkeys(pairs), []
    while missing:
        chosen = list(next(iter(missing)))
        while fitting := [
            name
            for name in MECHANISMS
            if name not in chosen and all((one, name) in both for one in chosen)
        ]:
            counts = [
                sum({(one, n), (n, one)} & missing.keys() != set() for one in chosen)
                for n in fitting
            ]
            chosen.append(fitting[counts.index(max(counts))])
        sets.append(tuple(name for name in MECHANISMS if name in chosen))
        missing = {pair: None for pair in missing if not {*pair} <= {*chosen}}
    return sets


COVERING = cover(PAIRS)

PRETRAINING = [
    name + more
    for name in OBJECTIVES
    if name.startswith(("masked_lm", "replaced"))
    for more in ("", "_ag")
]
