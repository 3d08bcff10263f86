"""Time of training and translation, as multiples of stock fairseq's `transformer`.

Mechanisms that replace or guide learned attention are measured as multiples of our own model
without them (`una`). A training step is what fairseq-train does with a batch: forward, backward,
Adam and the logs, with the dropout of the presets. Generation is what fairseq-generate does with a
batch: beam 5, here for a fixed number of steps. All models start from the same parameters and get
the same batches. `ag` is una with two guided heads in each layer of the encoder; it translates as
una does. `roles` is una with three heads of each layer masked by roles that tokens define.

With --compile, training steps of candidates whose layers are compiled are multiples of the same
ones without.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import steps
from fairseq import utils
from measure import Aim, Row, Work
from steps import Batch, Candidate
from stock import as_released, is_stock

import fairseq_ext.models.architectures as ours

STOCK = "transformer"
FLAGS = """--task translation --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --share-decoder-input-output-embed""".split()
STEPS = 20  # of generation
COMPILED = "compiled"
TINY = [x for k, v in ours.SIZES["_tiny"].items() for x in ("--" + k.replace("_", "-"), str(v))]
GUIDANCE = """--criterion label_smoothed_cross_entropy_ag --ag-encoder-heads next:1,prev:1
    --ag-alpha 10 --ag-decay-updates 1000000""".split()
SIZES = {  # suffix of our architectures, and the stock one
    "tiny": ("_tiny", ["transformer", *TINY]),
    "iwslt": ("_iwslt_de_en", ["transformer_iwslt_de_en"]),
    "wmt": ("_wmt_en_de", ["transformer_wmt_en_de"]),
}
CHOSEN = ["tiny", "iwslt"]  # unless --sizes is given
SYMBOLS = {"tiny": 4_000, "iwslt": 10_000, "wmt": 32_000}  # of the synthetic dictionary
SENTENCES = 4_000
LIMITS = {  # peer -> part -> candidate -> aim
    STOCK: {
        "training": {"una": 0.92, "dna": 0.97, "hna": 1.03},
        "generation": {"una": 0.75, "dna": 0.75, "hna": 0.75},
    },
    "una": {
        "training": {"ag": 1.10, "gaussian": 1.0, "roles": 1.10},
        "generation": {"gaussian": 0.8, "roles": 1.10},
    },
}


def label(peer: str, part: str, size: str) -> str:
    return f"{part} {size} / {peer}"


AIMS = [
    Aim(label(peer, part, size), name, limit)
    for peer, parts in LIMITS.items()
    for part, limits in parts.items()
    for size in CHOSEN
    for name, limit in limits.items()
]


def build(
    peer: str, part: str, size: str, data: Path, args: argparse.Namespace
) -> dict[str, Candidate]:
    """Build a peer, twice, and its candidates."""
    names = (peer, *LIMITS[peer][part])
    return steps.build({name: [str(data), *FLAGS, *flags_of(name, size)] for name in names}, args)


def build_compiled(
    name: str, size: str, data: Path, args: argparse.Namespace
) -> dict[str, Candidate]:
    """Build a candidate, twice, and the same one with compiled layers."""
    line = [str(data), *FLAGS, *flags_of(name, size)]
    return steps.build({name: line, COMPILED: [*line, "--compile"]}, args)


def flags_of(name: str, size: str) -> list[str]:
    suffix, stock = SIZES[size]
    if name == STOCK:
        return ["--arch", *stock]
    if name == "ag":
        return ["--arch", f"transformer_una{suffix}", *GUIDANCE]
    return ["--arch", f"transformer_{name}{suffix}"]


def generation(candidate: Candidate, batches: Sequence[Batch]) -> Work:
    cfg, task, model = candidate
    cfg.generation.beam = 5
    cfg.generation.max_len_a, cfg.generation.max_len_b, cfg.generation.min_len = 0, STEPS, STEPS
    if cfg.common.bf16:
        model.bfloat16()
    if not cfg.common.cpu:
        model.cuda()
        batches = [utils.move_to_cuda(batch) for batch in batches]
    model.prepare_for_inference_(cfg)
    generator = task.build_generator([model], cfg.generation)

    def work(turn: int) -> object:
        return task.inference_step(generator, [model], batches[turn])

    return as_released(work) if is_stock(model) else work


def generated_tokens(batch: Batch) -> int:
    return batch["nsentences"] * (STEPS + 1)


PARTS: dict[str, tuple[Callable[..., Work], Callable[[Batch], int]]] = {
    "training": (steps.training, steps.tokens_of),
    "generation": (generation, generated_tokens),
}


def write_synthetic(folder: Path, symbols: int, seed: int) -> None:
    """Write random sentences as fairseq-preprocess does."""
    random, words = np.random.default_rng(seed), steps.dictionary(symbols)
    # log-normal around 20 tokens; a target is as long as its source give or take 15 %
    lengths = np.exp(random.normal(np.log(20), 0.5, SENTENCES))
    for language in ("de", "en"):
        words.save(str(folder / f"dict.{language}.txt"))
        counts = (lengths * random.normal(1, 0.15, SENTENCES)).clip(1, 100).astype(int)
        steps.write_random(folder / f"train.de-en.{language}", words, counts, random)


def parse() -> argparse.Namespace:
    example = "python benchmarks/training.py --data data-bin/multi30k.en-de --sizes tiny"
    synthetic = (
        "sentences log-normal around 20 tokens, of 4,000 symbols for tiny, 10,000 for iwslt and "
        "32,000 for wmt"
    )
    parser = steps.build_parser(__doc__, example, synthetic, SIZES, CHOSEN)
    parser.add_argument("--peers", nargs="+", choices=LIMITS, default=[*LIMITS])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    own = ["una", *LIMITS["una"]["training"], *LIMITS[STOCK]["training"]]
    parser.add_argument(
        "--compile", nargs="+", choices=dict.fromkeys(own), metavar="NAME",
        help="compare training steps with compiled layers to those without, and nothing else",
    )  # fmt: skip
    return parser.parse_args()


def measure_compiled(
    folders: Mapping[str, Path], args: argparse.Namespace
) -> dict[str, list[list[Row]]]:
    """Return the rows of --compile, by candidate."""
    return {
        name: [
            steps.rows(
                label(name, f"{COMPILED} training", size),
                build_compiled(name, size, data, args),
                *PARTS["training"],
                args,
            )
            for size, data in folders.items()
        ]
        for name in args.compile
    }


def measure_peers(
    folders: Mapping[str, Path], args: argparse.Namespace
) -> dict[str, list[list[Row]]]:
    """Return the rows of --peers and --parts, by peer."""
    return {
        peer: [
            steps.rows(
                label(peer, part, size), build(peer, part, size, data, args), *PARTS[part], args
            )
            for size, data in folders.items()
            for part in args.parts
        ]
        for peer in args.peers
    }


def main() -> int:
    args = parse()
    steps.prepare(args, ["train.*.idx", "dict.*"])
    with steps.data_folders(args, write_synthetic, SYMBOLS) as folders:
        measured = (measure_compiled if args.compile else measure_peers)(folders, args)
    synthetic, beam = f", {SENTENCES:,} sentences", f"; beam 5, {STEPS} steps in generation"
    return steps.report(args, steps.tables(measured), AIMS, synthetic, beam)


if __name__ == "__main__":
    sys.exit(main())
