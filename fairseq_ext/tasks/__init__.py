"""fairseq tasks; importing this package registers them."""

from fairseq_ext.tasks import corpus, replaced_tokens, sentence_pairs, sentences  # noqa: F401

corpus.install()
