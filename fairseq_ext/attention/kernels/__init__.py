"""Kernels that normalisers may bring: the same result as their plain form, without a map."""
