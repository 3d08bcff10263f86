"""Print the table of old import paths, for docs/upgrading.md."""

from fairseq_ext.moved import as_text

print(as_text(), end="")
