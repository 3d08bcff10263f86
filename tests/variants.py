"""Variants of trainings: mechanisms of attention, two at a time, and objectives on text."""

from collections.abc import Sequence
from itertools import combinations

from fairseq_ext.criterions.composite import OBJECTIVES

PAPERS = {  # of 8 heads the first two are hard-coded, the next two have roles or are guided
    "ag": "--ag-encoder-heads next:1,prev:1 --ag-alpha 10",
    "dna": "--encoder-normaliser doubly",
    "hna": "--encoder-normaliser hybrid",
    "roles": "--encoder-roles rare,relative",
    "asa": "--asa-layers all",
    "gaussian": "--encoder-gaussian-heads 2",
    "gate": "--head-gate",
}
ALTERNATIVES = {
    "sinkformer": "--encoder-normaliser sinkformer",
    "entmax": "--encoder-normaliser entmax --entmax-learned",
    "sink": "--encoder-normaliser sink",
    "alibi": "--encoder-positions alibi",
    "t5": "--encoder-positions t5",
    "rotary": "--encoder-positions rotary",
    "talking": "--encoder-head-mixer talking",
    "differential": "--encoder-head-mixer differential",
    "input": "--head-gate input",
    "l0": "--head-gate l0",
    "rdrop": "",
    "dense": "--encoder-scorer dense",
    "random": "--encoder-scorer random",
    "disentangled": "--encoder-scorer disentangled --disentangled-buckets 4 "
    "--disentangled-distance 6",
}
MECHANISMS = PAPERS | ALTERNATIVES
NORMALISERS = {"dna", "hna", "sinkformer", "entmax", "sink"}  # one flag
POSITIONS = {"alibi", "t5", "rotary"}
GATES = {"gate", "input", "l0"}
SECOND_PASSES = {"asa", "rdrop"}  # a criterion has one
MIXERS = {"talking", "differential"}
MIXED = ({"talking", "roles"}, {"talking", "gaussian"})  # heads of several kinds
SCORERS = {"dense", "random", "disentangled"}
WITHOUT_PRODUCT = [  # of queries and keys alone, which turn or are halved
    {scorer, other} for scorer in sorted(SCORERS) for other in ("rotary", "differential")
]
APART = (NORMALISERS, POSITIONS, GATES, SECOND_PASSES, MIXERS, *MIXED, SCORERS, *WITHOUT_PRODUCT)
PAIRS = [
    pair
    for pair in combinations(MECHANISMS, 2)
    if not any(group.issuperset(pair) for group in APART)
]
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
