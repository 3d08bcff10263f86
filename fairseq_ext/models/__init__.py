"""fairseq models; importing this package registers the architectures."""

from fairseq_ext.models import architectures  # noqa: F401
