"""Role-guided masks (Wang et al. 2020): heads that look at some kinds of tokens alone."""

from fairseq_ext.mechanisms.roles import role_heads  # noqa: F401 (registers)
