"""Exceptions that a user sees as one plain sentence."""

import os
import sys
from functools import cache
from types import TracebackType


class UsageError(ValueError):
    """Error of usage; its message says what was given, what is accepted and what to do.

    A command line prints only the message (no traceback) and ends with exit code 1. In Python it is
    an ordinary :class:`ValueError`.
    """


class Unfinished(UsageError):
    """Error of the machine, like a full disk, after which the same command may continue."""


@cache
def plain_errors() -> None:
    """Print a UsageError that nobody caught as one line.

    Fault: A UsageError prints a traceback.
    Since: always.
    Until: fairseq's commands have a way to print a sentence.
    """
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, UsageError):
            print(f"error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else hydra prints a traceback of its own
