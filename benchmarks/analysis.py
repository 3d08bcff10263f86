"""What analysing a split costs: memory by the number of sentences, time as multiples of reading it.

Memory is the peak beyond that of the loaded model, each in a process of its own, as a multiple of
that for the first number of --sentences: as all is collected batch by batch, it should stay 1. Time
is that of one pass over the first sentences, as a multiple of a pass of the model alone.
"""

import sys
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import measure
import torch
from measure import AGAIN, Aim, Quiet, Row, Table

from fairseq_ext.analysis import heads, statistics
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.statistics import ColumnSums

EXAMPLE = (
    "python benchmarks/analysis.py checkpoints/dna/checkpoint_best.pt --data data-bin/mine "
    "--split train --sentences 1000 10000 --threads 1 --rounds 5"
)
FORWARD = "forward"
FLAT = 1.1
QUIET = Quiet(deviation=0.03, spread=0.1)


def collectors(subject: ModelInspector) -> dict[str, list]:
    return {
        "column sums": [ColumnSums()],
        "heads": [heads.new_statistics(subject)],
        "both": [ColumnSums(), heads.new_statistics(subject)],
    }


def analyse(sentences: int, given: Namespace) -> float:
    """Extra peak memory in MiB."""
    measure.prepare(given)
    subject = ModelInspector(given.checkpoint, given.data)
    subject.load_split(given.split)
    every = Namespace(split=given.split, limit=8, max_tokens=given.max_tokens)
    statistics.collect(subject, every, *collectors(subject)["both"])  # loads what is loaded late
    every.limit = sentences
    both = collectors(subject)["both"]
    return measure.extra_memory(lambda: statistics.collect(subject, every, *both), "cpu")


def memory_row(given: Namespace) -> Row:
    def alone(sentences: int) -> float:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(analyse, sentences, given).result()

    measured = {str(number): [alone(number)] for number in given.sentences}
    return measure.compare("analyse", measured, str(given.sentences[0]), 1.0)


def time_row(given: Namespace) -> Row:
    subject = ModelInspector(given.checkpoint, given.data)
    batches = list(subject.batches(given.split, given.sentences[0], given.max_tokens))

    def forward(_: int) -> None:
        with torch.no_grad():
            for batch in batches:
                subject.model(**batch["net_input"])

    def collect(name: str) -> Callable[[int], None]:
        def work(_: int) -> None:
            own = collectors(subject)[name]
            for batch in batches:
                subject.record_attention(batch, lambda heard: [each.add(heard) for each in own])

        return work

    candidates = {FORWARD: forward, AGAIN: forward}
    candidates |= {name: collect(name) for name in collectors(subject)}
    found = measure.interleave(
        candidates, FORWARD, given.rounds, measure.clock(given), given.seed, "time"
    )
    return measure.compare(f"{given.sentences[0]} sentences", found, FORWARD, 1.0)


def parse() -> Namespace:
    parser = measure.parser(__doc__ or "", EXAMPLE)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--data", type=Path, metavar="DATA_BIN")
    parser.add_argument("--split", default="train", help="(default: train)")
    parser.add_argument(
        "--sentences", type=measure.positive, nargs="+", default=[1000, 10000], metavar="N"
    )
    parser.add_argument("--max-tokens", type=measure.positive, default=2048, metavar="N")
    return parser.parse_args()


def main() -> int:
    given = parse()
    measure.prepare(given)
    most = str(given.sentences[-1])
    tables = [
        Table("Time of a pass", FORWARD, "s", [time_row(given)]),
        Table("Extra peak memory", str(given.sentences[0]), "MiB", [memory_row(given)]),
    ]
    aims = [Aim("analyse", most, FLAT)] if len(given.sentences) > 1 else []
    return measure.report(given, {"split": given.split}, tables, aims, QUIET)


if __name__ == "__main__":
    sys.exit(main())
