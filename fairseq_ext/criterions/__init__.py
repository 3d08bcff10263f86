"""fairseq criterions: a base criterion and auxiliary losses, registered from one table."""

from fairseq_ext.criterions import composite, sentences  # noqa: F401
