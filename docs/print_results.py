"""Print the pages of docs/results/, and what was measured of mechanisms, from the records.

What a page says before and after the marks `printed by docs/print_results.py` stays as it is.

Example:
  python docs/print_results.py          # says which pages are not as they would be written
  python docs/print_results.py --write
"""

import math
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import print_mechanisms
import records
from advice import print_advice
from effects import (
    choose_effect,
    count_runs,
    decide,
    find_baseline,
    label,
    link_record,
    locate,
    print_table,
    show_cell,
    show_effect,
    show_effect_of,
    wrap,
)
from records import ROOT, Effect, Record

PAGES = ROOT / "docs" / "results"
WHAT_TO_TRY = ROOT / "docs" / "what_to_try.md"
MECHANISMS = ROOT / "docs" / "mechanisms"
PICTURES = ROOT / "docs" / "pictures" / "results"
PAPERS = {
    "ding": "Ding et al. 2020: doubly-normalised and hybrid attention (DNA, HNA)",
    "deshpande": "Deshpande and Narasimhan 2020: attention guidance (AG)",
    "you": "You et al. 2020: hard-coded Gaussian attention",
    "wang": "Wang et al. 2020: role-guided masks",
    "wu": "Wu et al. 2023: adversarial self-attention (ASA)",
    "jia": "Jia 2024: task-specific attention",
    "today": "Today's alternatives",
    "ours": "Claims of this package",
}
HOMES = {  # the page of each paper
    "ding": "dna",
    "deshpande": "guidance",
    "you": "guidance",
    "wang": "roles",
    "wu": "asa",
    "jia": "task_attention",
    "today": "alternatives",
}
MARK = re.compile(
    r"(?P<begin><!-- printed by docs/print_results\.py: (?P<name>\w+) -->\n)"
    r".*?(?P<end><!-- end of (?P=name) -->)",
    re.S,
)


def print_scores(record: Record) -> str:
    """Return the table of a record: each side with its means and its difference to the baseline."""
    shown = [name for name, about in record["measures"].items() if about.get("printed", True)]
    means = {name: records.summarise(record, name) for name in record["measures"]}
    keys = list(dict.fromkeys(key for name in means for key in means[name]))
    if not keys:
        return ""
    baseline, first = find_baseline(record), decide(record)
    better = record["measures"][first]["better"]
    groups = list(dict.fromkeys(group for group, _ in keys))

    def rank(key: tuple[str, str]) -> tuple[int, float]:
        mean = means[first].get(key, (0, math.inf, 0))[1]
        return groups.index(key[0]), -mean if better == "higher" else mean

    effects = records.compare(record)
    tested = any(key[2:] == (baseline, first) for key in effects)
    counts = {key: max(cells[key][0] for cells in means.values() if key in cells) for key in keys}
    same = len({*counts.values()}) == 1
    titles = [f"{counts[keys[0]]} {count_runs(record, counts[keys[0]])}" if same else ""]
    titles = [*([""] if any(groups) else []), *titles, *([] if same else ["n"])]
    titles += [record["measures"][name]["title"] for name in shown]
    titles += [f"difference to {label(record, baseline)}"] if tested else []
    rows, shown_group = [], ""
    for key in sorted(keys, key=rank):
        row = [label(record, key[0]) if key[0] != shown_group else ""] if any(groups) else []
        shown_group = key[0]
        row += [label(record, key[1])] + ([] if same else [str(counts[key])])
        row += [show_cell(record, x, *means[x][key]) if key in means[x] else "" for x in shown]
        found = effects.get((*key, baseline, first), [])
        rows.append(row + ([_show_difference(found, record, first)] if tested else []))
    return print_table(titles, rows)


def _show_difference(effects: list[Effect], record: Record, measure: str) -> str:
    """Return a difference without its unit."""
    if not effects:
        return ""
    about = {**record["measures"][measure], "unit": ""}
    return show_effect(choose_effect(effects), {"measures": {measure: about}}, measure)


def print_index(all_records: list[Record]) -> str:
    """Return the table of all claims by paper."""
    lines = ["| claim | verdict | effect [95 % interval], runs | evidence |", "|---|---|---|---|"]
    for paper, title in PAPERS.items():
        rows = [(r, c) for r in all_records for c in r.get("claims", ()) if c["paper"] == paper]
        rows = [(record, claim) for record, claim in rows if not claim.get("minor")]
        if rows:
            more = f"[all its claims]({HOMES[paper]}.md)" if paper in HOMES else ""
            lines.append(f"| **{title}** | | | {more} |".replace("|  |", "| |"))
        for record, claim in rows:
            place = f" ({claim['place']})" if claim["place"] else ""
            effect = show_effect_of(record, claim, in_index=True)
            cells = [f"{claim['claim']}{place}", claim["verdict"], effect, link_record(record)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def print_trial(record: Record) -> str:
    """Return the section of a record: its claims, its numbers and its picture."""
    timed = record.get("repeats") == "rounds"  # quartiles are not printed
    parts = [f"## {record['title']}", wrap(record.get("settings", ""))]
    items = []
    for claim in record.get("claims", ()):
        effect = show_effect_of(record, claim, in_index=False)
        part = f" {claim['part']}" if claim.get("part") else ""
        void = f" {claim['void']}" if claim.get("void") else ""
        text = (
            f"- **{claim['claim']}: {claim['verdict']}{part}.** {claim['sentence']}".rstrip() + void
        )
        items.append(wrap(text + (f" ({effect}.)" if effect else ""), "  "))
    parts += ["\n".join(items)] if items else []
    if record.get("measures") and (scores := print_scores(record)):
        parts.append(scores.rstrip())
    for table in record.get("tables", ()):
        if table.get("printed"):
            title = [wrap(f"{table['title']}:")] if table.get("title") else []
            text = print_table(table["columns"], table["rows"]).rstrip()
            parts += [*title, re.sub(r" \[[\d., ]+\]", "", text) if timed else text]
    picture = PICTURES / f"{record['name']}.png"
    if picture.is_file():
        parts.append(f"![Runs and intervals](../pictures/results/{picture.name})")
    for each in record.get("pictures", ()):
        parts.append(f"![{each['title']}](../pictures/{each['file']})")
    parts.append(wrap(record["meaning"]))
    return "\n\n".join(parts) + "\n"


def print_brief(page: list[Record]) -> str:
    """Return the list of the records that have no section of their own."""
    items = []
    for record in page:
        link = f"- [{record['title']}](records/{record['name']}.toml):"
        claims = [f"{each['claim']}: **{each['verdict']}**." for each in record.get("claims", ())]
        picture = PICTURES / f"{record['name']}.png"
        files = [f"results/{picture.name}"] if picture.is_file() else []
        files += [each["file"] for each in record.get("pictures", ())]
        drawn = [f"[Picture](../pictures/{file})." for file in files]
        items.append(wrap(" ".join([link, record["meaning"], *claims, *drawn]), "  "))
    return "\n".join(["## Also measured\n", *items, ""])


def print_provenance(page: list[Record]) -> str:
    """Return where the numbers of a page come from."""
    lines = ["## Where the numbers come from\n"]
    for record in page:
        timed = record.get("repeats") == "rounds"
        asked = [f for f in records.PROVENANCE if not timed or f not in ("seeds", "searched")]
        lacks = [f for f in asked if not record.get(f) and f != "protocol"]
        facts = [f"[{record['name']}](records/{record['name']}.toml)", str(record["date"])]
        facts += [record.get("commit", "").partition(" (")[0]]
        item = "- " + ", ".join(filter(None, facts))
        lines.append(wrap(item + (f"; not kept: {', '.join(lacks)}" if lacks else ""), "  "))
    commands = [r["command"].strip() for r in page if r.get("command")]
    block = "\n".join("    " + line for command in commands for line in command.splitlines())
    return "\n".join(lines) + ("\n\n" + block if commands else "") + "\n"


def print_elsewhere(all_records: list[Record], name: str) -> str:
    """Return the claims of a page's papers whose records are on other pages, or ""."""
    items = [
        wrap(f"- {claim['claim']}: **{claim['verdict']}** ({link_record(record)}).", "  ")
        for record in all_records
        for claim in record.get("claims", ())
        if HOMES.get(claim["paper"]) == name != record["page"]
    ]
    return "\n".join(["## Claims on other pages\n", *items, ""]) if items else ""


def print_page(all_records: list[Record], name: str) -> str:
    """Return what a page says of its records."""
    page = [record for record in all_records if record["page"] == name]
    whole = [record for record in page if not record.get("brief")]
    brief = [record for record in page if record.get("brief")]
    parts = [*map(print_trial, whole), *([print_brief(brief)] if brief else [])]
    parts += filter(None, [print_elsewhere(all_records, name)])
    return "\n".join([*parts, print_provenance(whole)])


def print_protocols() -> str:
    """Return the list of what was written before runs began."""
    rows = []
    for path in sorted((PAGES / "records" / "protocols").glob("*.toml")):
        protocol = tomllib.loads(path.read_text("utf-8"))
        link = f"[{protocol['title']}](records/protocols/{path.name})"
        cells = [protocol["date"], link, protocol["decides"], str(len(protocol["corrections"]))]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    head = ["| written | protocol | what decides | corrections |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def print_measured(all_records: list[Record], page: Path) -> str:
    """Return what was measured of the mechanisms of a page in docs/mechanisms/."""
    rows = print_mechanisms.read_front_matter(page)["mechanisms"]
    sides = [name for row in rows for name in [*row.get("variants", ()), *row.get("sides", ())]]
    cells = []
    for record in filter(lambda record: not record.get("brief"), all_records):
        link = f"[{record.get('where', record['title'])}](../results/{locate(record)})"
        lines: dict[str, list[str]] = {}
        for key in (keys := _list_measured(record, sides)):
            group, side, _, measure = key
            names = [label(record, group), record["measures"][measure]["title"]]
            names += [label(record, side)] if len({key[1] for key in keys}) > 1 else []
            effect = choose_effect(records.compare(record)[key])
            shown = f"{', '.join(filter(None, names))}: {show_effect(effect, record, measure)}"
            lines.setdefault(f"{effect.n} {count_runs(record, effect.n)}", []).append(shown)
        cells += [[f"{link}, {count}", "<br>".join(shown)] for count, shown in lines.items()]
    return print_table(["measured here", "with it − without"], cells)


def _list_measured(record: Record, sides: list[str]) -> list[records.Key]:
    """Return the comparisons of sides with the first baseline by the measures that decide."""
    tests = [test for claim in record.get("claims", ()) for test in claim.get("tests", ())]
    keys = []
    for key in records.compare(record):
        group, side, baseline, measure = key
        claimed = {x["measure"] for x in tests if (x["side"], x["baseline"]) == (side, baseline)}
        wanted = measure in (claimed or {decide(record)})
        scored = {(group, side), (group, baseline)} <= records.summarise(record, measure).keys()
        if side in sides and baseline == find_baseline(record) and wanted and scored:
            keys.append(key)
    return keys


def print_targets() -> Iterator[tuple[Path, str, str]]:
    """Yield each page with marks, its text, and what that would be."""
    found = records.read_records()
    for path in [WHAT_TO_TRY, *sorted(PAGES.glob("*.md")), *sorted(MECHANISMS.glob("*.md"))]:
        text = path.read_text("utf-8")

        def fill(match: re.Match, path: Path = path) -> str:
            printers = {
                "advice": lambda: print_advice(found),
                "claims": lambda: print_index(found),
                "protocols": print_protocols,
                "measured": lambda: print_measured(found, path),
                "trials": lambda: print_page(found, path.stem),
            }
            return f"{match['begin']}\n{printers[match['name']]()}\n{match['end']}"

        yield path, text, MARK.sub(fill, text)


def main() -> int:
    """Say which pages differ, or write them; records with faults are refused."""
    found = records.read_records()
    faults = [f"{r['name']}: {fault}" for r in found for fault in records.find_faults(r)]
    if faults:
        sys.exit("\n".join(faults))
    return print_mechanisms.write_changed(print_targets(), ROOT, __doc__)


if __name__ == "__main__":
    sys.exit(main())
