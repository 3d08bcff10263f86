"""Reading features of pictures from mapped files: time of a batch, and memory over an epoch.

Made-up pictures, each with the same number of boxes in three views, are written to disk as
scripts/prepare_vqa.sh writes them. Time is that of loading a batch of random questions, once from
the disk (the system forgets the pages of the file first) and once from pages that are in memory, as
multiples of a training step on such a batch. Memory is anonymous memory (RssAnon) of a process that
loads all batches of an epoch in random order: at the end and at most, as multiples of that after
the first batches.
"""

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, TypeVar

import measure
import numpy as np
import steps
from fairseq import tasks
from measure import AGAIN, Aim, Quiet, Row, Table
from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_writable, write_lines
from fairseq_ext.vqa.picture_features import FeatureWriter
from fairseq_ext.vqa.question_batches import QuestionDataset

T = TypeVar("T")

EXAMPLE = "python benchmarks/pictures.py --pictures 5000 --threads 1 --rounds 5 --clock wall"
STEP = "training step"
VIEWS = ("a", "b", "c")
ANSWERS = 3129
WORDS = 1000
LENGTH = 8  # words of a question
EACH = 5  # questions about a picture, as in VQA-v2
WARM = 5  # batches after which memory is level
FLAT = 1.1
QUIET = Quiet(deviation=0.05, spread=0.2)


def write_pictures(folder: Path, args: Namespace) -> None:
    """Write a prepared folder of random numbers."""
    random = np.random.default_rng(args.seed)
    needed = len(VIEWS) * args.pictures * args.boxes * args.width * 2
    check_writable(folder, needed)
    for view in VIEWS:
        with FeatureWriter(folder / f"train.{view}", args.width) as writer:
            for picture in tqdm(range(args.pictures), f"writing {view}", disable=None):
                writer.add(picture, random.random((args.boxes, args.width), np.float32))
            writer.complete()
    write_lines(folder / "views.txt", VIEWS)
    write_lines(folder / "answers.txt", (f"answer {n}" for n in range(ANSWERS)))
    write_lines(folder / "dict.txt", (f"word{n} {WORDS - n}" for n in range(WORDS)))
    write_lines(folder / "train.jsonl", map(json.dumps, make_questions(random, args.pictures)))


def make_questions(random: np.random.Generator, pictures: int) -> Iterator[dict[str, Any]]:
    for number in range(EACH * pictures):
        answers = random.choice(ANSWERS, 2, replace=False).tolist()
        yield {
            "question_id": number,
            "image_id": number // EACH,
            "question": " ".join(f"word{n}" for n in random.integers(0, WORDS, LENGTH)),
            "answers": {f"answer {answers[0]}": 1.0, f"answer {answers[1]}": 0.3},
        }


@contextmanager
def made_up_data(args: Namespace) -> Iterator[Path]:
    """Yield the folder of the data, which is deleted afterwards."""
    folder = Path(mkdtemp(prefix="pictures-", dir=args.folder))
    try:
        write_pictures(folder, args)
        yield folder
    finally:
        rmtree(folder)


def command_line(folder: Path, args: Namespace) -> list[str]:
    line = [str(folder), "--task", "vqa", "--criterion", "vqa", "--arch", args.arch]
    return [*line, "--batch-size", str(args.questions)]


def forget_pages(folder: Path) -> None:
    """Ask the system to read the files from the disk when they are needed next."""
    for path in folder.glob("*.npy"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def anonymous_memory() -> float:
    """Return the MiB that the process owns, without pages of files."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) for x in status.split("\n") if x.startswith("RssAnon")) / 1024


def read_from_disk() -> float:
    """Return the MiB that this process had the system read from the disk so far."""
    lines = Path("/proc/self/io").read_text().split("\n")
    return next(int(x.split()[1]) for x in lines if x.startswith("read_bytes")) / measure.MIB


def open_data(folder: Path, args: Namespace) -> QuestionDataset:
    cfg = steps.configure([*steps.FLAGS, *command_line(folder, args)], args)
    task = tasks.setup_task(cfg.task)
    task.width = args.width
    task.load_dataset("train")
    return task.dataset("train")


def sample_batches(data: QuestionDataset, count: int, args: Namespace) -> list[list[int]]:
    random = np.random.default_rng(args.seed)
    size = min(args.questions, len(data))
    return [random.choice(len(data), size, replace=False).tolist() for _ in range(count)]


def load_epoch(folder: Path, args: Namespace) -> dict[str, float]:
    """Return the MiB of anonymous memory after some batches, at most and at the end."""
    data = open_data(folder, args)
    order = np.random.default_rng(args.seed).permutation(len(data))
    seen = []
    batches = [order[i : i + args.questions] for i in range(0, len(order), args.questions)]
    for batch in tqdm(batches, "epoch", disable=None):
        data.collater(batch.tolist())
        seen.append(anonymous_memory())
    start = seen[min(WARM, len(seen) - 1)]
    return {"start": start, "end": seen[-1], "most": max(seen[WARM:] or seen)}


def load_cold(folder: Path, args: Namespace) -> tuple[list[float], float]:
    """Return the seconds of loading each batch from the disk, and the MiB of one that were read.

    The system only forgets pages that no process has mapped: a process of its own has mapped none.
    """
    data, seconds = open_data(folder, args), []
    before = read_from_disk()
    for batch in sample_batches(data, args.rounds, args):
        forget_pages(folder)
        begin = time.perf_counter()  # with its waits for the disk
        data.collater(batch)
        seconds.append(time.perf_counter() - begin)
    return seconds, (read_from_disk() - before) / args.rounds


def apart(work: Callable[[Path, Namespace], T], folder: Path, args: Namespace) -> T:
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, folder, args).result()


def memory_row(folder: Path, args: Namespace) -> Row:
    measured = {name: [value] for name, value in apart(load_epoch, folder, args).items()}
    return measure.compare("epoch", measured, "start", 1.0)


def time_row(folder: Path, args: Namespace, cold: list[float]) -> Row:
    """Return the time of a step, and of loading a batch as a multiple of it."""
    candidate = steps.build_candidate(command_line(folder, args), args)
    candidate.task.load_dataset("train")
    data = candidate.task.dataset("train")
    batches = sample_batches(data, args.rounds + measure.WARMUP, args)
    fixed = data.collater(batches[0])
    for batch in batches:
        data.collater(batch)
    trainer = steps.build_trainer(candidate)

    def step(_: int) -> None:
        trainer.train_step([fixed])

    work = {STEP: step, AGAIN: step, "loading": lambda turn: data.collater(batches[turn])}
    seconds = measure.interleave(work, STEP, args.rounds, measure.clock(args), args.seed, "time")
    seconds["loading from the disk"] = cold
    return measure.compare(f"{args.questions} questions", seconds, STEP, 1.0)


def parse() -> Namespace:
    parser = measure.build_parser(__doc__ or "", EXAMPLE)
    parser.add_argument("--pictures", type=measure.positive, default=100, help="(default: 100)")
    parser.add_argument("--boxes", type=measure.positive, default=100, help="(default: 100)")
    parser.add_argument("--width", type=measure.positive, default=2048, help="(default: 2048)")
    parser.add_argument(
        "--questions", type=measure.positive, default=32, help="of a batch (default: 32)"
    )
    parser.add_argument("--arch", default="vqa_multi_view_dna", help="(default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, help="on the disk to measure (default: the system's for such files)"
    )
    args = parser.parse_args()
    args.precision = "fp32"
    args.max_tokens = args.questions * args.boxes * len(VIEWS)
    return args


def main() -> int:
    args = parse()
    measure.prepare(args)
    if args.folder and not args.folder.is_dir():
        raise UsageError(f"--folder is {args.folder}, which is no folder; make it first")
    with made_up_data(args) as folder:
        size = sum(path.stat().st_size for path in folder.glob("*.npy"))
        cold, read = apart(load_cold, folder, args)
        tables = [
            Table("Anonymous memory", "start", "MiB", [memory_row(folder, args)]),
            Table("Time of a batch", STEP, "s", [time_row(folder, args, cold)]),
        ]
    batch = size / args.pictures * args.questions / measure.MIB
    facts = {
        "data": f"{args.pictures} pictures x {len(VIEWS)} views x {args.boxes} boxes x {args.width}"
        f" in float16, {size / measure.MIB:,.0f} MiB, made up",
        "batch": f"{batch:,.1f} MiB, of which {read:,.1f} were read from the disk",
        "model": f"{args.arch}, batches of {args.questions} questions, fp32",
    }
    return measure.report(args, facts, tables, [Aim("epoch", "most", FLAT)], QUIET)


if __name__ == "__main__":
    sys.exit(main())
