"""Demonstrations on synthetic data, for pictures only; no training uses them."""
