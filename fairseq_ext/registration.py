"""Importing this registers models, criterions, tasks and the rest with fairseq."""

from fairseq_ext import compat

compat.apply()

from fairseq_ext import criterions, optim, scoring, tasks  # noqa: E402, F401
from fairseq_ext.criterions import beginning  # noqa: E402
from fairseq_ext.data import bpe  # noqa: E402, F401
from fairseq_ext.models import restore  # noqa: E402

beginning.install()
restore.install()
