"""Patches of what commands write: results are complete or not there; logs are cut in one line."""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_ext.files import rename_when_complete
from fairseq_ext.wrapping import replace, wrap

NEVER = logging.CRITICAL + 1
GENERATE = "fairseq_cli.generate"


def say_once_that_a_log_is_cut() -> None:
    """Say in one line that the file of a log cannot be written.

    Fault: On a full disk each line of preprocess.log, or of --log-file, leaves a traceback.
    Since: always.
    Until: logging says so itself.
    """

    def handle(original: Callable, handler: logging.FileHandler, record: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            original(handler, record)
        elif handler.level < NEVER:
            handler.setLevel(NEVER)
            reason = error.strerror or error
            print(f"warning: {handler.baseFilename} is cut short ({reason})", file=sys.stderr)

    wrap("logging:FileHandler", "handleError", handle)


@contextmanager
def open_whole(path: str, mode: str, **settings: Any) -> Iterator[Any]:
    """Open a file to write, which gets its name when it is complete."""
    with rename_when_complete(Path(path)) as part, part.open(mode, **settings) as file:
        yield file


def write_results_whole() -> None:
    """Give the file of --results-path its name when it is complete.

    Fault: What an interrupted fairseq-generate has written stands under the final name.
    Since: fairseq 0.9.
    Until: fairseq-generate writes to a temporary name first.
    """
    importlib.import_module(GENERATE)  # it may be half imported: what is replaced is a builtin
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    as_main = ["__main__"] if spec is not None and spec.name == GENERATE else []
    replace([GENERATE, *as_main], "open", open_whole)
