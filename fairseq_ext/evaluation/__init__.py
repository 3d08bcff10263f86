"""Scores of what a model produced, and the facts of the training that it comes from."""
