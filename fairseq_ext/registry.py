"""Registration of everything with fairseq, when this module is imported, and all patches."""

from fairseq_ext import patches

patches.apply()

from fairseq_ext import criterions, models, tasks  # noqa: E402, F401
from fairseq_ext.data import wordpiece_bpe  # noqa: E402, F401
from fairseq_ext.evaluation import rouge_scorer  # noqa: E402, F401
