"""Print the table of all patches, for docs/patches.md."""

from fairseq_ext.patches import as_markdown

print(as_markdown(), end="")
