"""Invariants of models, from the package that users test their own mechanisms with."""

from fairseq_ext.testing.invariants import *  # noqa: F403
from fairseq_ext.testing.invariants import EOS, PAD  # noqa: F401
