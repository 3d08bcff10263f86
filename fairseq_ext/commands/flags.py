"""Patches of how flags and configurations are read: what means nothing is refused at start."""

import ast
import re
import sys
from argparse import SUPPRESS, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_ext.commands import attention_kernels
from fairseq_ext.commands.configurations import (
    check_configuration,
    check_flags,
    check_name,
    to_flag,
)
from fairseq_ext.commands.files_beside_text import check_alignment_files
from fairseq_ext.commands.generation import ask_for_alignment
from fairseq_ext.commands.raw_text import check_sides
from fairseq_ext.commands.unused_flags import check_unused
from fairseq_ext.errors import UsageError
from fairseq_ext.permissions import COMPILATION, PERMISSIONS, add_permissions
from fairseq_ext.places import hold_until_exit
from fairseq_ext.standard_output import guard_standard_output
from fairseq_ext.suggestions import refuse_unknown, suggest
from fairseq_ext.wrapping import find_owner, replace, wrap

REGISTERED = frozenset(
    "--arch --task --criterion --optimizer --lr-scheduler --scoring --bpe --tokenizer".split()
)
FOREIGN = "wav2vec2"  # fairseq-generate's default of --arch, which it does not use
MOST_NAMES = 40  # in a message
NO_CHOICE = re.compile(
    r"argument (?:-\w/)?(--[\w-]+)\S*: invalid choice: '(.*)' \(choose from (.*)\)$", re.S
)


def check_ranges() -> None:
    """Refuse numbers out of range, and unknown names, when a command starts.

    Standard output is guarded from then on: see `guard_standard_output`. fairseq-preprocess parses
    its flags itself. fairseq-hydra-train imports the plugin only in `main`, which then calls
    `add_defaults`.

    Fault: Numbers and names that mean nothing end in a traceback, or train, as does a closed
        standard output. --help ignores --arch. fairseq-generate prints a model wav2vec2, and takes
        its flags, whatever it loads.
    Asked: all users; partly silent; a refusal.
    Since: always.
    Until: fairseq checks them, and leaves --help to its second pass.
    """
    from fairseq import utils

    def add_arguments(original: Callable, parser: ArgumentParser) -> ArgumentParser:
        parser.parse_args = partial(_parse_and_hold, parser.parse_args)  # type: ignore[method-assign]
        parser.error = partial(_name_close, parser.error, parser)  # type: ignore[assignment, method-assign]
        return original(parser)

    def add_data_arguments(
        original: Callable, parser: ArgumentParser, *args: Any, **kw: Any
    ) -> Any:
        add_permissions(parser, PERMISSIONS | COMPILATION)
        attention_kernels.add_flag(parser)
        return original(parser, *args, **kw)

    def add_defaults(original: Callable, cfg: Any) -> None:
        guard_standard_output()
        original(cfg)
        utils.import_user_module(cfg.common)  # fairseq-hydra-train does it later
        attention_kernels.check_kernels()
        check_configuration(cfg)

    def parse(original: Callable, parser: ArgumentParser, given: Any = None, **kwargs: Any) -> Any:
        _answer_help_last(parser, sys.argv[1:] if given is None else given)
        for action in vars(parser).get("_actions", ()):
            if action.dest == "arch" and action.default == FOREIGN:
                action.default = SUPPRESS
        parser.error = partial(_name_close, parser.error, parser)  # type: ignore[assignment, method-assign]
        return _parse(original, parser, given, **kwargs)

    wrap("fairseq.options", "parse_args_and_arch", parse)
    wrap("fairseq.options", "add_preprocess_args", add_arguments)
    wrap("fairseq.options", "add_dataset_args", add_data_arguments)
    wrap("fairseq.dataclass.utils", "eval_str_list", _read_list)
    wrap("fairseq.dataclass.utils", "_override_attr", _read_literals)
    wrap("fairseq.dataclass.initialize", "add_defaults", add_defaults)
    loaded = [name for name in sys.modules if name.startswith("fairseq_cli.")]
    readers = [name for name in loaded if hasattr(sys.modules[name], "add_defaults")]
    replace(readers, "add_defaults", find_owner("fairseq.dataclass.initialize").add_defaults)


def _answer_help_last(parser: ArgumentParser, words: Sequence[str]) -> None:
    """Leave --help out of the next pass over the flags, after which others are added.

    Without --arch, or without --task, there are none to wait for.
    """
    asked = {"-h", "--help"}.intersection(words)

    def parse_without_help(*_: Any, **__: Any) -> tuple[Namespace, list[str]]:
        del parser.parse_known_args
        parsed = parser.parse_known_args([word for word in words if word not in asked])
        if None in (getattr(parsed[0], part, "") for part in ("arch", "task")):
            parser.parse_known_args(words)
        return parsed

    if asked:
        parser.parse_known_args = parse_without_help  # type: ignore[assignment, method-assign]


def _name_close(original: Callable, parser: ArgumentParser, message: str) -> None:
    """Raise UsageError with the nearest names for an unknown flag, --arch and other choices."""
    if found := NO_CHOICE.match(message):
        names = re.findall(r"[\w.-]+", found[3])
        if found[1] in REGISTERED:
            check_name(found[1], found[2], names)
        advice = suggest(found[2], names, f"choose from {', '.join(names[:MOST_NAMES])}")
        raise UsageError(f"{found[1]} is {found[2]!r}, which it does not take; {advice}")
    if message.startswith("unrecognized arguments: "):
        command = "this command, its --task, --arch …"
        refuse_unknown(parser, message.split(), command)
    original(message)


def _parse_and_hold(original: Callable, *args: Any, **kwargs: Any) -> Any:
    """Parse the command line of fairseq-preprocess, and keep others from writing to its folder."""
    parsed = _parse(original, *args, **kwargs)
    hold_until_exit(Path(parsed.destdir), "--destdir")
    return parsed


def _parse(original: Callable, *args: Any, **kwargs: Any) -> Any:
    """Parse a command line and check its numbers.

    Raises:
        UsageError: one is out of range, two parts have the same flag, or the task or architecture
            is unknown where fairseq's parser has no list of them.
    """
    guard_standard_output()
    try:
        parsed = original(*args, **kwargs)
    except KeyError as error:
        if error.args != (None,):
            raise
        raise UsageError(
            "there is no --task; give the one that the model was trained for, such as "
            "--task translation"
        ) from None
    except ArgumentError as error:
        raise UsageError(
            f"two of --task, --arch, --criterion and the other parts have the flag "
            f"{error.argument_name} each, so that they cannot be used together; give another task, "
            "or another architecture"
        ) from None
    except RuntimeError as error:
        if error.args:
            raise
        raise UsageError(
            "--arch is not given, or the name of no architecture; give one, such as transformer"
        ) from None
    from fairseq_ext.models.compilation import check_compilation  # registered by now

    check_compilation()
    attention_kernels.check_kernels()
    given: Namespace = parsed if isinstance(parsed, Namespace) else parsed[0]
    check_flags(given)
    check_unused(given)
    if "destdir" in given:
        check_alignment_files(given)
        check_sides(given)
    ask_for_alignment(given)
    return parsed


def _read_literals(original: Callable, node: str, config: type, args: Namespace) -> Any:
    """Make settings of a part of flags; texts are read as Python writes values.

    What an --lr-scheduler shares with other settings, such as --lr, is None where a command has no
    such flag; its default stays.
    """
    if node in ("lr_scheduler", "optimization"):
        fields = getattr(config, "__dataclass_fields__", {}).items()
        shared = {"lr", *(name for name, x in fields if str(x.default).startswith("${"))}
        given = {name: x for name, x in vars(args).items() if x is not None or name not in shared}
        args = Namespace(**given)
    try:
        return original(node, config, args)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        for name in getattr(config, "__dataclass_fields__", ()):
            value = getattr(args, name, None)
            if isinstance(value, str) and not _is_literal(value) and _is_read(config, name):
                raise UsageError(
                    f"{to_flag(name)} is '{value[:80]}', which cannot be read; give a value as "
                    "Python writes it, such as True, 3 or [1, 2]"
                ) from None
        raise


def _is_literal(text: str) -> bool:
    with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        ast.literal_eval(text)
        return True
    return False


def _is_read(config: type, name: str) -> bool:
    """Tell whether the text of a setting is not kept as it is, as fairseq decides it."""
    from fairseq.dataclass.utils import interpret_dc_type

    kind = interpret_dc_type(config.__dataclass_fields__[name].type)  # type: ignore[attr-defined]
    return kind is not str and not (isinstance(kind, type) and issubclass(kind, Enum))


def _read_list(original: Callable, text: Any, x_type: type = float) -> Any:
    """Read a list of numbers or words; argparse prints the sentence of its ArgumentTypeError."""
    try:
        return original(text, x_type)
    except (ArithmeticError, SyntaxError, ValueError, MemoryError, RecursionError):
        kind = {int: "whole numbers", float: "numbers"}.get(x_type, "words in quotes")
        raise ArgumentTypeError(
            f"{text[:80]!r} cannot be read; give {kind} with commas between them"
        ) from None
