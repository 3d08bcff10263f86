"""Verbs of `fairseq-ext` about environments, checkpoints and processes."""
