"""Print the lists of docs/patches.md from the docstrings of patches and changes for commands."""

import inspect
import re
from collections.abc import Callable

from fairseq_ext import commands, patches

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
        fault, asked, since, until = read_facts(change)
        asked = asked.removesuffix("; none")
        since = "" if since == "always" else f" *Since*: {since}."
        lines.append(f"- `{name}`{mark}: {fault}")
        lines.append(f"    - {asked[0].upper()}{asked[1:]}.{since} *Until*: {until}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown("Patches", patches.PATCHES))
    print(as_markdown("Commands", commands.CHANGES), end="")
