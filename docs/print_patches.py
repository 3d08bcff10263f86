"""Print the lists of docs/patches.md from the docstrings of patches and changes for commands."""

import inspect
import re
from collections.abc import Callable

from fairseq_ext import commands, patches

LABELS = ("Who meets it; how; smaller mend", "Since", "Goes when")
FACTS = re.compile(r"Fault: (.+) Asked: (.+)\. Since: (.+)\. Until: (.+)\.$")


def read_facts(change: Callable[[], None]) -> list[str]:
    """Return what the docstring of a change says under Fault, Asked, Since and Until."""
    text = " ".join((inspect.getdoc(change) or "").split())
    facts = FACTS.search(text)
    assert facts, f"{change.__name__} does not say its fault, who meets it, since and until when"
    return list(facts.groups())


def as_markdown(title: str, changes: tuple[Callable[[], None], ...]) -> str:
    """Return a section with an item for each change; * marks those that can be switched off."""
    lines = [f"## {title}", ""]
    for change in changes:
        mark = " \\*" if change in patches.NUMBERS | commands.NUMBERS else ""
        name = f"{change.__module__.removeprefix('fairseq_ext.')}.{change.__name__}"
        fault, *facts = read_facts(change)
        lines += [f"- `{name}`{mark}", *(f"    - {each}." for each in split(fault))]
        lines += [f"    - *{label}*: {fact}." for label, fact in zip(LABELS, facts, strict=True)]
    return "\n".join(lines) + "\n"


def split(fault: str) -> list[str]:
    """Return the sentences of a fault, and the parts between their semicolons."""
    parts = re.split(r"(?<=\w)[.;] ", fault.removesuffix("."))
    return [part[0].upper() + part[1:] for part in parts]


if __name__ == "__main__":
    print(as_markdown("Patches", patches.PATCHES))
    print(as_markdown("Commands", commands.CHANGES), end="")
