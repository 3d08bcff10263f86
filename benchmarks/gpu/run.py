"""Run a stage of the proof on a GPU: items in worker processes, results saved one by one.

A stage is a module beside this one with `plan(options)`, which returns items, and `WORKERS`. Each
item is done once: a second run of the same command does what the first did not reach. An item that
fails, hangs or takes its process along is recorded as such, and the others go on.
"""

import argparse
import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

import measure
import torch
from items import Item, Options, Result, Skipped, Unfinished
from tqdm import tqdm

from fairseq_ext.files import atomic_writer

STAGES = ("right", "fast", "real", "distributed")
UNFINISHED = 75  # exit code: the same command goes on
STARTS, HANGS = 300, 540  # seconds that a process may take to begin an item, and at least to do it
MARGIN = 120  # seconds after the deadline, which an item may end itself

# Workers.


def serve(requests: Connection, options: Options) -> None:
    """Do the items that arrive, until a CUDA error leaves the process unusable."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    result: Result = {}
    while not breaks_process(result):
        item = requests.recv()
        requests.send("begun")
        result = do(item, options)
        requests.send(result)


def breaks_process(result: Result) -> bool:
    """Return whether a CUDA error leaves the process of a result unusable."""
    return "CUDA error" in result.get("why", "")


def do(item: Item, options: Options) -> Result:
    begin = time.time()
    try:
        result: Result = {"status": "ok", **item.do(options, *item.arguments)}
        if options.device == "cuda":
            torch.cuda.synchronize()
    except Skipped as why:
        result = {"status": "skipped", "why": str(why)}
    except Unfinished as why:
        result = {"status": "unfinished", "why": str(why)}
    except Exception as failure:
        why = f"{type(failure).__name__}: {failure}"
        result = {"status": "failed", "why": why, "traceback": traceback.format_exc()}
    result["seconds"] = round(time.time() - begin, 2)
    return result


class Worker:
    """A process that does items one after the other, and is started anew where it ends."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.process: Any = None

    def __call__(self, item: Item) -> Result:
        if self.process is None or not self.process.is_alive():
            context = get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs, self.options))
            self.process.start()
            theirs.close()
        try:
            self.pipe.send(item)
            for seconds in (STARTS, max(HANGS, self.options.seconds_left() + MARGIN)):
                if not self.pipe.poll(seconds):
                    self.stop()
                    why = f"no answer in {seconds:.0f} s"
                    return {"status": "crashed", "why": why, "seconds": round(seconds)}
                result = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return {"status": "crashed", "why": f"exit code {self.process.exitcode}", "seconds": 0}
        if breaks_process(result):
            self.process.join()
        return result

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()


# Results.


class Record:
    """Results of a stage in OUT/STAGE.json, and a page made of them in OUT/STAGE.md."""

    def __init__(self, stage: str, out: Path) -> None:
        self.stage, self.out, self.lock = stage, out, Lock()
        self.path = out / f"{stage}.json"
        self.content: dict[str, Any] = {"facts": {}, "items": {}}
        if self.path.exists():
            self.content = json.loads(self.path.read_text("utf-8"))

    def is_done(self, item: Item) -> bool:
        return self.items.get(item.key, {}).get("status", "unfinished") != "unfinished"

    @property
    def items(self) -> dict[str, Result]:
        return self.content["items"]

    def add(self, item: Item, result: Result) -> None:
        with self.lock:
            self.items[item.key] = {"table": item.table, "name": item.name, **result}
            self.write()

    def write(self) -> None:
        with atomic_writer(self.path) as file:
            file.write(json.dumps(self.content, indent=1) + "\n")
        with atomic_writer(self.out / f"{self.stage}.md") as file:
            file.write(page(self.stage, self.content))

    def count(self, *statuses: str) -> int:
        return sum(result["status"] in statuses for result in self.items.values())


def page(stage: str, content: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    blocks = [f"# {stage}", "\n".join(f"- {key}: {x}" for key, x in content["facts"].items())]
    tables: dict[str, list[Result]] = {}
    for result in content["items"].values():
        tables.setdefault(result["table"], []).append(result)
    for name, results in tables.items():
        blocks += [f"## {name}", table(results)]
        blocks += [result["markdown"] for result in results if result.get("markdown")]
    return "\n\n".join(blocks) + "\n"


HIDDEN = ("table", "name", "traceback", "markdown", "data")


def table(results: Sequence[Result]) -> str:
    columns = list(dict.fromkeys(key for result in results for key in result if key not in HIDDEN))
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    for result in results:
        cells = [str(result.get(column, "")).replace("\n", " ")[:200] for column in columns]
        lines.append([result["name"], *(cell.replace("|", "\\|") for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Stage.


def run(stage: Any, record: Record, options: Options) -> None:
    """Do the items that are missing, side by side, until the time is up."""
    waiting: SimpleQueue[Item] = SimpleQueue()
    missing = [item for item in stage.plan(options) if not record.is_done(item)]
    for item in missing:
        waiting.put(item)
    progress = tqdm(total=len(missing), desc=record.stage, disable=None)

    def work() -> None:
        worker = Worker(options)
        try:
            while time.time() < options.deadline:
                item = waiting.get_nowait()
                result = worker(item)
                record.add(item, result)
                progress.update()
                if result["status"] != "ok":
                    print(f"{item.key}: {result['status']}, {result['why']}", flush=True)
        except Empty:
            pass
        finally:
            worker.stop()

    workers = 1 if options.dry else stage.WORKERS
    threads = [Thread(target=work) for _ in range(min(workers, len(missing)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.close()
    record.write()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--data", type=Path, required=True, help="binarised translation data")
    parser.add_argument("--text", type=Path, required=True, help="binarised running text")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin nothing new after them")
    parser.add_argument("--dry", action="store_true", help="small sizes, on a CPU")
    args = parser.parse_args()
    out = args.out.resolve()
    deadline = time.time() + 60 * args.minutes
    options = Options(out, args.data.resolve(), args.text.resolve(), args.dry, deadline)
    options.runs.mkdir(parents=True, exist_ok=True)
    record, stage = Record(args.stage, out), import_module(args.stage)
    device = argparse.Namespace(device=options.device, threads=1, clock="wall", rounds=0, seed=1)
    facts = measure.machine(device)
    record.content["facts"] = {key: facts[key] for key in facts if key not in ("clock", "rounds")}
    if hasattr(stage, "prepare"):
        stage.prepare(options)
    run(stage, record, options)
    planned = stage.plan(options)
    left = sum(not record.is_done(item) for item in planned)
    bad = record.count("failed", "crashed")
    print(f"{args.stage}: {record.count('ok')} right, {bad} wrong, {left} left of {len(planned)}")
    print(f"{args.stage}: results in {record.out / args.stage}.md")
    return UNFINISHED if left else int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
