"""fairseq optimizers; importing this package registers them."""

from fairseq_ext.optim import lamb  # noqa: F401
