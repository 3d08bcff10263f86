"""fairseq scorers (`--scoring`); importing this package registers them."""

from fairseq_ext.scoring import rouge  # noqa: F401
