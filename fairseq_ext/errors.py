"""The one exception type that is shown to a user as a plain sentence."""

import os
import sys
from functools import cache
from types import TracebackType


class UsageError(ValueError):
    """What was given cannot be used: the message says what it was, what is accepted, what to do.

    On a command line only the message is printed (no traceback) and the exit code is 1;
    from Python it is an ordinary :class:`ValueError`.
    """


class Unfinished(UsageError):
    """Work was broken off by the machine, as by a full disk; the same command may go on with it."""


@cache
def plain_errors() -> None:
    """Show a UsageError that nobody caught as one line."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, UsageError):
            print(f"error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else hydra prints a traceback of its own
