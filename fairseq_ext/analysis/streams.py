"""What verbs share that read the attention of a split: options, one pass, tables."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fairseq_ext.analysis.loading import short_name
from fairseq_ext.analysis.subjects import MAX_TOKENS, Heard, Subject
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import records_as_csv
from fairseq_ext.files import atomic_writer, check_writable

Row = Mapping[str, Any]


class Collector(Protocol):
    """Takes maps batch by batch, and says at the end what they were like, a row for each head."""

    def add(self, heard: Heard) -> None: ...

    def rows(self) -> list[dict[str, Any]]: ...


def add_arguments(parser: argparse.ArgumentParser, several: bool = True) -> None:
    parser.add_argument("checkpoints", nargs="+" if several else 1, type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--data", type=Path, metavar="DATA_BIN", help="default: what the checkpoint names"
    )
    parser.add_argument("--split", default="valid", help="default: valid")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="the first N sentences; default: all"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"default: {MAX_TOKENS}"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")


def check(given: argparse.Namespace) -> None:
    for name in ("limit", "max_tokens"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is {getattr(given, name)} and must be at least 1")
    check_writable(given.out, 0)


def subjects(given: argparse.Namespace) -> Iterator[Subject]:
    """One after the other, so that one is in memory at a time; titles tell them apart."""
    names = [short_name(checkpoint) for checkpoint in given.checkpoints]
    for checkpoint, name in zip(given.checkpoints, names, strict=True):
        subject = Subject(checkpoint, given.data)
        if names.count(name) > 1:
            subject.title = f"{subject.name}, {checkpoint}"
        yield subject


def collect(subject: Subject, given: argparse.Namespace, *collectors: Collector) -> int:
    """One pass over the split; how many sentences there were."""

    def record(heard: Heard) -> None:
        for collector in collectors:
            collector.add(heard)

    seen = 0
    for batch in subject.batches(given.split, given.limit, given.max_tokens):
        subject.listen(batch, record)
        seen += len(batch["net_input"]["src_tokens"])
    if not seen:
        raise UsageError(
            f"{given.split} has no sentence that {subject.checkpoint} can read; give another split"
        )
    return seen


def write_rows(rows: Sequence[Row], stem: Path, **about: Any) -> None:
    """STEM.csv and STEM.json; the latter also has what the numbers are about."""
    with atomic_writer(stem.with_suffix(".csv")) as file:
        file.write(records_as_csv(rows))
    write_json({**about, "rows": [dict(row) for row in rows]}, stem.with_suffix(".json"))


def write_json(value: Any, path: Path, indent: int | None = 1) -> None:
    with atomic_writer(path) as file:
        json.dump(_plain(value), file, indent=indent, ensure_ascii=False)
        file.write("\n")


def _plain(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
