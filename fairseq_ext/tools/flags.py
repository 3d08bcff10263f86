"""Flags in command lines of fairseq."""

from collections.abc import Sequence
from itertools import zip_longest


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
