"""Patches of what fairseq's commands write: a file gets its name when it is whole."""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.files import explain_disk_errors, remove
from fairseq_ext.wrapping import wrap

NEVER = logging.CRITICAL + 1
GENERATE = "fairseq_cli.generate"


def say_once_that_a_log_is_cut() -> None:
    """Say in one line that the file of a log cannot be written.

    Fault: On a full disk each line of preprocess.log, or of --log-file, leaves a traceback.
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

    wrap("logging:FileHandler", "handleError", handle)


def write_results_whole() -> None:
    """Give the file in --results-path its name when all of it is written.

    Fault: Translations are written under the final name of their file; whatever ends
        fairseq-generate leaves a part of them there.
    Since: fairseq 0.9.
    Until: fairseq-generate renames the file at its end.
    """

    def generate(original: Callable, cfg: Any) -> Any:
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        cfg = convert_namespace_to_omegaconf(cfg) if isinstance(cfg, Namespace) else cfg
        folder = cfg.common_eval.results_path
        if folder is None:
            return original(cfg)
        target = Path(folder) / f"generate-{cfg.dataset.gen_subset}.txt"
        work = target.with_name(f".{target.name}.part")
        cfg.common_eval.results_path = str(work)
        with explain_disk_errors(target):
            try:
                scorer = original(cfg)
                (work / target.name).replace(target)
                return scorer
            finally:
                remove(work)
                cfg.common_eval.results_path = folder

    wrap(GENERATE, "main", generate)
    started = getattr(sys.modules["__main__"], "__spec__", None)
    if started and started.name == GENERATE:
        wrap("__main__", "main", generate)
