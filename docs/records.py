"""Records of what was measured, one file a trial in docs/results/records/, and their verdicts.

Fields of a record:

    title, where, question, paper, date
                 what was asked, by which table of which paper, and when the runs ended
    page, order  where it is printed; brief: as a row of the page's last table alone
    meaning, change
                 what it means for a user, and what would change it
    settings, data, command, commit, hardware, versions, seeds, searched, protocol
                 where the numbers come from; what is absent was not kept
    measures     name -> title, digits, unit, better ("lower" or "higher"); the first one decides
    labels       side -> what pages call it
    columns, runs                          a row for each run: (group,) side, repetition, measures
    means        where runs were not kept: rows of side, n, and [mean, standard error] (or the mean
                 alone) of each measure; `spread` names another spread than that error
    comparisons  tests to compute from the runs: baseline, sides (default: all others), whether p is
                 corrected over "sides" (default), "groups" or "nothing", and for how many (`of`) if
                 some were not run
    reported     tests that cannot be computed again: side, baseline, measure, group, difference,
                 low, high, p, n, test, source; null is 1 for ratios
    tables       title, columns and rows of other numbers; printed: on the page
    remarks      other facts, in sentences
    claims       claim, paper, place, verdict, sentence, and tests, each a side, a baseline, a
                 measure, a group, and the direction that is claimed, if not the better one;
                 part: where it holds; void: why the protocol allows no verdict; minor: on its page
                 and not in the index
    overview     its title in the picture of all mechanisms, by the first measure

A verdict follows by rule. Of each test: *holds* or *opposite* if the 95 % interval is beyond 0, p
is below .05 as corrected, and n is 3 or more, by every test that the record has; *open* if n is
less or the protocol allows none; *not shown* otherwise. *partly*: some tests of a claim hold and
not all. A claim is *opposite* too if some of its tests are and none holds; `part` says which.
"""

import json
import math
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.evaluation import significance

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "results" / "records"
REQUIRED = ("title", "question", "page", "paper", "date", "order", "meaning", "change")
PROVENANCE = "data command commit hardware versions seeds searched protocol".split()
NUMBERS = ("runs", "means", "tables")
OTHERS = ("brief", "settings", "measures", "labels", "columns", "comparisons", "reported")
MORE = ("remarks", "claims", "pictures", "repeats", "where", "overview", "spread")
KNOWN = {*REQUIRED, *PROVENANCE, *NUMBERS, *OTHERS, *MORE}
OF_CLAIMS = {"claim", "paper", "place", "verdict", "sentence"}
FEWEST, SURE = 3, 0.05

Record = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group, side, baseline and measure of a comparison."""


class Effect(NamedTuple):
    """A difference of a side to a baseline by one test.

    Attributes:
        difference: side minus baseline, or their ratio.
        interval: of 95 %, None if it is not known.
        p: as corrected, NaN if it is not known.
        n: the number of repetitions.
        test: the name of the test, "" for a difference alone.
        null: the value that says that there is none: 0, or 1 of ratios.
    """

    difference: float
    interval: tuple[float, float] | None
    p: float
    n: int
    test: str
    null: float = 0

    def sign(self) -> int:
        """Return the sign of a difference that is shown, or 0."""
        low, high = self.interval or (self.difference, self.difference)
        beyond = low > self.null or high < self.null
        known = self.interval or math.isfinite(self.p)
        if not known or not beyond or self.p >= SURE:
            return 0
        return 1 if self.difference > self.null else -1


def read_records(folder: Path = FOLDER) -> list[Record]:
    """Return all records in the order of their pages."""
    records = [read_record(path) for path in sorted(folder.glob("*.toml"))]
    return sorted(records, key=lambda record: (record["page"], record["order"], record["name"]))


def read_record(path: Path) -> Record:
    """Return a record with its name."""
    return {"name": path.stem, **tomllib.loads(path.read_text("utf-8"))}


def tabulate(record: Record) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of runs by group and side, each by the names of its columns."""
    rows = [dict(zip(record["columns"], run, strict=True)) for run in record.get("runs", ())]
    sides: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        sides.setdefault((row.get("group", ""), row["side"]), []).append(row)
    return sides


def summarise(record: Record, measure: str) -> dict[tuple[str, str], tuple[int, float, float]]:
    """Return n, mean and standard error by group and side; NaN where it is not known."""
    found = {}
    for key, rows in tabulate(record).items():
        if values := [row[measure] for row in rows if row[measure] != ""]:
            several = len(values) > 1 and all(map(math.isfinite, values))
            error = statistics.stdev(values) / math.sqrt(len(values)) if several else math.nan
            found[key] = (len(values), statistics.mean(values), error)
    for side, n, *cells in record.get("means", ()):
        cell = dict(zip(record["measures"], cells, strict=True))[measure]
        mean, error = cell if isinstance(cell, list) else (cell, math.nan)
        if mean != "":
            found["", side] = (n, mean, error)
    return found


def compare(record: Record) -> dict[Key, list[Effect]]:
    """Return the effects of each comparison: computed from the runs, and as reported."""
    return _compare(json.dumps(record, default=str))


@cache
def _compare(text: str) -> dict[Key, list[Effect]]:
    """Compute the effects of a record once, however often they are asked for."""
    record = json.loads(text)
    effects: dict[Key, list[Effect]] = {}
    for family, number in _families(record):
        computed = {key: _test(record, key) for key in family}
        tested = {key: effect for key, effect in computed.items() if effect}
        known = [effect.p for effect in tested.values()]
        missing = [1.0] * (number - sum(map(math.isfinite, known)))
        corrected = significance.holm([*known, *missing])
        for (key, effect), p in zip(tested.items(), corrected, strict=False):
            effects.setdefault(key, []).append(effect._replace(p=p))
    for entry in record.get("reported", ()):
        key = entry.get("group", ""), entry["side"], entry["baseline"], entry["measure"]
        interval = (entry["low"], entry["high"]) if "low" in entry else None
        n, p, null = entry["n"], entry.get("p", math.nan), entry.get("null", 0)
        effects.setdefault(key, []).append(
            Effect(entry["difference"], interval, p, n, entry.get("test", ""), null)
        )
    return effects


def _families(record: Record) -> Iterator[tuple[list[Key], int]]:
    """Yield comparisons whose p-values are corrected together, and for how many at least."""
    groups = dict.fromkeys(group for group, _ in tabulate(record))
    for comparison in record.get("comparisons", ()):
        baseline = comparison["baseline"]
        sides = comparison.get("sides") or dict.fromkeys(side for _, side in tabulate(record))
        for measure in comparison.get("measures", record["measures"]):
            keys = [(g, s, baseline, measure) for g in groups for s in sides if s != baseline]
            together = {
                "groups": [[key for key in keys if key[1] == side] for side in sides],
                "sides": [[key for key in keys if key[0] == group] for group in groups],
                "nothing": [[key] for key in keys],
            }[comparison.get("correct", "sides")]
            yield from ((family, comparison.get("of", 0)) for family in together)


def _test(record: Record, key: Key) -> Effect | None:
    """Return the t-test of matched runs, or their difference alone if there are too few."""
    group, side, baseline, measure = key
    rows = tabulate(record)
    ours, base = (
        [(row["repetition"], row[measure]) for row in rows.get((group, name), ())]
        for name in (side, baseline)
    )
    ours, base = ([pair for pair in each if pair[1] != ""] for each in (ours, base))
    matchings = [*_match(ours, dict(base))]
    if not matchings or not all(math.isfinite(value) for pair in matchings[0] for value in pair):
        return None
    if len(matchings[0]) < 2:
        ((one, other),) = matchings[0]
        return Effect(one - other, None, math.nan, 1, "")
    tests = [significance.paired_t(*zip(*pairs, strict=True)) for pairs in matchings]
    test = max(tests, key=lambda test: -1 if math.isnan(test.p) else test.p)
    return Effect(test.difference, test.interval, test.p, len(matchings[0]), "t")


def _match(
    ours: Sequence[tuple[str, float]], base: Mapping[str, float]
) -> Iterator[list[tuple[float, float]]]:
    """Yield the pairs of runs: in each order where it is not known which one is which."""
    known = [(value, base[name]) for name, value in ours if name in base]
    free = [value for name, value in ours if " or " in name]
    rest = [value for name, value in base.items() if name not in dict(ours)]
    if free:
        yield from ([*known, *zip(each, rest, strict=True)] for each in permutations(free))
    elif known:
        yield known


def judge(record: Record, claim: Record) -> str:
    """Return the verdict of a claim."""
    outcomes = [outcome for _, _, outcome in judge_tests(record, claim)]
    if claim.get("void") or not outcomes:
        return "open"
    if len({*outcomes}) == 1:
        return outcomes[0]
    if "holds" in outcomes:
        return "partly"
    return "opposite" if "opposite" in outcomes else "not shown"


def judge_tests(record: Record, claim: Record) -> list[tuple[Key, list[Effect], str]]:
    """Return each comparison of a claim with its effects and its outcome."""
    effects, judged = compare(record), []
    for test in claim.get("tests", ()):
        key = test.get("group", ""), test["side"], test["baseline"], test["measure"]
        found = effects.get(key, [])
        better = test.get("direction", record["measures"][test["measure"]]["better"])
        claimed = 1 if better == "higher" else -1
        signs = {effect.sign() for effect in found}
        if not found or min(effect.n for effect in found) < FEWEST:
            outcome = "open"
        elif signs == {claimed}:
            outcome = "holds"
        else:
            outcome = "opposite" if signs == {-claimed} else "not shown"
        judged.append((key, found, outcome))
    return judged


def find_faults(record: Record) -> list[str]:
    """Return what is wrong with a record, in sentences."""
    faults = [f"it lacks {field}" for field in REQUIRED if not record.get(field)]
    faults += [f"{field} is no field" for field in record.keys() - KNOWN - {"name"}]
    if not any(record.get(field) for field in NUMBERS):
        faults.append(f"it has no numbers; give {' or '.join(NUMBERS)}")
    for claim in record.get("claims", ()):
        text = claim.get("claim", "")
        faults += [f"'{text}' lacks {field}" for field in sorted(OF_CLAIMS - claim.keys())]
        if len(text.split()) > 12:
            faults.append(f"'{text}' has more than 12 words")
        if (verdict := judge(record, claim)) != claim.get("verdict"):
            faults.append(f"'{text}' is called {claim.get('verdict')}; by the rule it is {verdict}")
        if _is_mixed(record, claim) and not claim.get("part"):
            faults.append(f"'{text}' is {verdict} in a part and does not say where; give its part")
    return faults + _find_wrong_differences(record)


def _is_mixed(record: Record, claim: Record) -> bool:
    """Return whether a verdict is of some tests of a claim and not of all."""
    outcomes = {outcome for _, _, outcome in judge_tests(record, claim)}
    return len(outcomes) > 1 and not outcomes <= {"not shown", "open"}


def _find_wrong_differences(record: Record) -> list[str]:
    """Return the reported differences that do not follow from runs or means."""
    faults = []
    for entry in record.get("reported", ()):
        if entry.get("null") or entry["measure"] not in record.get("measures", {}):
            continue
        means = summarise(record, entry["measure"])
        sides = [means.get((entry.get("group", ""), entry[x])) for x in ("side", "baseline")]
        unit = 10.0 ** -record["measures"][entry["measure"]]["digits"]
        if all(sides) and abs(sides[0][1] - sides[1][1] - entry["difference"]) > 2.01 * unit:
            where = f"{entry['side']} - {entry['baseline']} by {entry['measure']}"
            got = sides[0][1] - sides[1][1]
            faults.append(f"{where} is {entry['difference']}, and by its rows {got:.4f}")
    return faults
