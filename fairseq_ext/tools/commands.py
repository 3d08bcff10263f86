"""Command lines of fairseq: their flags, this plugin, and the cores that processes share."""

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

PLUGIN = Path(__file__).parents[1]


def parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Return flag -> its last value, given as --flag value or --flag=value.

    The value of a flag is empty if another flag, or nothing, follows it.
    """
    flags = {}
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            flags[name] = value if equals else "" if following.startswith("--") else following
    return flags


def share_cores(processes: int) -> dict[str, str]:
    """Return the OMP_NUM_THREADS of each of several processes, unless it is set already."""
    cores = len(os.sched_getaffinity(0))
    threads = {"OMP_NUM_THREADS": str(max(1, cores // processes))}
    return {} if "OMP_NUM_THREADS" in os.environ else threads
