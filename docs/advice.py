"""The rows of docs/what_to_try.md, whose times and verdicts are those of records."""

import tomllib

from effects import locate, show_effect_of
from records import ROOT, Record

ROWS = ROOT / "docs" / "results" / "advice.toml"


def print_advice(all_records: list[Record]) -> str:
    """Return what to try on which data, each row with the verdict and effect of its claim."""
    found = {record["name"]: record for record in all_records}
    lines = [
        "| your data | mechanism | flag | time of a step | verdict, effect, runs |",
        "|---|---|---|---|---|",
    ]
    advice = tomllib.loads(ROWS.read_text("utf-8"))
    for row in advice["rows"]:
        record = found[row["record"]]
        (claim,) = (each for each in record["claims"] if each["claim"] == row["claim"])
        cells = [row[column] for column in ("data", "mechanism", "flag")]
        times = advice["times"].get(row.get("time"), ())
        cells.append(", ".join(print_time(found[x["record"]], x["cells"]) for x in times))
        cells.append(f"[{claim['verdict']}](results/{locate(record)})")
        cells[-1] += f" {show_effect_of(record, claim, in_index=True)}".rstrip()
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def print_time(record: Record, cells: list[list[str]]) -> str:
    """Return the least and the most of some cells of a record, with a link to where they stand."""
    times = [
        find_number(record, *cell[:2]) / (find_number(record, *cell[2:]) if cell[2:] else 1)
        for cell in cells
    ]
    ends = dict.fromkeys(f"{end + 1e-9:.2f}" for end in (min(times), max(times)))
    machine = "H100" if "H100" in record["hardware"] else "CPU"
    return f"{'–'.join(ends)} ([{machine}](results/{locate(record)}))"


def find_number(record: Record, row: str, column: str) -> float:
    """Return the number that a cell of a record's tables begins with."""
    (cell,) = (
        cells[table["columns"].index(column)]
        for table in record["tables"]
        for cells in table["rows"]
        if cells[0] == row and column in table["columns"]
    )
    return float(cell.partition(" [")[0])
