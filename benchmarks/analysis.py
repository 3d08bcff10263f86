"""Memory and time of the analysis of a split.

Memory is the peak beyond the loaded model, measured in a process of its own for each number of
--sentences, as a multiple of the peak for the first number. Statistics are collected batch by
batch, so it should stay 1. Time is one pass over the first number of sentences, as a multiple of a
pass of the model alone.
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


def collectors(inspector: ModelInspector) -> dict[str, list]:
    return {
        "column sums": [ColumnSums()],
        "heads": [heads.new_statistics(inspector)],
        "both": [ColumnSums(), heads.new_statistics(inspector)],
    }


def analyse(sentences: int, args: Namespace) -> float:
    """Return the extra peak memory in MiB."""
    measure.prepare(args)
    inspector = ModelInspector(args.checkpoint, args.data)
    inspector.load_split(args.split)
    every = Namespace(split=args.split, limit=8, max_tokens=args.max_tokens)
    statistics.collect(inspector, every, *collectors(inspector)["both"])  # load what is loaded late
    every.limit = sentences
    both = collectors(inspector)["both"]
    return measure.extra_memory(lambda: statistics.collect(inspector, every, *both), "cpu")


def memory_row(args: Namespace) -> Row:
    def alone(sentences: int) -> float:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(analyse, sentences, args).result()

    measured = {str(number): [alone(number)] for number in args.sentences}
    return measure.compare("analyse", measured, str(args.sentences[0]), 1.0)


def time_row(args: Namespace) -> Row:
    inspector = ModelInspector(args.checkpoint, args.data)
    batches = list(inspector.batches(args.split, args.sentences[0], args.max_tokens))

    def forward(_: int) -> None:
        with torch.no_grad():
            for batch in batches:
                inspector.model(**batch["net_input"])

    def collect(name: str) -> Callable[[int], None]:
        def work(_: int) -> None:
            own = collectors(inspector)[name]
            for batch in batches:
                inspector.record_attention(batch, lambda maps: [each.add(maps) for each in own])

        return work

    candidates = {FORWARD: forward, AGAIN: forward}
    candidates |= {name: collect(name) for name in collectors(inspector)}
    seconds = measure.interleave(
        candidates, FORWARD, args.rounds, measure.clock(args), args.seed, "time"
    )
    return measure.compare(f"{args.sentences[0]} sentences", seconds, FORWARD, 1.0)


def parse() -> Namespace:
    parser = measure.build_parser(__doc__ or "", EXAMPLE, ["cpu"])
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--data", type=Path, metavar="DATA_BIN")
    parser.add_argument("--split", default="train", help="(default: train)")
    parser.add_argument(
        "--sentences", type=measure.positive, nargs="+", default=[1000, 10000], metavar="N"
    )
    parser.add_argument("--max-tokens", type=measure.positive, default=2048, metavar="N")
    return parser.parse_args()


def main() -> int:
    args = parse()
    measure.prepare(args)
    most = str(args.sentences[-1])
    tables = [
        Table("Time of a pass", FORWARD, "s", [time_row(args)]),
        Table("Extra peak memory", str(args.sentences[0]), "MiB", [memory_row(args)]),
    ]
    aims = [Aim("analyse", most, FLAT)] if len(args.sentences) > 1 else []
    return measure.report(args, {"split": args.split}, tables, aims, QUIET)


if __name__ == "__main__":
    sys.exit(main())
