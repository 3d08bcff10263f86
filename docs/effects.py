"""Effects of records in words: differences with intervals, means with errors, names of sides."""

import math
import re
import textwrap
from collections.abc import Sequence
from functools import partial

import records
from records import Effect, Record


def show(value: float, digits: int, signed: bool = False) -> str:
    """Return a number as pages show it."""
    if math.isinf(value):
        return "–"
    value = round(value, digits) + 0.0  # not -0
    return f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "−")


def show_p(p: float) -> str:
    """Return a p-value as pages show it."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}".rstrip("0") if p < 0.1 else f"{p:.2f}"


def show_effect(effect: Effect, record: Record, measure: str) -> str:
    """Return a difference with its unit, its interval, and p where the interval says too much."""
    about = record["measures"][measure]
    digits, ratio = about["digits"], effect.null == 1
    text = show(effect.difference, digits, signed=not ratio)
    text += f" {'times' if ratio else about.get('unit', '')}".rstrip()
    if effect.interval:
        low, high = (show(end, digits, signed=not ratio) for end in effect.interval)
        text += f" [{low}, {high}]"
        beyond = effect.interval[0] > effect.null or effect.interval[1] < effect.null
        return f"{text}, p {show_p(effect.p)}" if beyond and effect.p >= records.SURE else text
    return text if math.isnan(effect.p) else f"{text} (p {show_p(effect.p)})"


def show_cell(record: Record, measure: str, n: int, mean: float, error: float) -> str:
    """Return a mean with its standard error."""
    digits = record["measures"][measure]["digits"]
    cell = show(mean, digits)
    return cell if math.isnan(error) else f"{cell} ±{show(error, digits)}"


def label(record: Record, name: str) -> str:
    """Return what pages call a side or a group."""
    return record.get("labels", {}).get(name, name)


def decide(record: Record) -> str:
    """Return the measure that decides."""
    return next(iter(record["measures"]))


def find_baseline(record: Record) -> str:
    """Return the side that others are compared with first, or ""."""
    families = [*record.get("comparisons", ()), *record.get("reported", ())]
    return families[0]["baseline"] if families else ""


def choose_effect(effects: list[Effect]) -> Effect:
    """Return the effect by the test that is least sure of it, with an interval if any has one."""

    def doubt(effect: Effect) -> float:
        return effect.p if math.isfinite(effect.p) else -1

    chosen = max([effect for effect in effects if effect.interval] or effects, key=doubt)
    return chosen._replace(p=max(effects, key=doubt).p)


def show_effect_of(record: Record, claim: Record, in_index: bool) -> str:
    """Return the first effect that decides a verdict, if the table of its page does not show it.

    The index shows each, with the number of runs.
    """
    judged = records.judge_tests(record, claim)
    decisive = "holds" if claim["verdict"] == "partly" else claim["verdict"]
    judged.sort(key=lambda each: each[2] != decisive)
    differing = [len({key[i] for key, _, _ in judged}) > 1 for i in range(4)]
    key, effects = next(((key, effects) for key, effects, _ in judged if effects), (None, []))
    if not key or not in_index and key[2:] == (find_baseline(record), decide(record)):
        return ""
    effect = choose_effect(effects)
    titles = [*map(partial(label, record), key[:3]), record["measures"][key[3]]["title"]]
    names = [title for title, differs in zip(titles, differing, strict=True) if differs]
    text = f"{', '.join(names)} {show_effect(effect, record, key[3])}".strip()
    return f"{text}, {effect.n} {count_runs(record, effect.n)}" if in_index else text


def count_runs(record: Record, n: int) -> str:
    """Return the word for n runs, such as seeds or folds."""
    repeats = record.get("repeats", "seeds")
    return repeats.removesuffix("s") if n == 1 else repeats


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, with its numbers on the right."""
    head = ["| " + " | ".join(titles) + " |", "|---|" + "---:|" * (len(titles) - 1)]
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return re.sub(r"\|  (?=\|)", "| ", "\n".join([*head, *lines])) + "\n"


def locate(record: Record) -> str:
    """Return the page and the heading that a record is printed under."""
    title = "Also measured" if record.get("brief") else record["title"]
    anchor = re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-")
    return f"{record['page']}.md#{anchor}"


def link_record(record: Record) -> str:
    """Return a link to where a record is printed, with its short name."""
    return f"[{record.get('where', record['title'])}]({locate(record)})"


def wrap(text: str, indent: str = "") -> str:
    """Return text in lines that a reader of the source can read."""
    return textwrap.fill(
        text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
