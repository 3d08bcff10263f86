"""The form of pages that can be read: short lines, paragraphs and cells of tables."""

import re
from collections.abc import Iterator

PARAGRAPH, CELL, PRINTED_CELL, LINE = 80, 25, 30, 160
PRINTED = re.compile(r"^<!-- printed by .*?^<!-- end of [^\n]*", re.M | re.S)
FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.M | re.S)
CODE = re.compile(r"^```.*?^```\n?", re.M | re.S)


def find_long(text: str, cell: int = CELL) -> Iterator[str]:
    """Find lines, paragraphs and cells that are too long; code and addresses do not count."""
    text = CODE.sub("\n", FRONT_MATTER.sub("", text))
    yield from (x for x in text.splitlines() if len(x) > LINE and x.strip()[0] not in "|!")
    text = re.sub(r"\]\([^)]*\)", "]", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    cells = [each for line in tables for each in line.strip("|").split("|")]
    yield from (each for each in cells if len(each.split()) > cell)
    blocks = re.split(r"\n\s*\n|\n(?= *(?:-|\d+\.) )", text)
    blocks = [each for each in blocks if not each.startswith(("|", "#", "<", "!", "    "))]
    yield from (each for each in blocks if len(each.split()) > PARAGRAPH)


def find_long_in_page(text: str) -> list[str]:
    """Find what is too long in a page, where cells of printed parts may have a few words more."""
    printed = "\n\n".join(PRINTED.findall(text))
    return [*find_long(PRINTED.sub("", text)), *find_long(printed, PRINTED_CELL)]
