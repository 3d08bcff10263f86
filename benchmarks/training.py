"""Training and translation with our architectures, as multiples of stock fairseq's `transformer`,
and what replaces or guides learned attention, as multiples of our own without it (`una`).

A training step is what fairseq-train does with a batch: forward, backward, Adam and the logs, with
the dropout of the presets. Generation is what fairseq-generate does with a batch: beam 5, here for
a fixed number of steps. All models start from the same parameters and get the same batches.
`ag` is una with two guided heads in each layer of the encoder; it translates as una does.
"""

import argparse
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measure
import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from measure import AGAIN, Aim, Quiet, Row, Table, Work

import fairseq_ext.models.architectures as ours
from fairseq_ext.errors import UsageError
from fairseq_ext.processes import bf16_without_tpu

STOCK = "transformer"
FLAGS = """--task translation --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --share-decoder-input-output-embed --optimizer adam --lr 1e-4 --lr-scheduler fixed
    --num-workers 0""".split()
STEPS = 20  # of generation
MEASURED = (("Time of a batch", "ms"), ("Speed", "tokens/s"))
TINY = [x for k, v in ours.SIZES["_tiny"].items() for x in ("--" + k.replace("_", "-"), str(v))]
GUIDANCE = """--criterion label_smoothed_cross_entropy_ag --ag-encoder-heads next:1,prev:1
    --ag-alpha 10 --ag-decay-updates 1000000""".split()
SIZES = {  # suffix of our architectures, and the stock one
    "tiny": ("_tiny", ["transformer", *TINY]),
    "iwslt": ("_iwslt_de_en", ["transformer_iwslt_de_en"]),
}
SYMBOLS = {"tiny": 4_000, "iwslt": 10_000}  # of the synthetic dictionary
SENTENCES = 4_000
QUIET = Quiet(deviation=0.01, spread=0.05)
LIMITS = {  # peer -> part -> candidate -> aim
    STOCK: {
        "training": {"una": 1.03, "dna": 1.05, "hna": 1.10},
        "generation": {"una": 1.03, "dna": 1.03, "hna": 1.03},
    },
    "una": {
        "training": {"ag": 1.10, "gaussian": 1.0},
        "generation": {"gaussian": 0.8},
    },
}


def label(peer: str, part: str, size: str) -> str:
    return f"{part} {size} / {peer}"


AIMS = [
    Aim(label(peer, part, size), name, limit)
    for peer, parts in LIMITS.items()
    for part, limits in parts.items()
    for size in SIZES
    for name, limit in limits.items()
]


class Candidate(NamedTuple):
    """What there is once fairseq's command lines have been read and their models built."""

    cfg: Any
    task: Any
    model: torch.nn.Module


def build(
    peer: str, part: str, size: str, data: Path, given: argparse.Namespace
) -> dict[str, Candidate]:
    """A peer, twice, and its rivals, all with its parameters as far as they have them."""
    built: dict[str, Candidate] = {}
    for name in (peer, AGAIN, *LIMITS[peer][part]):
        flags = flags_of(peer if name == AGAIN else name, size)
        cfg = configure([str(data), *FLAGS, *flags], given)
        task = tasks.setup_task(cfg.task)
        model = task.build_model(cfg.model)
        built[name] = Candidate(cfg, task, model)
        state = built[peer].model.state_dict()
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert all(key.endswith(".offset") for key in missing)  # of HNA
        assert all(re.search(r"\b[qk]_proj\b", key) for key in unexpected)  # none in Gaussian heads
    return built


def flags_of(name: str, size: str) -> list[str]:
    suffix, stock = SIZES[size]
    if name == STOCK:
        return ["--arch", *stock]
    if name == "ag":
        return ["--arch", f"transformer_una{suffix}", *GUIDANCE]
    return ["--arch", f"transformer_{name}{suffix}"]


def configure(flags: list[str], given: argparse.Namespace) -> Any:
    flags = [*flags, "--max-tokens", str(given.max_tokens), "--seed", str(given.seed)]
    flags += ["--cpu"] * (given.device == "cpu") + ["--bf16"] * (given.precision == "bf16")
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    cfg = convert_namespace_to_omegaconf(args)
    bf16_without_tpu(cfg)
    cfg.generation.beam = 5
    cfg.generation.max_len_a, cfg.generation.max_len_b, cfg.generation.min_len = 0, STEPS, STEPS
    return cfg


def read_batches(candidate: Candidate, count: int) -> list[dict[str, Any]]:
    """The first batches of an epoch of training, again from the first if these are fewer."""
    cfg, task, model = candidate
    task.load_dataset("train")
    batches = task.get_batch_iterator(
        task.dataset("train"),
        max_tokens=cfg.dataset.max_tokens,
        max_positions=utils.resolve_max_positions(
            task.max_positions(), model.max_positions(), cfg.dataset.max_tokens
        ),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
        seed=cfg.common.seed,
    ).next_epoch_itr(shuffle=True)
    read = list(islice(batches, count))
    return [read[turn % len(read)] for turn in range(count)]


def training(candidate: Candidate, batches: Sequence[dict[str, Any]]) -> Work:
    cfg, task, model = candidate
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    return lambda turn: trainer.train_step([batches[turn]])


def generation(candidate: Candidate, batches: Sequence[dict[str, Any]]) -> Work:
    cfg, task, model = candidate
    if cfg.common.bf16:
        model.bfloat16()
    if not cfg.common.cpu:
        model.cuda()
        batches = [utils.move_to_cuda(batch) for batch in batches]
    model.prepare_for_inference_(cfg)
    generator = task.build_generator([model], cfg.generation)
    return lambda turn: task.inference_step(generator, [model], batches[turn])


def target_tokens(batch: dict[str, Any]) -> int:
    return batch["ntokens"]


def generated_tokens(batch: dict[str, Any]) -> int:
    return batch["nsentences"] * (STEPS + 1)


PARTS: dict[str, tuple[Callable[..., Work], Callable[[dict[str, Any]], int]]] = {
    "training": (training, target_tokens),
    "generation": (generation, generated_tokens),
}


def rows(peer: str, part: str, size: str, data: Path, given: argparse.Namespace) -> list[Row]:
    """As MEASURED: time of a batch in ms, and tokens a second."""
    start, count = PARTS[part]
    candidates = build(peer, part, size, data, given)
    batches = read_batches(candidates[peer], given.rounds + measure.WARMUP)
    work = {name: start(each, batches) for name, each in candidates.items()}
    title = label(peer, part, size)
    seconds = measure.interleave(work, peer, given.rounds, measure.clock(given), given.seed, title)
    tokens = np.array([count(batch) for batch in batches[: given.rounds]])
    speeds = {name: tokens / each for name, each in seconds.items() if name != AGAIN}
    return [
        measure.compare(title, seconds, peer, 1e3),
        measure.compare(f"{title}, speed", speeds, peer, 1.0),
    ]


# Data.


def write_synthetic(folder: Path, symbols: int, seed: int) -> None:
    """What fairseq-preprocess writes, of random sentences."""
    random = np.random.default_rng(seed)
    dictionary = Dictionary()
    for n in range(symbols):
        dictionary.add_symbol(f"w{n}")
    # log-normal around 20 tokens; a target is as long as its source give or take 15 %
    lengths = np.exp(random.normal(np.log(20), 0.5, SENTENCES))
    for language in ("de", "en"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
        prefix = str(folder / f"train.de-en.{language}")
        builder = indexed_dataset.make_builder(prefix + ".bin", "mmap", len(dictionary))
        for length in (lengths * random.normal(1, 0.15, SENTENCES)).clip(1, 100).astype(int):
            words = random.integers(dictionary.nspecial, len(dictionary), length)
            builder.add_item(torch.tensor([*words, dictionary.eos()]))
        builder.finalize(prefix + ".idx")


def data_folders(given: argparse.Namespace, made: Path) -> Iterator[tuple[str, Path]]:
    for size in given.sizes:
        folder = given.data or made / size
        if not given.data:
            folder.mkdir()
            write_synthetic(folder, SYMBOLS[size], given.seed)
        yield size, folder


# Command line.


def parse() -> argparse.Namespace:
    example = "python benchmarks/training.py --data data-bin/multi30k.en-de --sizes tiny"
    parser = measure.parser(__doc__, example)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="what fairseq-preprocess wrote (default: synthetic sentences, log-normal around 20 "
        "tokens, of 4,000 symbols for tiny and 10,000 for iwslt)",
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--peers", nargs="+", choices=LIMITS, default=[*LIMITS])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument(
        "--max-tokens",
        type=measure.positive,
        default=1024,
        help="of a batch, as in fairseq-train (default: %(default)s)",
    )
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    return parser.parse_args()


def main() -> int:
    given = parse()
    measure.prepare(given)
    if given.data and not (any(given.data.glob("train.*.idx")) and any(given.data.glob("dict.*"))):
        raise UsageError(f"--data is {given.data}; give a folder that fairseq-preprocess wrote")
    logging.disable(logging.INFO)  # fairseq tells of every model
    with TemporaryDirectory() as made:
        folders = list(data_folders(given, Path(made)))
        measured = {
            peer: [rows(peer, part, *folder, given) for folder in folders for part in given.parts]
            for peer in given.peers
        }
    tables = [
        Table(title, peer, unit, each)
        for peer, both in measured.items()
        for (title, unit), each in zip(MEASURED, zip(*both, strict=True), strict=True)
    ]
    facts = {
        "data": str(given.data or f"synthetic, {SENTENCES:,} sentences"),
        "batches": f"at most {given.max_tokens} tokens, {given.precision}; "
        f"beam 5, {STEPS} steps in generation",
    }
    return measure.report(given, facts, tables, AIMS, QUIET)


if __name__ == "__main__":
    sys.exit(main())
