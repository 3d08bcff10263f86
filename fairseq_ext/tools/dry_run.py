"""Dry run of training variants: their models and criterions are built, and nothing is trained.

    python -m fairseq_ext.tools.dry_run DATA NAME='FLAGS'... -- FLAG...

Flags that fairseq-train would refuse end it with one sentence and exit code 1, so that a recipe
refuses them before its first training.
"""

import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from fairseq_ext.errors import UsageError, plain_errors
from fairseq_ext.tools.quiet import without_logging


@without_logging()
def check_variants(data: str, variants: Sequence[str], common: Sequence[str]) -> None:
    """Build what each variant would train, and check that its parts suit each other.

    Args:
        data: folder that all variants train on.
        variants: name, "=" and flags of fairseq-train in one string, as in una='--arch …'.
        common: flags of all variants, which stand before their own.

    Raises:
        UsageError: fairseq-train would refuse a variant.
    """
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import fairseq_ext.registry  # noqa: F401
    from fairseq_ext.training_checks import check_training

    for variant in variants:
        parser = options.get_training_parser()
        parser.error = _refuse
        flags = [data, *common, *shlex.split(variant.partition("=")[2])]
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, flags))
        task = tasks.setup_task(cfg.task)
        check_training(task.build_model(cfg.model), task.build_criterion(cfg.criterion), cfg)


def _refuse(message: str) -> NoReturn:
    """Raise UsageError with the reason that argparse gives, without its list of choices."""
    raise UsageError(f"fairseq-train cannot take these flags: {message.split(' (choose')[0]}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; see the module's docstring."""
    plain_errors()
    data, *words = sys.argv[1:] if arguments is None else arguments
    end = words.index("--")
    check_variants(data, words[:end], words[end + 1 :])


if __name__ == "__main__":
    main()
