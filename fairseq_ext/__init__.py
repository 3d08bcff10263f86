"""Attention mechanisms for fairseq, as a plugin: `--user-dir fairseq_ext`.

Importing the package patches fairseq and registers architectures, criterions and tasks if fairseq
is loaded, as it is when fairseq imports a user directory. Otherwise nothing heavy is imported, so
that `fairseq-ext` and the steps of data recipes start fast; fairseq is patched as soon as it is
loaded. In Python, `import fairseq_ext.registry` registers everything.
"""

import sys

__version__ = "0.2.0"

if "fairseq" in sys.modules:
    from fairseq_ext import registry  # noqa: F401
else:
    from fairseq_ext.deferred import await_fairseq

    await_fairseq()
