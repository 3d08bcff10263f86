"""Time of fine-tuning with adversarial self-attention (Wu et al. 2023, Figure 4a) and baselines.

Times are multiples of naive fine-tuning. A step is what fairseq-train does with a batch: forward,
backward, Adam and the logs, with random weights. Every sentence has the same length.

`asa` makes both passes as one larger batch, `sequence` one after the other. `upper` has adversaries
in the upper half of the layers, and computes the layers below once. `two_pass` masks nothing.
`freelb_K` makes K passes; between them, and in the K ascents of `smart_K`, the gradient is that of
the noise alone, not of parameters. SMART makes a clean, a noisy and K further passes, and one
without gradient for its running mean.
"""

import argparse
import json
import sys
from pathlib import Path

import measure
import numpy as np
import steps
from measure import Aim, Table
from steps import Candidate

PEER = "naive"
ASA = "--arch roberta_asa_12 --criterion sentence_prediction_asa"
BASELINE = "--arch roberta_una_12 --criterion sentence_prediction_asa --asa-baseline"
CANDIDATES = {
    PEER: "--arch roberta_una_12 --criterion sentence_classification",
    "asa": ASA,
    "sequence": f"{ASA} --asa-in-sequence",
    "upper": f"{ASA} --asa-layers upper",
    "two_pass": f"{BASELINE} two_pass",
    "freelb_2": f"{BASELINE} freelb --asa-steps 2",
    "freelb_3": f"{BASELINE} freelb --asa-steps 3",
    "smart_1": f"{BASELINE} smart --asa-steps 1",
    "smart_2": f"{BASELINE} smart --asa-steps 2",
}
SIZES = {  # layers, width, width of the feed-forward layers, heads
    "tiny": (2, 64, 128, 4),
    "minilm": (6, 384, 1536, 12),
    "base": (12, 768, 3072, 12),
}
SYMBOLS = dict.fromkeys(SIZES, 8_000)  # of the synthetic dictionary
EXAMPLES = 64
SPECIAL = 2  # tokens around a sentence
LENGTHS = [128, 256, 512]
LIMITS = {"asa": 2.3, "upper": 1.7}


def label(size: str, length: int) -> str:
    return f"{size}, {length}"


AIMS = [
    Aim(label("base", length), name, limit) for length in LENGTHS for name, limit in LIMITS.items()
]


def build(size: str, length: int, data: Path, args: argparse.Namespace) -> dict[str, Candidate]:
    """Build naive fine-tuning, twice, and the other candidates, on the same encoder."""
    common = [
        str(data / str(length)),
        "--vocabulary",
        str(data),
        "--tokens-per-sample",
        str(length),
    ]
    common += ["--task", "sentence_classification", *steps.shape(SIZES[size])]
    names = [PEER, *(name for name in args.candidates if name != PEER)]
    return steps.build({name: [*common, *CANDIDATES[name].split()] for name in names}, args)


def table(size: str, data: Path, args: argparse.Namespace) -> Table:
    """Measure a table with a row for each length."""
    rows = []
    for length in args.lengths:
        title, candidates = label(size, length), build(size, length, data, args)
        batches = steps.first_batches(candidates, args)
        seconds = steps.timed(title, candidates, steps.training, batches, args)
        rows.append(measure.compare(title, seconds, PEER, 1e3))
    return Table(f"Time of a batch, {size}", PEER, "ms", rows)


def write_synthetic(folder: Path, symbols: int, seed: int) -> None:
    """Write sentences of each length, of random words, with dictionary and tokeniser."""
    names, random = steps.write_vocabulary(folder, symbols), np.random.default_rng(seed)
    for length in LENGTHS:
        (folder / str(length)).mkdir()
        with (folder / str(length) / "train.jsonl").open("w") as file:
            for number in range(EXAMPLES):
                text = " ".join(random.choice(names, length - SPECIAL))
                file.write(json.dumps({"text": text, "label": str(number % 2)}) + "\n")


def parse() -> argparse.Namespace:
    example = "python benchmarks/asa.py --sizes minilm --lengths 128 --threads 1"
    synthetic = f"{EXAMPLES} sentences of each length"
    parser = steps.build_parser(__doc__, example, synthetic, SIZES, ["base"])
    parser.add_argument("--lengths", nargs="+", type=int, choices=LENGTHS, default=LENGTHS)
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=[*CANDIDATES])
    return parser.parse_args()


def main() -> int:
    args = parse()
    steps.check_lengths(args)
    steps.prepare(args, [*map(str, args.lengths), "dict.txt", "tokenizer.json"])
    with steps.data_folders(args, write_synthetic, SYMBOLS) as folders:
        tables = [table(size, data, args) for size, data in folders.items()]
    return steps.report(args, tables, AIMS)


if __name__ == "__main__":
    sys.exit(main())
