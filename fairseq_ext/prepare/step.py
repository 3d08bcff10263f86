"""Parts that steps of data recipes share, and the command that runs a step with an exit code.

`map_files` and `map_lines` apply a function to lines on all cores, as a stream: memory does not
grow with the text.

`python -m fairseq_ext.prepare.step MODULE ARGUMENT...` runs the step MODULE. Exit code 65 says that
the step refuses the text, so that the recipe discards its work. Whatever else ends the step (a full
disk, a signal, an error of ours) has another code, and the recipe keeps its work.
"""

import argparse
import logging
import os
import re
import sys
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_ext.errors import OPEN_FILES, Unfinished, UsageError, plain_errors
from fairseq_ext.files import (
    batched,
    list_files,
    read_lines,
    write_lines,
)
from fairseq_ext.pools import begin_pool
from fairseq_ext.standard_output import guard_standard_output

logger = logging.getLogger("fairseq_ext.prepare")

REFUSED = 65  # EX_DATAERR of sysexits.h
INPUTS = "inputs"  # name of the file that lists what a recipe has read, for the manifest
BATCH = 2000  # lines that a process gets at once
MOST = 10**15  # that an argument counts
AHEAD = 3  # batches for each process that are read before they are needed

# Python does not count a byte order mark as white space.
BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ufeff]+")

BatchFunction = Callable[[list[str]], list[str]]


def clean(text: str) -> str:
    """Return text in Unicode's composed form, control characters and white space as one space."""
    return BLANKS.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")


def step_parser(
    name: str, description: str | None, package: str = "fairseq_ext.prepare"
) -> argparse.ArgumentParser:
    """Return a parser for the step NAME of a package, with its docstring as its help.

    From then on, standard output that cannot be written ends the step.
    """
    guard_standard_output()
    prog, raw = f"python -m {package}.{name}", argparse.RawDescriptionHelpFormatter
    return StepParser(prog, description=description, formatter_class=raw)


class StepParser(argparse.ArgumentParser):
    """Parser of a step; it refuses an empty path, which would be the folder one is in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", Path, read_path)


def read_path(text: str) -> Path:
    """Return a path; raise ArgumentTypeError if it is empty."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no path; give one, or . for this folder")
    return Path(text)


def number_from(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return the type of an argument that counts something, from the least to the most."""

    def number(text: str) -> int:
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least} to {most}")
        return int(text)

    return number


def read_with_progress(verb: str, *paths: Path) -> Iterator[str]:
    """Yield the lines of text files one after the other, each with a progress bar "VERB FILE"."""
    for path in paths:
        yield from tqdm(read_lines(path), f"{verb} {path.name}", unit=" lines")


def record_inputs(folder: Path, paths: Iterable[Path]) -> None:
    """List the files that a recipe has read, in the file `inputs` beside a folder of its work."""
    names = (str(path.absolute()) for path in paths)
    write_lines(folder.absolute().with_name(INPUTS), dict.fromkeys(names))


def sources_of(path: Path) -> Path:
    """Return the list of the files that a file of a recipe's work was copied from."""
    return path.with_name(f".{path.name}.sources")


def name_place(path: Path, number: int) -> str:
    """Return "FILE, line N" of the user's file from which a line of a recipe's file was copied."""
    sources = sources_of(path)
    for text in read_lines(sources) if sources.is_file() else ():
        count, _, source = text.partition("\t")
        if number <= max(int(count), 1):
            return f"{source}, line {number}"
        number -= int(count)
    return f"{path}, line {number}"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def map_files(folder: Path, out: Path, verb: str, choose: Callable[[str], BatchFunction]) -> None:
    """Apply a function to the lines of each file in a folder, and keep results that exist.

    Args:
        folder: with files NAME.LANGUAGE.
        out: folder for files of the same names.
        verb: the work, for the progress bar.
        choose: returns the function for a language.
    """
    for path in list_files(folder):
        if not (out / path.name).exists():
            function, lines = choose(path.suffix[1:]), read_with_progress(verb, path)
            try:
                write_lines(out / path.name, map_lines(function, lines))
            except Unfinished:
                raise
            except UsageError:
                _name_refused(function, path)
                raise


def _name_refused(function: BatchFunction, path: Path) -> None:
    """Raise UsageError with the place of the first line that a function refuses."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            function([line])
        except UsageError as error:
            raise UsageError(f"{name_place(path, number)}: {error}") from None


def map_lines(function: BatchFunction, lines: Iterable[str], processes: int = 0) -> Iterator[str]:
    """Yield the results of a function for batches of lines, in the order of the lines.

    Args:
        function: can be pickled; returns a line for each line of its list.
        lines: read as they are needed.
        processes: 0 is the number of cores.

    Raises:
        Unfinished: a process was killed.
    """
    processes = processes or cores()
    batches = batched(lines, BATCH)
    if processes == 1:
        for batch in batches:
            yield from function(batch)
        return
    pool = begin_pool(processes)
    waiting: deque[Future[list[str]]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(function, batch))
            if len(waiting) > processes * AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise Unfinished(
            "a process that worked on the text was killed, perhaps for want of memory; give the "
            "machine less to do and run the same command again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a step; exit with code 65 if it raises UsageError, unless that is Unfinished."""
    plain_errors()
    guard_standard_output()
    module, *rest = sys.argv[1:] if arguments is None else arguments
    try:
        import_module(module).main(rest)
    except Unfinished:
        raise
    except UsageError as error:
        if OPEN_FILES.search(str(error)):  # which says nothing of the text
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
