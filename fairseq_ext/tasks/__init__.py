"""fairseq tasks; importing this package registers them."""

from fairseq_ext.tasks import (  # noqa: F401
    multiple_choice,
    plain_text,
    sentences,
    sequence_tagging,
    span_extraction,
    translation_roles,
)
