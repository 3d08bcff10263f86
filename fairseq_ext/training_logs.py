"""Readers of the logs of `fairseq-train`, and the names that folders give to repeated runs."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.bounds import check_regular
from fairseq_ext.errors import UsageError

LOG = "train.log"  # in the folder of a run
MASKED_SHARE = "asa_masked"  # of all units, by adversaries; that of layer 3 is "asa_masked_3"

LINE = re.compile(r"^(?:[^|]*\| INFO \| |\[[^]]*\]\[)([\w./-]+)(?: \| |\]\[INFO\] - )(.*)$")
FINISHED = re.compile(r"(?:\| |\[INFO\] - )done training in ")
NUMBERS = re.compile(r"(\w+)[= ](-?[\d.,]+(?:e[+-]?\d+)?|nan|-?inf)(?=, | \||$)")  # simple, tqdm
# Folder of a run that is one of several of a variant: seed-N, fold-N or seed-N-fold-M.
REPETITION = re.compile(r"(seed|fold)-\d+|seed-\d+-fold-\d+")


class Record(NamedTuple):
    """One line of logged numbers.

    Attributes:
        kind: "train_inner" (since the previous such line), "train" (an epoch), or the name of the
            subset that was validated.
        update: the number of parameter updates so far.
        values: logged numbers by name, without the kind's prefix.
    """

    kind: str
    update: int
    values: dict[str, float]


def read_log(run: Path) -> list[Record]:
    """Return the numbers in the log of a run, in the order of updates.

    `--log-format` simple, json and tqdm are understood, and the lines of fairseq-hydra-train. A
    resumed training logs the updates that it repeats a second time; the later lines count.

    Args:
        run: the folder of a run, or its log.

    Raises:
        UsageError: there is no log, or it has no numbers.
    """
    log = _log_of(run)
    if not log.is_file():
        raise UsageError(f"{run} has no {LOG}; give a folder with one, or a log of fairseq-train")
    records = {(r.kind, r.update): r for line in _read_lines(log) if (r := parse_line(line))}
    if not records:
        raise UsageError(f"{log} has no line of numbers; give the log of a training that began")
    return sorted(records.values(), key=lambda record: record.update)


def parse_line(line: str) -> Record | None:
    """Return the numbers in a line of a log, or None if there are none."""
    match = LINE.match(line)
    if not match:
        return None
    kind, text = match.groups()
    values = _parse_json(text) if text.startswith("{") else dict(NUMBERS.findall(text))
    numbers: dict[str, float] = {}
    for name, value in values.items():
        with suppress(ValueError):  # a logged text
            numbers[name.removeprefix(f"{kind}_")] = float(str(value).replace(",", ""))
    update = numbers.pop("num_updates", None)
    return None if update is None else Record(kind, int(update), numbers)


def _parse_json(text: str) -> dict[str, object]:
    with suppress(ValueError, RecursionError):
        if isinstance(values := json.loads(text), dict):
            return values
    return {}


def is_finished(run: Path) -> bool:
    """Return whether the last training in the log of a run reached its end."""
    for line in reversed(_read_lines(_log_of(run))):
        finished = FINISHED.search(line)
        if finished or parse_line(line):
            return finished is not None
    return False


def _log_of(run: Path) -> Path:
    return run if run.is_file() else run / LOG


def _read_lines(log: Path) -> list[str]:
    check_regular(log)
    return log.read_text(encoding="utf-8", errors="replace").split("\n")


def name_variants(runs: Iterable[Path]) -> list[str]:
    """Return the variant that each run repeats: a folder's name, or its path if names repeat."""
    absolute = [run.resolve() for run in runs]
    folders = [path.parent if REPETITION.fullmatch(path.name) else path for path in absolute]
    unique = len({folder.name for folder in folders}) == len(set(folders))
    return [folder.name if unique else str(folder) for folder in folders]
