"""Options of every command, from its parser, and values for them: good, bad and odd ones."""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from conftest import ROOT

from .commands import Command

WORKS, REFUSED, EITHER = "works", "refused", "either"

MARKS = "\u00fc\u2013\u6f22\u5b57\U0001f642\u202e"
LONG = "x" * 100_000
NUMBERS = {
    int: ["x", "", "1.5", "1e3", "nan", "0x1", "1,000", "1 2", MARKS],
    float: ["x", "", "1,5", "0x1", "1 2", "--", MARKS],
}
"""Texts that are no number of a type."""
HUGE = {
    int: ["0", "-1", "-2", "9" * 30, "-" + "9" * 30, str(2**31), str(2**63), "\u0663"],
    float: ["0", "-1", "2", "nan", "inf", "-inf", "1e400", "1e-400", "-0.0"],
}
TEXTS = ["", MARKS, LONG, "x", "../x", "a\nb", "{bad", "[1]", "(2,2)", "1+1", "-x", "\udcff"]
TEXTS += ["nowhere/x", "/proc/self/task", ".", "/dev/full", "%s", "$HOME", "{}", "None", " "]


class Option(NamedTuple):
    """An option.

    Attributes:
        flag: how it is written; "" for a word without one.
        kind: int, float, bool (it takes no value) or str.
        choices: the values that there are, if they are few.
        word: of the command, which it stands for if it has no flag.
        several: whether it takes several values.
        joined: whether flag=value is one word.
        name: in the table of ranges; empty if that is not its.
    """

    flag: str
    kind: type = str
    choices: tuple[str, ...] = ()
    word: str = ""
    several: bool = False
    joined: bool = False
    name: str = ""

    def write(self, value: str | None) -> list[str]:
        if value is None:
            return [self.flag]
        return [f"{self.flag}={value}"] if self.joined else [self.flag, value]


class Change(NamedTuple):
    """A change of a command line, and what is to become of it."""

    option: str
    add: tuple[str, ...]
    expected: str = EITHER
    replace: str = ""  # this word, by what is added


def list_options(command: Command) -> list[Option]:
    """Return all options of a command."""
    if command.program.endswith(".sh"):
        return list(_of_script(Path(command.program)))
    if command.program == "fairseq-hydra-train":
        return list(_of_settings())
    found = list(_of_parser(find_parser(command), command.words()))
    if command.program in FAIRSEQ:
        found = [option._replace(name=option.flag[2:].replace("-", "_")) for option in found]
    return found


def find_parser(command: Command) -> argparse.ArgumentParser:
    """Return the parser of a command, with what its base case adds to it."""
    from fairseq import options

    words, program = command.words(), command.program
    if program == "fairseq-ext":
        from fairseq_ext.cli import build_parser

        return _subparser(build_parser(words[:1]), words[0])
    if program in FAIRSEQ:
        parser = getattr(options, f"get_{FAIRSEQ[program]}_parser")()
        if program != "fairseq-preprocess":
            options.parse_args_and_arch(parser, words)
        return parser
    return _catch(import_module(program).main, words)


FAIRSEQ = {
    "fairseq-train": "training",
    "fairseq-generate": "generation",
    "fairseq-interactive": "interactive_generation",
    "fairseq-validate": "validation",
    "fairseq-eval-lm": "eval_lm",
    "fairseq-preprocess": "preprocessing",
}


class _Caught(Exception):
    pass


def _catch(main: Callable, words: list[str]) -> argparse.ArgumentParser:
    """Return the parser that a function makes, or that of its subcommand."""
    original = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *_: object) -> None:
        raise _Caught(self)

    argparse.ArgumentParser.parse_args = parse_args
    try:
        main(words)
    except _Caught as caught:
        return _subparser(caught.args[0], words[0] if words else "")
    finally:
        argparse.ArgumentParser.parse_args = original
    raise AssertionError(f"{main} parses no arguments")


def _subparser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices[name]
    return parser


def _of_parser(parser: argparse.ArgumentParser, words: list[str]) -> Iterator[Option]:
    given = {}
    with suppress(SystemExit), redirect_stderr(StringIO()):
        given = vars(parser.parse_known_args(words)[0])
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            continue
        choices = tuple(map(str, action.choices or ()))
        several = action.nargs in ("+", "*", argparse.REMAINDER) or isinstance(action.nargs, int)
        flag = max(action.option_strings, key=len, default="")
        kind = bool if action.nargs == 0 else _kind(action)
        if flag:
            yield Option(flag, kind, choices, several=several)
        else:
            value = given.get(action.dest)
            value = value[0] if isinstance(value, list) and value else value
            if str(value) in words:
                yield Option(f"<{action.dest}>", kind, choices, str(value), several)


def _kind(action: argparse.Action) -> type:
    for kind in (int, float):
        if action.type is kind:
            return kind
    name = getattr(action.type, "__name__", "")
    return int if name == "number" else str


def _of_script(path: Path) -> Iterator[Option]:
    """Yield the options in the calls of `read_options` and in the help of a script."""
    text, libraries = path.read_text("utf-8"), ROOT / "scripts" / "lib"
    text += (libraries / "study.sh").read_text("utf-8") if "read_study_options" in text else ""
    if "\ncorpus_recipe" in text:
        text += (libraries / "data.sh").read_text("utf-8")
    calls = re.findall(
        r"^(?: *read_(?:study_)?options |.*\b(?:SHARED|EXTRA|accepted)\+?=').*", text, re.M
    )
    found = {name for call in calls for name in re.findall(r"[\s\"'](--[a-z-]+=?)", call)}
    for name in sorted(found):
        flag, equals, _ = name.partition("=")
        kind = str if equals else bool
        yield Option(flag, int if flag in COUNTS else kind)
    yield Option("--no-such-option", bool)


COUNTS = ["--updates", "--seeds", "--jobs", "--merges", "--every", "--longest", "--epochs"]
COUNTS += ["--folds", "--test-last", "--vocab-size"]


def _of_settings() -> Iterator[Option]:
    """Yield the settings of fairseq-hydra-train, and of its model, task and so on."""
    from dataclasses import fields, is_dataclass

    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    model = MODEL_DATACLASS_REGISTRY["transformer_una_tiny"]
    groups = {field.name: field.default for field in fields(FairseqConfig)}
    groups |= {"model": model()}
    for group, settings in groups.items():
        if is_dataclass(settings):
            for field in fields(settings):
                kind = {int: int, float: float}.get(field.type, str)
                name = f"{group}.{field.name}"
                yield Option(
                    name if group != "model" else f"++{name}", kind, joined=True, name=field.name
                )


def list_changes(option: Option) -> list[Change]:
    """Return changes of a command line by one option."""
    flag = option.flag

    def change(value: str | None, expected: str) -> Change:
        if option.word:
            return Change(flag, (value or "",), expected, option.word)
        return Change(flag, tuple(option.write(value)), expected)

    if option.kind is bool:
        return [change(None, EITHER), Change(flag, (f"{flag}=x",), REFUSED)]
    changes = [] if option.word else [Change(flag, (flag,), EITHER)]  # without its value
    if option.choices:
        bad = [text for text in ("x", "", MARKS, LONG) if text not in option.choices]
        changes += [change(text, REFUSED) for text in bad]
        return changes + [change(text, EITHER) for text in option.choices]
    if option.kind is not str:
        changes += [change(text, REFUSED) for text in NUMBERS[option.kind]]
        return changes + [change(text, EITHER) for text in HUGE[option.kind]]
    return changes + [change(text, EITHER) for text in TEXTS]
