"""Timed steps of whole models, built from fairseq's command lines and run on the same batches."""

import argparse
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import measure
import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from measure import AGAIN, Quiet, Row, Table, Work
from stock import as_released, is_stock
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from fairseq_ext import commands
from fairseq_ext.errors import UsageError
from fairseq_ext.training.machine_checks import unset_tpu

commands.set_up()  # what commands do is measured

FLAGS = "--optimizer adam --lr 1e-4 --lr-scheduler fixed --num-workers 0".split()
MEASURED = (("Time of a batch", "ms"), ("Speed", "tokens/s"))
QUIET = Quiet(deviation=0.01, spread=0.05)

OWN = r"\.(adversary|gate|groups|mixer)\b|^task_head\.|\brelative\."
"""Parameters that a peer need not have: those of mechanisms and of other heads."""

ABSENT = r"\b[qk]_proj\b|\.embed_positions\.|^task_head\."
"""Parameters of a peer that a candidate may lack: hard-coded heads, positions in attention."""

Batch = dict[str, Any]


class Candidate(NamedTuple):
    """Configuration, task and model that a command line of fairseq makes."""

    cfg: Any
    task: Any
    model: torch.nn.Module


def build(lines: Mapping[str, Sequence[str]], args: argparse.Namespace) -> dict[str, Candidate]:
    """Build candidates from their command lines: the first is the peer, AGAIN follows it.

    All start from the parameters of the peer, as far as they have them.
    """
    built: dict[str, Candidate] = {}
    peer, *others = lines
    for name in (peer, AGAIN, *others):
        built[name] = build_candidate(lines[peer if name == AGAIN else name], args)
        state = built[peer].model.state_dict()
        own = built[name].model.state_dict()  # projections of hard-coded heads are narrower
        alike = {k: v for k, v in state.items() if k not in own or own[k].shape == v.shape}
        missing, unexpected = built[name].model.load_state_dict(alike, strict=False)
        assert all(re.search(OWN, key) or key in state for key in missing), missing
        assert all(re.search(ABSENT, key) for key in unexpected), unexpected
    return built


def build_candidate(line: Sequence[str], args: argparse.Namespace) -> Candidate:
    with mock.patch.dict(os.environ):  # in which --compile is kept, for all that follow
        cfg = configure([*FLAGS, *line], args)
        task = tasks.setup_task(cfg.task)
        return Candidate(cfg, task, task.build_model(cfg.model))


def shape(sizes: Sequence[int]) -> list[str]:
    """Return flags of an encoder: layers, width, width of the feed-forward layers, heads."""
    names = ("layers", "embed-dim", "ffn-embed-dim", "attention-heads")
    pairs = zip(names, sizes, strict=True)
    return [word for name, value in pairs for word in (f"--encoder-{name}", str(value))]


def configure(flags: list[str], args: argparse.Namespace) -> Any:
    flags = [*flags, "--max-tokens", str(args.max_tokens), "--seed", str(args.seed)]
    flags += ["--cpu"] * (args.device == "cpu") + ["--bf16"] * (args.precision == "bf16")
    parsed = options.parse_args_and_arch(options.get_training_parser(), flags)
    cfg = convert_namespace_to_omegaconf(parsed)
    unset_tpu(cfg)
    return cfg


def read_batches(candidate: Candidate, count: int) -> list[Batch]:
    """Return the first batches of a training epoch, from the first again if there are fewer."""
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


def training(candidate: Candidate, batches: Sequence[Batch]) -> Work:
    """Return what fairseq-train does with a batch: forward, backward, Adam and the logs."""
    trainer = build_trainer(candidate)

    def work(turn: int) -> object:
        return trainer.train_step([batches[turn]])

    return as_released(work) if is_stock(candidate.model) else work


def build_trainer(candidate: Candidate) -> Trainer:
    cfg, task, model = candidate
    return Trainer(cfg, task, model, task.build_criterion(cfg.criterion))


def tokens_of(batch: Batch) -> int:
    return batch["ntokens"]


def first_batches(candidates: Mapping[str, Candidate], args: argparse.Namespace) -> list[Batch]:
    """Return the batches of all candidates, from the data of the first."""
    return read_batches(next(iter(candidates.values())), args.rounds + measure.WARMUP)


def timed(
    title: str,
    candidates: Mapping[str, Candidate],
    start: Callable[[Candidate, Sequence[Batch]], Work],
    batches: Sequence[Batch],
    args: argparse.Namespace,
) -> dict[str, list[float]]:
    """Return the seconds of each batch, by candidate; the first is the peer."""
    peer = next(iter(candidates))
    work = {name: start(each, batches) for name, each in candidates.items()}
    return measure.interleave(work, peer, args.rounds, measure.clock(args), args.seed, title)


def rows(
    title: str,
    candidates: Mapping[str, Candidate],
    start: Callable[[Candidate, Sequence[Batch]], Work],
    count: Callable[[Batch], int],
    args: argparse.Namespace,
) -> list[Row]:
    """Return the rows of MEASURED: ms of a batch, and tokens a second. The first is the peer."""
    peer, batches = next(iter(candidates)), first_batches(candidates, args)
    seconds = timed(title, candidates, start, batches, args)
    tokens = np.array([count(batch) for batch in batches[: args.rounds]])
    speeds = {name: tokens / each for name, each in seconds.items() if name != AGAIN}
    return [
        measure.compare(title, seconds, peer, 1e3),
        measure.compare(f"{title}, speed", speeds, peer, 1.0),
    ]


def tables(measured: Mapping[str, list[list[Row]]]) -> list[Table]:
    """Return tables of what `rows` returned, peer by peer."""
    return [
        Table(title, peer, unit, each)
        for peer, both in measured.items()
        for (title, unit), each in zip(MEASURED, zip(*both, strict=True), strict=True)
    ]


def report(
    args: argparse.Namespace,
    tables: Sequence[Table],
    aims: Sequence[measure.Aim],
    synthetic: str = "",
    batches: str = "",
) -> int:
    """Report as `measure.report`; `synthetic` and `batches` add words on these."""
    facts = {
        "data": str(args.data or f"synthetic{synthetic}"),
        "batches": f"at most {args.max_tokens} tokens, {args.precision}{batches}",
    }
    return measure.report(args, facts, tables, aims, QUIET)


# Data.


def dictionary(symbols: int) -> Dictionary:
    """Return a dictionary of a comma and words, each with a count."""
    words = Dictionary()
    for n in range(symbols):
        words.add_symbol(f"w{n}" if n else ",", n=symbols - n)
    return words


def write_vocabulary(folder: Path, symbols: int) -> list[str]:
    """Write a dictionary and a tokeniser, as for labelled text, and return the words."""
    words = dictionary(symbols)
    words.save(str(folder / "dict.txt"))
    names = words.symbols[words.nspecial :]
    tokenizer = Tokenizer(WordLevel({name: n for n, name in enumerate(["<unk>", *names])}, "<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return names


def write_random(
    prefix: Path, words: Dictionary, lengths: Iterable[int], random: np.random.Generator
) -> None:
    """Write random sentences of these lengths in words to PREFIX.bin and PREFIX.idx."""
    builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", len(words))
    for length in lengths:
        sampled = random.integers(words.nspecial, len(words), length)
        builder.add_item(torch.tensor([*sampled, words.eos()]))
    builder.finalize(f"{prefix}.idx")


@contextmanager
def data_folders(
    args: argparse.Namespace, write: Callable[[Path, int, int], None], symbols: Mapping[str, int]
) -> Iterator[dict[str, Path]]:
    """Yield the data of each size: --data, or what `write(folder, symbols, seed)` writes."""
    with TemporaryDirectory() as temporary:
        folders = {size: args.data or Path(temporary, size) for size in args.sizes}
        for size, folder in folders.items() if not args.data else ():
            folder.mkdir()
            write(folder, symbols[size], args.seed)
        yield folders


# Command line.


def build_parser(
    text: str, example: str, synthetic: str, sizes: Iterable[str], chosen: Sequence[str]
) -> argparse.ArgumentParser:
    """Return a parser with the options of benchmarks of whole models; `chosen` are default."""
    parser = measure.build_parser(text, example)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help=f"what fairseq-preprocess wrote (default: synthetic, {synthetic})",
    )
    parser.add_argument(
        "--sizes", nargs="+", choices=sizes, default=chosen, help=f"(default: {' '.join(chosen)})"
    )
    parser.add_argument(
        "--max-tokens",
        type=measure.positive,
        default=1024,
        help="of a batch, as in fairseq-train (default: %(default)s)",
    )
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    return parser


def check_lengths(args: argparse.Namespace) -> None:
    """Raise UsageError if a batch does not hold one sequence."""
    if max(args.lengths) > args.max_tokens:
        raise UsageError(
            f"--lengths has {max(args.lengths)}, but --max-tokens {args.max_tokens} is less than "
            "one such sequence; give more tokens, or shorter lengths"
        )


def prepare(args: argparse.Namespace, data: Sequence[str]) -> None:
    """Check the options; `data` are globs of what has to be in the folder of --data.

    Raises:
        UsageError: they cannot be used here.
    """
    measure.prepare(args)
    if args.data and not all(any(args.data.glob(pattern)) for pattern in data):
        raise UsageError(
            f"--data is {args.data}; give a folder that fairseq-preprocess wrote, with "
            f"{' and '.join(data)}"
        )
    logging.disable(logging.INFO)  # fairseq logs every model
