"""The nearest names, for a message about an unknown one."""

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from fairseq_ext.errors import UsageError

MOST = 3


def suggest(name: object, known: Iterable[str], otherwise: str) -> str:
    """Return "did you mean A, B?" of the names that are like an unknown one, or another text."""
    close = get_close_matches(str(name), list(known), MOST)
    return f"did you mean {', '.join(close)}?" if close else otherwise


def refuse_unknown(parser: ArgumentParser, words: Sequence[str], command: str) -> None:
    """Raise UsageError for the first flag of words that a parser does not know, if one is there."""
    flag = next((word.partition("=")[0] for word in words if word.startswith("--")), None)
    if flag is not None:
        advice = suggest(flag, parser._option_string_actions, "leave it out")
        raise UsageError(f"{flag} is no flag of {command}; {advice}")
