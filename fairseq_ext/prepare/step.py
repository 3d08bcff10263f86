"""Parts that steps of data recipes share, and the command that runs a step with an exit code.

`python -m fairseq_ext.prepare.step MODULE ARGUMENT...` runs the step MODULE. Exit code 65 says that
the step refuses the text, so that the recipe discards its work. Whatever else ends the step (a full
disk, a signal, an error of ours) has another code, and the recipe keeps its work.
"""

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from tqdm import tqdm

from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import read_lines, write_lines

logger = logging.getLogger("fairseq_ext.prepare")

REFUSED = 65  # EX_DATAERR of sysexits.h
INPUTS = "inputs"  # name of the file that lists what a recipe has read, for the manifest


def step_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for the step `fairseq_ext.prepare.NAME`, with its docstring as its help."""
    return argparse.ArgumentParser(
        prog=f"python -m fairseq_ext.prepare.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def read_with_progress(verb: str, *paths: Path) -> Iterator[str]:
    """Yield the lines of text files one after the other, each with a progress bar "VERB FILE"."""
    for path in paths:
        yield from tqdm(read_lines(path), f"{verb} {path.name}", unit=" lines")


def record_inputs(folder: Path, paths: Iterable[Path]) -> None:
    """List the files that a recipe has read, in the file `inputs` beside a folder of its work."""
    write_lines(folder.with_name(INPUTS), map(str, dict.fromkeys(paths)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a step; exit with code 65 if it raises UsageError, unless that is Unfinished."""
    module, *rest = sys.argv[1:] if arguments is None else arguments
    try:
        import_module(module).main(rest)
    except Unfinished:
        raise
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
