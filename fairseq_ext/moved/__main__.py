"""Print the table of old import paths, for docs/upgrading.md."""

from fairseq_ext.moved import as_markdown

print(as_markdown(), end="")
