"""Silence of logs while fairseq is imported and builds models."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_logging() -> Iterator[None]:
    """Disable all logs within a block or a decorated function.

    fairseq logs packages that are not installed when it is imported, and every dictionary that it
    loads.
    """
    level = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(level)
