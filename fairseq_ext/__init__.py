"""Attention mechanisms for fairseq: importing this package registers all of them.

`fairseq-ext` and the steps of data recipes register nothing by themselves: fairseq and torch take
longer to import than most of them to run.
"""

import sys
from pathlib import Path

from fairseq_ext.errors import plain_errors


def _program() -> str:
    """The module or the script that Python runs."""
    if sys.argv[:1] == ["-m"]:  # while it looks for the module
        return sys.orig_argv[-len(sys.argv)]
    return Path(*sys.argv[:1]).name


if _program().startswith(("fairseq_ext.cli", "fairseq_ext.data.")) or _program() == "fairseq-ext":
    plain_errors()
else:
    from fairseq_ext import registration  # noqa: F401
