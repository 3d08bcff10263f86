"""Attention mechanisms for fairseq, as a plugin: `--user-dir fairseq_ext`.

The package registers its architectures, criterions and tasks when both it and fairseq are loaded,
in any order. Without fairseq nothing heavy is imported, so that `fairseq-ext` and the steps of data
recipes start fast. In Python, `import fairseq_ext.registry` loads fairseq and registers everything.
"""

import sys

from fairseq_ext.deferred import register_after_fairseq
from fairseq_ext.moved.finder import keep_old_names

__version__ = "0.3.0"

keep_old_names()

if "fairseq" in sys.modules:
    from fairseq_ext import registry  # noqa: F401
else:
    register_after_fairseq()
