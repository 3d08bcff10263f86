"""What `fairseq-train` logged, read back."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.errors import UsageError

LOG = "train.log"  # in the folder of a run

LINE = re.compile(r"^(?:[^|]*\| INFO \| |\[[^]]*\]\[)([\w./-]+)(?: \| |\]\[INFO\] - )(.*)$")
FINISHED = re.compile(r"(?:\| |\[INFO\] - )done training in ")
NUMBERS = re.compile(r"(\w+)[= ](-?[\d.,]+(?:e[+-]?\d+)?|nan|-?inf)(?=, | \||$)")  # simple, tqdm
# Folder of a run that is one of several of a variant: seed-N, fold-N or seed-N-fold-M.
REPETITION = re.compile(r"(seed|fold)-\d+|seed-\d+-fold-\d+")


class Record(NamedTuple):
    """One line of numbers.

    Attributes:
        kind: "train_inner" (since the last such line), "train" (an epoch), or the name of the
            subset that was validated.
        update: how many parameter updates had been made.
        values: what was logged, by its name without the kind's prefix.
    """

    kind: str
    update: int
    values: dict[str, float]


def read_log(run: Path) -> list[Record]:
    """The numbers in the log of a run, in the order of updates.

    `--log-format` simple, json and tqdm are understood, and the lines of fairseq-hydra-train. What
    a resumed training did again stands in the log twice; the later lines count.

    Raises:
        UsageError: there is no log, or it has no numbers.
    """
    log = run if run.is_file() else run / LOG
    if not log.is_file():
        raise UsageError(
            f"{run} has no {LOG}; give the folder of a run in which the output of fairseq-train "
            f"was kept as {LOG}, or the log itself"
        )
    records: dict[tuple[str, int], Record] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n"):
        if (record := parse_line(line)) is not None:
            records[record.kind, record.update] = record
    if not records:
        raise UsageError(f"{log} has no line of numbers; give the log of a training that began")
    return sorted(records.values(), key=lambda record: record.update)


def parse_line(line: str) -> Record | None:
    """The numbers in a line of a log; None if there are none."""
    found = LINE.match(line)
    if not found:
        return None
    kind, text = found.groups()
    values = _json(text) if text.startswith("{") else dict(NUMBERS.findall(text))
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            numbers[name.removeprefix(f"{kind}_")] = float(str(value).replace(",", ""))
        except ValueError:
            continue
    update = numbers.pop("num_updates", None)
    return None if update is None else Record(kind, int(update), numbers)


def _json(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def is_finished(run: Path) -> bool:
    """Whether the last training in the log of a run came to its end."""
    log = run if run.is_file() else run / LOG
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").split("\n")):
        finished = FINISHED.search(line)
        if finished or parse_line(line):
            return finished is not None
    return False


def variants(runs: Iterable[Path]) -> list[str]:
    """What each run is a repetition of; a path where names alone would be ambiguous."""
    absolute = [run.resolve() for run in runs]
    folders = [path.parent if REPETITION.fullmatch(path.name) else path for path in absolute]
    unique = len({folder.name for folder in folders}) == len(set(folders))
    return [folder.name if unique else str(folder) for folder in folders]
