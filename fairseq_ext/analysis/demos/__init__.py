"""Demonstrations on synthetic data, made for pictures; no part of a training uses them."""
