"""Probe of which attention heads find antecedents, on coreference corpora."""
