"""fairseq criterions: a base criterion and auxiliary losses, registered from one table."""

from fairseq_ext.criterions import (  # noqa: F401
    composite,
    sentences,
    sequence_tagging,
    span_extraction,
)
