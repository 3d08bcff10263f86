"""Patches of what fairseq's commands write: a file gets its name when it is whole."""

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.files import explain_disk_errors, remove
from fairseq_ext.wrapping import wrap

GENERATE = "fairseq_cli.generate"


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

    started = getattr(sys.modules["__main__"], "__spec__", None)
    names = [GENERATE] if GENERATE in sys.modules else []
    names += ["__main__"] if started and started.name == GENERATE else []
    for name in names:
        wrap(name, "main", generate)
