"""Patch of `fairseq-generate --results-path`: a file of results is complete, or not there."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_ext.files import rename_when_complete
from fairseq_ext.wrapping import replace

GENERATE = "fairseq_cli.generate"


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
