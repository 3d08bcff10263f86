"""Ranges of numbers of our own commands; those of fairseq's are in the package."""

import sys
from math import inf
from typing import NamedTuple

from .commands import Command
from .options import EITHER, WORKS, Option


class Interval(NamedTuple):
    """An interval with both of its ends, and numbers outside it that are accepted too.

    Attributes:
        inside: what is expected of accepted numbers; not all of them need to suit the data.
    """

    low: float
    high: float = inf
    also: tuple[float, ...] = ()
    inside: str = WORKS

    def accepts(self, number: float) -> bool:
        return self.low <= number <= self.high or number in self.also


MOST = 10**15
FROM = {  # lowest, highest -> flags
    (1, MOST): "columns limit longest merges tokens valid",
    (0, MOST): "distractors every index random words",
    (1, inf): "best cpu-processes epochs gpus jobs last updates",
    (1, sys.maxsize): "batch-size",
}
OF_FLAG = {f"--{name}": Interval(*ends) for ends, names in FROM.items() for name in names.split()}
OF_FLAG |= {
    "--threshold": Interval(0, 1),
    "--resamples": Interval(100),
    "--ratio": Interval(1),
    "--size": Interval(1, MOST, inside=EITHER),
    "--pictures": Interval(3, MOST, inside=EITHER),
    "--max-tokens": Interval(1, MOST, inside=EITHER),
    "--average": Interval(1, inside=EITHER),
    "--nodes": Interval(1, inside=EITHER),
    "--node-rank": Interval(0, inside=EITHER),
    "--deviation": Interval(0, 1e308),
    "--epsilon": Interval(5e-324),
}
"""Flag -> range in all verbs and steps, and in scripts but for those below."""
POSITIVE = "epochs every folds jobs longest merges pictures seeds updates".split()
OF_SCRIPTS = {f"--{name}": Interval(1, MOST - 1) for name in POSITIVE}
OF_SCRIPTS |= dict.fromkeys(["--test-last", "--vocab-size"], Interval(1, MOST - 1, inside=EITHER))


def find_own_range(command: Command, option: Option) -> Interval | None:
    """Return the range of a number of a verb, a step or a script; None if it has none."""
    if command.program.startswith("fairseq-") and command.program != "fairseq-ext":
        return None
    if command.name == "ext sweep" and option.flag == "--folds":
        return Interval(2, 1000, (0,))
    own = OF_SCRIPTS if command.program.endswith(".sh") else {}
    return (OF_FLAG | own).get(option.flag) if option.kind is not str else None
