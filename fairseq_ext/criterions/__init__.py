"""fairseq criterions: objectives and the terms beside them, registered from one table."""

from fairseq_ext.criterions import (  # noqa: F401 (registers)
    composite,
    sentences,
    sequence_tagging,
    span_extraction,
)
