"""Attention mechanisms for fairseq, as a plugin: `--user-dir fairseq_ext`.

Importing the package registers its architectures, criterions and tasks if fairseq is loaded, as it
is when fairseq imports a user directory. Otherwise nothing heavy is imported, so that `fairseq-ext`
and the steps of data recipes start fast; what is loaded later registers at its first
`--user-dir`. In Python, `import fairseq_ext.registry` registers everything.
"""

import sys

from fairseq_ext.deferred import register_on_user_dir

__version__ = "0.2.0"

if "fairseq" in sys.modules:
    from fairseq_ext import registry  # noqa: F401
else:
    register_on_user_dir()
