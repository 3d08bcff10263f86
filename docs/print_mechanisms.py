"""Print the rows of mechanisms, from the front matter of docs/mechanisms/, where readers find them.

The front matter of a page lists its rows under `mechanisms`:

    order           place among all rows
    name            what the mechanism is called
    flags           flags that choose it; a row without them has papers and files alone
    papers          paper -> its address, which may be missing
    slot            the slot of docs/architecture.md that it stands in
    line            what it does, a sentence
    equation, computed, options, loss
                    where the paper has it, and which files do
    variants        names in studies -> flags for the encoder of a small model
    sides           other names of it in records of results
    aims            how many times stock fairseq's a step of training may take
    term            of a criterion, which the variants need
    alternative_to  mechanisms of the papers that studies compare the variants with

Each target has a part between two marks that say `printed by docs/print_mechanisms.py`, and nothing
else of it is changed.

Example:
  python docs/print_mechanisms.py          # says which files are not as they would be written
  python docs/print_mechanisms.py --write
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = Path("docs", "mechanisms")
MARK = re.compile(
    r"(?P<begin>^[^\n]*printed by docs/print_mechanisms\.py: (?P<name>[\w ]+)[^\n]*\n)"
    r".*?(?P<end>^[^\n]*end of (?P=name)\b)",
    re.M | re.S,
)

Row = dict[str, Any]


def read_front_matter(page: Path) -> dict[str, Any]:
    """Return what stands between the lines of --- at the top of a page."""
    text = page.read_text("utf-8")
    return yaml.safe_load(text.split("---\n")[1]) if text.startswith("---\n") else {}


def read_rows(root: Path) -> list[Row]:
    """Return the rows of all pages in order, each with the name of its page."""
    rows = [
        {**row, "page": page.name}
        for page in sorted((root / PAGES).glob("*.md"))
        for row in read_front_matter(page).get("mechanisms", [])
    ]
    return sorted(rows, key=lambda row: row["order"])


def print_table(titles: str, rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    head = [f"| {titles} |", "|---" * (titles.count("|") + 1) + "|"]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") for row in rows]
    return "\n".join([*head, *lines, ""])


def link_papers(row: Row) -> str:
    """Return the papers of a row, each with a link if there is one."""
    papers = row.get("papers", {}).items()
    return ", ".join(f"[{name}]({address})" if address else name for name, address in papers)


def link_name(row: Row, folder: str) -> str:
    """Return the name of a mechanism with a link to its page from a file above `folder`."""
    page = f"{folder}{row['page']}" + ("#sizes" if row["page"] == "index.md" else "")
    return f"[{row['name']}]({page})"


def print_readme(rows: list[Row], root: Path) -> str:
    """Return the table *What there is*."""
    cells = [
        [link_name(row, "docs/mechanisms/"), row["flags"], link_papers(row)]
        for row in rows
        if "flags" in row
    ]
    return print_table("name | flag or architecture | paper", cells)


def print_index(rows: list[Row], root: Path) -> str:
    """Return the table of docs/mechanisms/index.md."""
    cells = [[link_name(row, ""), row["line"], row["flags"]] for row in rows if "flags" in row]
    return print_table("mechanism | what it does | flag or architecture", cells)


def print_slots(rows: list[Row], root: Path) -> str:
    """Return the table of slots; the front matter of the page has what no mechanism adds."""
    cells = []
    for slot in read_front_matter(root / "docs" / "architecture.md")["slots"]:
        own = [row for row in rows if row.get("slot") == slot["slot"] and row["page"] != "index.md"]
        links = ", ".join(link_name(row, "mechanisms/") for row in own)
        cells.append([slot["slot"], slot["file"], slot.get("parts", ""), links])
    return print_table("slot | file | parts of the core | mechanisms", cells)


def print_papers(rows: list[Row], root: Path) -> str:
    """Return the table *Paper → files*."""
    places = ("equation", "computed", "options", "loss")
    cells = [
        [row["name"], *(row.get(place, "") for place in places)]
        for row in rows
        if {*places} & {*row}
    ]
    titles = "mechanism | equation | where it is computed | where its options are | loss"
    return print_table(titles, cells)


def print_menu(rows: list[Row], root: Path) -> str:
    """Return the pages in the menu of the site."""
    pages = dict.fromkeys(row["page"] for row in rows if row["page"] != "index.md")
    return "".join(f"      - mechanisms/{page}\n" for page in pages)


def print_modules(rows: list[Row], root: Path) -> str:
    """Return the modules of mechanisms in the reference of the programming interface."""
    files = sorted((root / "fairseq_ext" / "mechanisms").glob("[!_]*.py"))
    return "".join(f"::: fairseq_ext.mechanisms.{file.stem}\n" for file in files)


def wrap(text: str, width: int = 120) -> str:
    """Return text in lines that readers of a source can read."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) + "\n"


def list_names(family: str, quote: str = "`{}`") -> str:
    """Return the mechanisms that a family of models has architectures of."""
    from fairseq_ext import registry  # noqa: F401
    from fairseq_ext.models.architectures import FAMILIES

    return ", ".join(quote.format(name) for name in FAMILIES[family].mechanisms)


def print_encoders(rows: list[Row], root: Path) -> str:
    """Return the architectures of encoders, for the README."""
    return wrap(f"NAME is one of {list_names('roberta')}.")


def print_families(rows: list[Row], root: Path) -> str:
    """Return a list of the architectures of families with fewer mechanisms than translation has."""
    names = ("roberta", "deberta", "transformer_lm")
    return "".join(wrap(f"- `{name}_…`: {list_names(name)}") for name in names)


def print_study(rows: list[Row], root: Path) -> str:
    """Return what scripts/lib/study.sh knows of the variants of a study."""
    from fairseq_ext import registry  # noqa: F401
    from fairseq_ext.criterions.composite import REGULARISERS

    studied = [row for row in rows if "variants" in row]
    papers = [row for row in studied if "alternative_to" not in row]
    others = [row for row in studied if "alternative_to" in row]
    lines = [f"MECHANISMS={_quote(_names(papers))}", f"ALTERNATIVES={_quote(_names(others))}"]
    for variable, slot in (("NORMALISERS", "normalise"), ("POSITIONS", "positions")):
        lines.append(f"{variable}={_quote(_names([row for row in others if row['slot'] == slot]))}")
    terms = {row["term"]: row for row in studied if "term" in row}
    passes = [name for name in REGULARISERS if name in terms and REGULARISERS[name].second_pass]
    lines.append(f"TERMS={_quote([name for name in REGULARISERS if name in terms])}")
    lines.append(f"SECOND_PASSES={_quote(passes)}")
    lines.append("CLOSEST=(")
    for name in _names(papers):
        if close := _names([row for row in others if name in row["alternative_to"]]):
            lines.append(f"  {_quote([name, *close])}")
    lines.append(")\ndeclare -gA VARIANT_FLAGS=(")
    lines += [f"  [{n}]={_quote([f])}" for row in studied for n, f in row["variants"].items()]
    lines.append(")\ndeclare -gA VARIANT_TERMS=(")
    lines += [f"  [{n}]={term}" for term, row in terms.items() for n in row["variants"]]
    return "\n".join([*lines, ")", ""])


def _names(rows: list[Row]) -> list[str]:
    return [name for row in rows for name in row["variants"]]


def _quote(words: list[str]) -> str:
    return "'" + " ".join(words) + "'"


Printer = Callable[[list[Row], Path], str]
PRINTERS: dict[str, dict[str, Printer]] = {
    "README.md": {"mechanisms": print_readme, "encoders": print_encoders},
    "docs/mechanisms/index.md": {"mechanisms": print_index, "architectures": print_families},
    "docs/architecture.md": {"slots": print_slots, "papers": print_papers},
    "docs/reference.md": {"modules": print_modules},
    "mkdocs.yml": {"mechanisms": print_menu},
    "scripts/lib/study.sh": {"variants": print_study},
}


def print_targets(root: Path = ROOT) -> Iterator[tuple[Path, str, str]]:
    """Yield each file that has rows of mechanisms, its text, and what that would be."""
    rows = read_rows(root)
    for name, printers in PRINTERS.items():
        path = root / name
        text = path.read_text("utf-8")
        printed = {name: printer(rows, root) for name, printer in printers.items()}
        found = [match["name"] for match in MARK.finditer(text)]
        if sorted(found) != sorted(printed):
            sys.exit(f"{path} has marks for {found}; give it one for each of {[*printed]}")

        def fill(match: re.Match, printed: dict[str, str] = printed) -> str:
            blank = "\n" if match["begin"].startswith("<!--") else ""
            return match["begin"] + blank + printed[match["name"]] + blank + match["end"]

        yield path, text, MARK.sub(fill, text)


def write_changed(targets: Iterable[tuple[Path, str, str]], root: Path, text: str | None) -> int:
    """Say which files differ from what is printed, or with --write write them.

    Args:
        targets: files, what they have and what they should have.
        text: help of the command.
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write them")
    write = parser.parse_args().write
    changed = [(path, new) for path, old, new in targets if old != new]
    for path, new in changed:
        print(path.relative_to(root))
        if write:
            path.write_text(new, "utf-8")
    return int(bool(changed) and not write)


if __name__ == "__main__":
    sys.exit(write_changed(print_targets(), ROOT, __doc__))
