"""Steps of whole models: built from fairseq's command lines, and timed on the same batches."""

import argparse
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from measure import AGAIN, Quiet, Row, Table, Work
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from fairseq_ext.errors import UsageError
from fairseq_ext.patches.processes import keep_bf16_off_tpu

FLAGS = "--optimizer adam --lr 1e-4 --lr-scheduler fixed --num-workers 0".split()
MEASURED = (("Time of a batch", "ms"), ("Speed", "tokens/s"))
QUIET = Quiet(deviation=0.01, spread=0.05)

Batch = dict[str, Any]


class Candidate(NamedTuple):
    """What there is once fairseq's command lines have been read and their models built."""

    cfg: Any
    task: Any
    model: torch.nn.Module


def build(lines: Mapping[str, Sequence[str]], given: argparse.Namespace) -> dict[str, Candidate]:
    """Candidates by their command lines: the first, which is the peer, then AGAIN and the others.

    All have the parameters of the peer, as far as they have them.
    """
    built: dict[str, Candidate] = {}
    peer, *others = lines
    for name in (peer, AGAIN, *others):
        cfg = configure([*FLAGS, *lines[peer if name == AGAIN else name]], given)
        task = tasks.setup_task(cfg.task)
        model = task.build_model(cfg.model)
        built[name] = Candidate(cfg, task, model)
        state = built[peer].model.state_dict()
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert all(re.search(r"\.offset$|^task_head\.", key) for key in missing)  # HNA; other heads
        # there are none in Gaussian heads
        assert all(re.search(r"\b[qk]_proj\b|^task_head\.", key) for key in unexpected)
    return built


def shape(sizes: Sequence[int]) -> list[str]:
    """Flags of an encoder: layers, width, width of the feed-forward layers, heads."""
    names = ("layers", "embed-dim", "ffn-embed-dim", "attention-heads")
    pairs = zip(names, sizes, strict=True)
    return [word for name, value in pairs for word in (f"--encoder-{name}", str(value))]


def configure(flags: list[str], given: argparse.Namespace) -> Any:
    flags = [*flags, "--max-tokens", str(given.max_tokens), "--seed", str(given.seed)]
    flags += ["--cpu"] * (given.device == "cpu") + ["--bf16"] * (given.precision == "bf16")
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    cfg = convert_namespace_to_omegaconf(args)
    keep_bf16_off_tpu(cfg)
    return cfg


def read_batches(candidate: Candidate, count: int) -> list[Batch]:
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


def training(candidate: Candidate, batches: Sequence[Batch]) -> Work:
    """What fairseq-train does with a batch: forward, backward, Adam and the logs."""
    cfg, task, model = candidate
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    return lambda turn: trainer.train_step([batches[turn]])


def tokens_of(batch: Batch) -> int:
    return batch["ntokens"]


def first_batches(candidates: Mapping[str, Candidate], given: argparse.Namespace) -> list[Batch]:
    """What all candidates get, from the data of the first."""
    return read_batches(next(iter(candidates.values())), given.rounds + measure.WARMUP)


def timed(
    title: str,
    candidates: Mapping[str, Candidate],
    start: Callable[[Candidate, Sequence[Batch]], Work],
    batches: Sequence[Batch],
    given: argparse.Namespace,
) -> dict[str, list[float]]:
    """Seconds of each batch, by candidate; the first is the peer."""
    peer = next(iter(candidates))
    work = {name: start(each, batches) for name, each in candidates.items()}
    return measure.interleave(work, peer, given.rounds, measure.clock(given), given.seed, title)


def rows(
    title: str,
    candidates: Mapping[str, Candidate],
    start: Callable[[Candidate, Sequence[Batch]], Work],
    count: Callable[[Batch], int],
    given: argparse.Namespace,
) -> list[Row]:
    """As MEASURED: time of a batch in ms, and tokens a second. The first candidate is the peer."""
    peer, batches = next(iter(candidates)), first_batches(candidates, given)
    seconds = timed(title, candidates, start, batches, given)
    tokens = np.array([count(batch) for batch in batches[: given.rounds]])
    speeds = {name: tokens / each for name, each in seconds.items() if name != AGAIN}
    return [
        measure.compare(title, seconds, peer, 1e3),
        measure.compare(f"{title}, speed", speeds, peer, 1.0),
    ]


def tables(measured: Mapping[str, list[list[Row]]]) -> list[Table]:
    """What `rows` returned, peer by peer."""
    return [
        Table(title, peer, unit, each)
        for peer, both in measured.items()
        for (title, unit), each in zip(MEASURED, zip(*both, strict=True), strict=True)
    ]


def report(
    given: argparse.Namespace,
    tables: Sequence[Table],
    aims: Sequence[measure.Aim],
    synthetic: str = "",
    batches: str = "",
) -> int:
    """`measure.report`; `synthetic` and `batches` are what else is to say of these."""
    facts = {
        "data": str(given.data or f"synthetic{synthetic}"),
        "batches": f"at most {given.max_tokens} tokens, {given.precision}{batches}",
    }
    return measure.report(given, facts, tables, aims, QUIET)


# Data.


def dictionary(symbols: int) -> Dictionary:
    """A comma and words, each with a count."""
    made = Dictionary()
    for n in range(symbols):
        made.add_symbol(f"w{n}" if n else ",", n=symbols - n)
    return made


def write_vocabulary(folder: Path, symbols: int) -> list[str]:
    """Its dictionary and tokeniser, as for labelled text; returns the words."""
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
    """Sentences of so many words: PREFIX.bin and PREFIX.idx, as of fairseq-preprocess."""
    builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", len(words))
    for length in lengths:
        drawn = random.integers(words.nspecial, len(words), length)
        builder.add_item(torch.tensor([*drawn, words.eos()]))
    builder.finalize(f"{prefix}.idx")


@contextmanager
def data_folders(
    given: argparse.Namespace, write: Callable[[Path, int, int], None], symbols: Mapping[str, int]
) -> Iterator[dict[str, Path]]:
    """The data of each size: what is given, or written by `write(folder, symbols, seed)`."""
    with TemporaryDirectory() as made:
        folders = {size: given.data or Path(made, size) for size in given.sizes}
        for size, folder in folders.items() if not given.data else ():
            folder.mkdir()
            write(folder, symbols[size], given.seed)
        yield folders


# Command line.


def parser(
    text: str, example: str, synthetic: str, sizes: Iterable[str], chosen: Sequence[str]
) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks of whole models have; `chosen` are default."""
    made = measure.parser(text, example)
    made.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help=f"what fairseq-preprocess wrote (default: synthetic, {synthetic})",
    )
    made.add_argument(
        "--sizes", nargs="+", choices=sizes, default=chosen, help=f"(default: {' '.join(chosen)})"
    )
    made.add_argument(
        "--max-tokens",
        type=measure.positive,
        default=1024,
        help="of a batch, as in fairseq-train (default: %(default)s)",
    )
    made.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    return made


def check_lengths(given: argparse.Namespace) -> None:
    """Raises UsageError if a batch does not hold one sequence."""
    if max(given.lengths) > given.max_tokens:
        raise UsageError(
            f"--lengths has {max(given.lengths)}, but --max-tokens {given.max_tokens} is less than "
            "one such sequence; give more tokens, or shorter lengths"
        )


def prepare(given: argparse.Namespace, data: Sequence[str]) -> None:
    """Check the options; `data` are globs of what has to be in the folder of --data.

    Raises:
        UsageError: they cannot be used here.
    """
    measure.prepare(given)
    if given.data and not all(any(given.data.glob(pattern)) for pattern in data):
        raise UsageError(
            f"--data is {given.data}; give a folder that fairseq-preprocess wrote, with "
            f"{' and '.join(data)}"
        )
    logging.disable(logging.INFO)  # fairseq tells of every model
