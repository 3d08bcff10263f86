"""Checks of a training: what is refused before it begins, and when it resumes."""
