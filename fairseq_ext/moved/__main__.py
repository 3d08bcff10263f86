"""Print old import paths and new ones."""

from fairseq_ext.moved import as_text

print(as_text(), end="")
