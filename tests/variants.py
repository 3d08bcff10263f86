"""Variants of trainings: mechanisms of attention, two at a time, and objectives on text."""

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

PRETRAINING = [
    name + more
    for name in OBJECTIVES
    if name.startswith(("masked_lm", "replaced"))
    for more in ("", "_ag")
]
