"""Reader of corpora of words with tags of entities; see corpora_readers.py."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fairseq_ext.prepare.corpora_readers import Example, malformed, numbered_lines
from fairseq_ext.prepare.step import clean, logger

BETWEEN = {"tab": r"\t", "space": " "}


def begin_entities(tags: Sequence[str]) -> list[str]:
    """Return tags in IOB2: an I that continues no entity of its type becomes a B."""
    pairs = zip(["O", *tags], tags, strict=False)
    return [f"B{tag[1:]}" if tag[0] == "I" and last[1:] != tag[1:] else tag for last, tag in pairs]


def tagged(
    path: Path,
    labelled: bool,
    types: Sequence[str],
    between: str = "tab",
    cleaned: bool = False,
    corrected: bool = False,
) -> Iterator[Example]:
    """Yield sentences from lines of a word and its tag in IOB, which blank lines separate.

    Args:
        path: the file.
        labelled: examples have labels always.
        types: types of entities.
        between: what stands between word and tag, a key of `BETWEEN`.
        cleaned: as in `sentences`; a word of blanks alone stays.
        corrected: tags become those of `begin_entities`; a warning counts them.
    """
    gap = BETWEEN[between]
    form = re.compile(rf"([^{gap}]+){gap}(O|[BI]-(?:{'|'.join(map(re.escape, types))}))")

    def split(where: str, line: str) -> Sequence[str]:
        if found := form.fullmatch(line):
            return found.groups()
        expected = f"O, B-TYPE or I-TYPE, TYPE being one of {', '.join(types)}"
        raise malformed(where, f"is {line[:60]!r} and must be a word, a {between} and {expected}")

    changed = 0
    for blank, lines in groupby(numbered_lines(path), lambda line: not line[1].strip(" \t")):
        if not blank:
            words, given = zip(*(split(*line) for line in lines), strict=True)
            tags = begin_entities(given) if corrected else list(given)
            changed += sum(map(str.__ne__, given, tags))
            kept = [clean(word) or word for word in words] if cleaned else list(words)
            yield {"words": kept, "tags": tags}
    if changed:
        logger.warning("%s: %d entities begin with an I: taken for a B", path, changed)
