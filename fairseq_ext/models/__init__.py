"""fairseq models; importing this package registers the architectures."""

from fairseq_ext.models import architectures, sentence_baselines  # noqa: F401
