"""Command lines of fairseq: their flags, and what differs between two of them."""

import re
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


def resolve_user_dir(folder: str, plugin: str = str(PLUGIN)) -> str:
    """Return the folder of a --user-dir; `fairseq_ext` is this package, wherever it lies."""
    return plugin if folder == PLUGIN.name and not Path(folder).exists() else folder


def describe_difference(before: str, now: str) -> str:
    """Return which flags one command has and the other lacks, or that their order differs."""
    old, new = (re.split(r" (?=--)", command) for command in (before, now))
    flags = {"with": [f for f in old if f not in new], "without": [f for f in new if f not in old]}
    differences = [f"{word} {' '.join(each)}" for word, each in flags.items() if each]
    return " and ".join(differences) or "with the same flags in another order"


def drop_world_size(command: str) -> str:
    """Return a command without the flag of one device, which it has where there are several."""
    return re.sub(r" --distributed-world-size 1(?= |$)", "", command)
