"""Kernels of normalisers and scorers: the result of their plain form, without a map in memory."""
