"""fairseq models; importing this package registers the architectures."""

from fairseq_ext.models import architectures, sentence_baselines, vqa  # noqa: F401
