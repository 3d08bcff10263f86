"""Time of pre-training on masked words, as multiples of stock fairseq's `roberta`.

Attention guidance is measured as multiples of our own model without it (`una`). A step is what
fairseq-train does with a batch: forward, backward, Adam and the logs. Every sequence has the same
length. All models start from the same parameters and get the same batches.
`ag` is una with half of the heads of each layer guided.
"""

import argparse
import sys
from pathlib import Path

import measure
import numpy as np
import steps
from measure import Aim
from steps import Candidate

STOCK = "roberta"
FLAGS = "--task masked_lm --sample-break-mode none".split()
OBJECTIVE = "--criterion masked_lm".split()
GUIDANCE = """--criterion masked_lm_ag --ag-fraction 0.5 --ag-alpha 10
    --ag-decay-updates 1000000""".split()
SIZES = {  # layers, width, width of the feed-forward layers, heads
    "tiny": (4, 128, 256, 4),
    "small": (4, 512, 2048, 8),
    "base": (12, 768, 3072, 12),
}
SYMBOLS = {"tiny": 4_000, "small": 8_000, "base": 32_000}  # of the synthetic dictionary
LINES, WORDS = 4_000, 63  # synthetic
CANDIDATES = {STOCK: ["una", "dna", "hna"], "una": ["ag"]}
LIMITS = {"una": 1.0, "dna": 1.111}  # 1 and 0.9 of the tokens a second of the stock model
LENGTHS = [128, 512]


def label(peer: str, size: str, length: int) -> str:
    return f"{size} {length} / {peer}"


AIMS = [
    Aim(label(STOCK, size, length), name, limit)
    for size in SIZES
    for length in LENGTHS
    for name, limit in LIMITS.items()
]


def build(
    peer: str, size: str, length: int, data: Path, args: argparse.Namespace
) -> dict[str, Candidate]:
    """Build a peer, twice, and its candidates."""
    common = [str(data), *FLAGS, "--tokens-per-sample", str(length), *steps.shape(SIZES[size])]
    common += ["--attention-dropout", "0"] * args.dropout_free
    return steps.build({name: common + flags_of(name) for name in (peer, *CANDIDATES[peer])}, args)


def flags_of(name: str) -> list[str]:
    if name == STOCK:
        return ["--arch", STOCK, *OBJECTIVE]
    if name == "ag":
        return ["--arch", "roberta_una_12", *GUIDANCE]
    return ["--arch", f"roberta_{name}_12", *OBJECTIVE]


def write_synthetic(folder: Path, symbols: int, seed: int) -> None:
    """Write random lines as fairseq-preprocess --only-source does."""
    words = steps.dictionary(symbols)
    words.save(str(folder / "dict.txt"))
    steps.write_random(folder / "train", words, [WORDS] * LINES, np.random.default_rng(seed))


def parse() -> argparse.Namespace:
    example = "python benchmarks/pretraining.py --lengths 512 --threads 1 --dropout-free"
    symbols = ", ".join(f"{n:,} for {size}" for size, n in SYMBOLS.items())
    synthetic = f"{LINES * (WORDS + 1):,} tokens, symbols {symbols}"
    parser = steps.build_parser(__doc__, example, synthetic, SIZES, ["small"])
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=measure.positive,
        default=LENGTHS,
        metavar="T",
        help=f"of the sequences (default: {' '.join(map(str, LENGTHS))})",
    )
    parser.add_argument("--peers", nargs="+", choices=CANDIDATES, default=[*CANDIDATES])
    parser.add_argument(
        "--dropout-free",
        action="store_true",
        help="--attention-dropout 0, with which doubly-normalised attention has a kernel on CPUs "
        "too, in place of the 0.1 of RoBERTa; other dropout stays",
    )
    return parser.parse_args()


def main() -> int:
    args = parse()
    steps.check_lengths(args)
    steps.prepare(args, ["train*.idx", "dict.txt"])
    with steps.data_folders(args, write_synthetic, SYMBOLS) as folders:
        measured = {
            peer: [
                steps.rows(
                    label(peer, size, length),
                    build(peer, size, length, data, args),
                    *(steps.training, steps.tokens_of),
                    args,
                )
                for size, data in folders.items()
                for length in args.lengths
            ]
            for peer in args.peers
        }
    dropout = f", attention dropout {0.0 if args.dropout_free else 0.1}"
    return steps.report(args, steps.tables(measured), AIMS, batches=dropout)


if __name__ == "__main__":
    sys.exit(main())
