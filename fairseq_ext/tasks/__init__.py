"""fairseq tasks; importing this package registers them."""

from fairseq_ext.tasks import replaced_tokens, sentence_pairs  # noqa: F401
