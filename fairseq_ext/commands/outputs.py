"""Patches of what commands write: results are complete or not there; logs are cut in one line."""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_ext.errors import is_command
from fairseq_ext.files import explain_disk_errors, rename_when_complete
from fairseq_ext.places import hold, hold_until_exit, private_folder
from fairseq_ext.training.machine_checks import before_training
from fairseq_ext.wrapping import list_copies, replace, wrap

NEVER = logging.CRITICAL + 1
GENERATE = "fairseq_cli.generate"


def say_once_that_a_log_is_cut() -> None:
    """Say in one line that the file of a log cannot be written; write all of them in UTF-8.

    Fault: On a full disk, or without UTF-8, each line of a log leaves a traceback.
    Asked: whose disk is full; loud, a flood; a message.
    Since: always.
    Until: logging says so itself.
    """

    def handle(original: Callable, handler: logging.FileHandler, record: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            original(handler, record)
        elif handler.level < NEVER:
            handler.setLevel(NEVER)
            reason = error.strerror or error
            print(f"warning: {handler.baseFilename} is cut short ({reason})", file=sys.stderr)

    def open_in_utf8(original: Callable, handler: logging.FileHandler) -> Any:
        if handler.encoding in (None, "locale", "utf-8"):  # the last in UTF-8 mode
            handler.encoding, handler.errors = "utf-8", handler.errors or "backslashreplace"
        return original(handler)

    wrap("logging:FileHandler", "handleError", handle)
    wrap("logging:FileHandler", "_open", open_in_utf8)


rename_results: list[Callable[[str], str]] = []
"""Functions that give the file of --results-path another name."""


@contextmanager
def open_whole(path: str, mode: str, **settings: Any) -> Iterator[Any]:
    """Open a file to write, which gets its name when it is complete; keep other writers out."""
    for rename in rename_results:
        path = rename(path)
    held = hold(Path(path), "--results-path")
    with held, rename_when_complete(Path(path)) as part, part.open(mode, **settings) as file:
        yield file


def write_results_whole() -> None:
    """Give the file of --results-path its name when it is complete; let one process write it.

    Fault: What an interrupted fairseq-generate wrote has the final name. Two of them write into one
        file.
    Asked: who is interrupted; silent; none.
    Since: fairseq 0.9.
    Until: fairseq-generate writes to a temporary name.
    """
    importlib.import_module(GENERATE)  # it may be half imported: what is replaced is a builtin
    replace(list_copies(GENERATE), "open", open_whole)


def train_alone() -> None:
    """Let one training write to a --save-dir, by the process that saves.

    Fault: Two trainings write into one folder.
    Asked: who starts a training twice; silent, another model; a refusal.
    Since: always.
    Until: fairseq-train locks the folder.
    """
    before_training.append(hold_checkpoints)


def hold_checkpoints(cfg: Any) -> None:
    """Keep other commands out of the --save-dir of a training; raise UsageError if one is in it."""
    from fairseq.distributed.utils import is_master

    saves = is_master(cfg.distributed_training) and not cfg.checkpoint.no_save
    if saves and is_command():
        hold_until_exit(Path(cfg.checkpoint.save_dir), "--save-dir")


def write_data_whole() -> None:
    """Give files of fairseq-preprocess their names when they are complete, and dictionaries last.

    Fault: What an interrupted fairseq-preprocess leaves has final names, and its dictionary
        prevents another run.
    Asked: who is interrupted; silent; none.
    Since: always.
    Until: it writes to temporary names.
    """

    def binarise(
        original: Callable, file: str, impl: str, binarizer: Any, prefix: str, *args: Any, **kw: Any
    ) -> Any:
        target = Path(prefix)
        with (
            explain_disk_errors(Path(f"{target}.bin")),
            private_folder(target.parent) as hidden,
        ):
            summary = original(file, impl, binarizer, str(hidden / "new"), *args, **kw)
            for kind in ("bin", "idx"):  # without the latter, the former is not read
                (hidden / f"new.{kind}").replace(f"{target}.{kind}")
        return summary

    queue: list[Callable[[], None]] | None = None

    def main(original: Callable, args: Any) -> None:
        nonlocal queue
        dictionaries: list[Callable[[], None]] = []
        queue = dictionaries
        try:
            original(args)
        finally:
            queue = None
        for write in dictionaries:
            write()

    def save(original: Callable, dictionary: Any, file: Any) -> None:
        if queue is not None:  # by fairseq-preprocess, which reads none of them again
            queue.append(partial(save, original, dictionary, file))
            return
        if not isinstance(file, str | Path):
            original(dictionary, file)
            return
        with rename_when_complete(Path(file)) as part:
            original(dictionary, str(part))

    wrap("fairseq.binarizer:FileBinarizer", "multiprocess_dataset", binarise)
    wrap("fairseq.data:Dictionary", "save", save)
    for module in list_copies("fairseq_cli.preprocess"):
        wrap(module, "main", main)
