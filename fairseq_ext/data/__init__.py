"""Corpora: the built-in English-German grammar, and checks made before work begins."""
