"""fairseq criterions: objectives and the terms beside them, registered from one table."""

from fairseq_ext.criterions import composite  # noqa: F401 (registers)
