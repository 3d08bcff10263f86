"""Imports of the mechanisms that models use: all of them here, in an exported folder some."""

import fairseq_ext.mechanisms  # noqa: F401
