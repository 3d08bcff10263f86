"""Flags of fairseq-generate that follow from those of a training, and a dry run of them.

A package of a user's own is imported in a process apart, so that variants may have several.
"""

import argparse
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fairseq_ext.errors import UsageError, to_line
from fairseq_ext.pools import begin_pool
from fairseq_ext.tools.command_lines import PLUGIN, parse_flags

TASK = "--task"
OF_READING = frozenset(("--cpu", "--dataset-impl", TASK))
"""Flags that hold for generation too, beside those that a task takes."""

OF_TRAINING = ("--eval-", "--load-alignments")
"""Beginnings of the flags of a task that generation does without."""


def take_over(train: Sequence[str], generate: Sequence[str], user_dir: str) -> list[str]:
    """Return the flags of a training that its generation needs and does not have.

    They are --task and what the task takes, such as languages.

    Args:
        train: the data and the flags of fairseq-train.
        generate: the flags of fairseq-generate.
        user_dir: the folder of a package, which may have the task.

    Raises:
        UsageError: there is no such task.
    """
    given = parse_flags(generate)
    options = {TASK: "translation"} | parse_flags(train) | given
    accepted = OF_READING | _run_apart(_list_task_flags, options[TASK], user_dir)
    return [
        word
        for name, *words in _group_flags(train[1:])
        if (flag := name.partition("=")[0]) in accepted and flag not in [*given, *generate]
        for word in (name, *words)
    ]


def check_generation(flags: Sequence[str]) -> None:
    """Raise UsageError unless fairseq-generate takes these flags and can read what they name."""
    _run_apart(_open_subset, list(flags), parse_flags(flags)["--user-dir"])


def _run_apart(function: Callable, argument: Any, user_dir: str) -> Any:
    """Return what a function returns in a process of its own, which imports a user's package."""
    import fairseq_ext.registry  # noqa: F401, slow: loaded once, before the process begins

    with begin_pool(1, "fork") as pool:
        return pool.submit(_import_and_call, function, argument, user_dir).result()


def _import_and_call(function: Callable, argument: Any, user_dir: str) -> Any:
    from fairseq.utils import import_user_module

    logging.disable()
    if user_dir not in ("$PLUGIN", str(PLUGIN)):
        import_user_module(argparse.Namespace(user_dir=user_dir))
    return function(argument)


def _list_task_flags(name: str) -> frozenset[str]:
    from fairseq.tasks import TASK_REGISTRY

    from fairseq_ext.commands.configurations import check_name

    check_name(TASK, name, TASK_REGISTRY)
    parser = argparse.ArgumentParser(add_help=False)
    TASK_REGISTRY[name].add_args(parser)
    flags = parser._option_string_actions
    return frozenset(flag for flag in flags if not flag.startswith(OF_TRAINING))


def _group_flags(words: Sequence[str]) -> list[list[str]]:
    """Return each flag with its values."""
    groups: list[list[str]] = []
    for word in words:
        if not groups or re.match("--?[a-zA-Z]", word):
            groups.append([])
        groups[-1].append(word)
    return groups


def _open_subset(flags: Sequence[str]) -> None:
    from fairseq import options, scoring, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    parser = options.get_generation_parser()
    parser.error = _refuse
    try:
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(flags)))
        task = tasks.setup_task(cfg.task)
        task.load_dataset(cfg.dataset.gen_subset, task_cfg=cfg.task)
        task.build_tokenizer(cfg.tokenizer)
        task.build_bpe(cfg.bpe)
        scoring.build_scorer(cfg.scoring, task.target_dictionary)
    except UsageError:
        raise
    except Exception as error:  # of fairseq, or of a user's package
        raise UsageError(
            f"{type(error).__name__}: {to_line(error)}; correct --generate, or the flags of the "
            "training"
        ) from None


def _refuse(message: str) -> NoReturn:
    raise UsageError(message.split(" (choose")[0])
