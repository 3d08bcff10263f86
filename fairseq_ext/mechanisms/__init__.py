"""Mechanisms: what can stand in the slots of attention, one file or folder each."""

import fairseq_ext.attention  # noqa: F401 (which imports those that it names)
