"""Time of fine-tuning with task-specific attention (Jia 2024), as multiples of mean pooling.

A step is what fairseq-train does with a batch: forward, backward, Adam and the logs, with random
weights. `first` reads the first token instead. The last row of each table is the sum over the
paper's three trainings, each weighted with the number of batches that the paper gives.
"""

import argparse
import json
import sys
from pathlib import Path

import measure
import numpy as np
import steps
from measure import Aim, Row, Table
from steps import Candidate

PEER, CANDIDATES = "mean", ("first", "attention")
TASKS = {  # flags, and batches in the paper
    "sentiment": ("--task sentence_classification --output linear", 1_068),
    "paraphrase": ("--task sentence_classification --pairs apart", 17_688),
    "similarity": ("--task sentence_regression --pairs apart --regression-loss pearson", 755),
}
MODES = {"full": [], "frozen": ["--freeze-encoder"]}
SIZES = {  # layers, width, width of the feed-forward layers, heads
    "tiny": (2, 64, 128, 4),
    "minilm": (6, 384, 1536, 12),
    "base": (12, 768, 3072, 12),
}
SYMBOLS = {"tiny": 1_000, "minilm": 30_522, "base": 30_522}  # of the synthetic dictionary
EXAMPLES, WORDS = 600, 20  # synthetic, and words of a sentence


def label(mode: str, size: str, task: str) -> str:
    return f"{mode}, {size}, {task}"


AIMS = [Aim(label(mode, "base", "all three"), "attention", 1.16) for mode in MODES]


def build(
    task: str, mode: str, size: str, data: Path, args: argparse.Namespace
) -> dict[str, Candidate]:
    """Build mean pooling, twice, and the other candidates, on the same encoder."""
    flags, _ = TASKS[task]
    common = [str(data / task), "--vocabulary", str(data), *flags.split()]
    common += ["--criterion", flags.split()[1], "--arch", "roberta_una_12", *MODES[mode]]
    common += steps.shape(SIZES[size])
    return steps.build({name: [*common, "--pooling", name] for name in (PEER, *CANDIDATES)}, args)


def table(mode: str, size: str, data: Path, args: argparse.Namespace) -> Table:
    """Measure a table with a row for each task, and their sum."""
    rows: list[Row] = []
    sums: dict[str, np.ndarray] = {}
    for task, (_, weight) in TASKS.items():
        title, candidates = label(mode, size, task), build(task, mode, size, data, args)
        batches = steps.first_batches(candidates, args)
        seconds = steps.timed(title, candidates, steps.training, batches, args)
        rows.append(measure.compare(title, seconds, PEER, 1e3))
        for name, each in seconds.items():
            sums[name] = sums.get(name, 0) + weight * np.array(each)
    share = 1e3 / sum(weight for _, weight in TASKS.values())
    rows.append(measure.compare(label(mode, size, "all three"), sums, PEER, share))
    return Table(f"Time of a batch, {mode}, {size}", PEER, "ms", rows)


def write_synthetic(folder: Path, symbols: int, seed: int) -> None:
    """Write examples of each task, of random words, with dictionary and tokeniser."""
    names, random = steps.write_vocabulary(folder, symbols), np.random.default_rng(seed)
    for task, (flags, _) in TASKS.items():
        (folder / task).mkdir()
        with (folder / task / "train.jsonl").open("w") as file:
            for number in range(EXAMPLES):
                sides = ["text", "pair"] if "apart" in flags else ["text"]
                example = {side: " ".join(random.choice(names, WORDS)) for side in sides}
                kind = 5 if task == "sentiment" else 2
                label = float(number % 6) if "regression" in flags else str(number % kind)
                file.write(json.dumps({**example, "label": label}) + "\n")


def parse() -> argparse.Namespace:
    example = "python benchmarks/finetuning.py --sizes minilm --threads 1 --modes full"
    synthetic = f"{EXAMPLES} examples of each task, sentences of {WORDS} words"
    parser = steps.build_parser(__doc__, example, synthetic, SIZES, ["base"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    return parser.parse_args()


def main() -> int:
    args = parse()
    steps.prepare(args, ["sentiment", "paraphrase", "similarity", "dict.txt", "tokenizer.json"])
    with steps.data_folders(args, write_synthetic, SYMBOLS) as folders:
        tables = [
            table(mode, size, folders[size], args) for mode in args.modes for size in args.sizes
        ]
    return steps.report(args, tables, AIMS)


if __name__ == "__main__":
    sys.exit(main())
