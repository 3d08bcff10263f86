"""Attention mechanisms for fairseq: importing this package registers all of them.

Steps of data recipes, `python -m fairseq_ext.data.…`, register nothing: fairseq and torch take
longer to import than most steps to run.
"""

import sys

from fairseq_ext.errors import plain_errors

if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("fairseq_ext.data."):
    plain_errors()
else:
    from fairseq_ext import registration  # noqa: F401
