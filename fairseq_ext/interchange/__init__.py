"""Formats of other libraries: checkpoints that come from Hugging Face, or go there."""
