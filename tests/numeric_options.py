"""All options of fairseq's commands that are numbers, and their defaults, from the parsers."""

import argparse
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from fairseq import options
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.optim.bmuf import FairseqBMUF
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq_cli import score

OTHERS = re.compile(
    "model (?!(transformer|transformer_lm|transformer_align|roberta)$)|(criterion|task) .*"
    "(audio|ctc|dlm|dummy|hubert|latency|lev|model|nat|nlu|online|simul|spect|speech|tacotron|unit|wav2vec)"
)
"""Parts of fairseq that none of our models is used with."""

COMMANDS = "preprocessing training generation interactive_generation eval_lm validation".split()


def list_parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield where options come from, and a parser that has them."""
    for command in COMMANDS:
        yield command, getattr(options, f"get_{command}_parser")()
    yield "score", score.get_parser()
    parts = {"model": MODEL_REGISTRY, "task": TASK_REGISTRY, "bmuf": {"": FairseqBMUF}}
    for kind, registry in (parts | {k: v["registry"] for k, v in REGISTRIES.items()}).items():
        for name, cls in registry.items():
            parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
            if hasattr(cls, "add_args"):
                cls.add_args(parser)
            elif hasattr(cls, "__dataclass"):
                gen_parser_from_dataclass(parser, getattr(cls, "__dataclass")())
            yield f"{kind} {name}", parser


def list_fields() -> Iterator[tuple[str, str, dataclasses.Field]]:
    """Yield where options of dataclasses come from, their flat names, and their fields."""
    yield from _list_fields("fairseq", FairseqConfig)
    parts = {"model": MODEL_DATACLASS_REGISTRY, "task": TASK_DATACLASS_REGISTRY}
    registries = {name: registry["dataclass_registry"] for name, registry in REGISTRIES.items()}
    for kind, registry in (parts | registries).items():
        for name, config in registry.items():
            yield from _list_fields(f"{kind} {name}", config)


def _list_fields(where: str, config: type, prefix: str = "") -> Iterator:
    for field in dataclasses.fields(config):
        part = field.default if isinstance(field.default, type) else type(field.default)
        if issubclass(part, FairseqDataclass):
            yield from _list_fields(where, part, "" if where == "fairseq" else f"{field.name}_")
        else:
            yield where, prefix + field.name, field


def list_options() -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield where an option comes from, its names, flat and plain, and whether it has numbers."""
    for where, parser in list_parsers():
        yield from ((where, (each.dest,), each.type in (int, float)) for each in parser._actions)
    for where, name, field in list_fields():
        yield where, (name, field.name), any(kind in str(field.type) for kind in ("int", "float"))


def list_numbers() -> set[tuple[str, ...]]:
    """Return the names, flat and plain, of options with numbers that go with models of ours."""
    parts = list_own_parts()
    used = ((where, names) for where, names, number in list_options() if number)
    return {names for where, names in used if where in parts or not OTHERS.match(where)}


def list_own_parts() -> set[str]:
    """Return where our options come from; parts of patches are fairseq's."""
    registries = {"model": MODEL_REGISTRY, "task": TASK_REGISTRY}
    registries |= {name: registry["registry"] for name, registry in REGISTRIES.items()}
    return {
        f"{kind} {name}"
        for kind, registry in registries.items()
        for name, part in registry.items()
        if re.match(r"fairseq_ext\.(?!patches\.)", part.__module__)
    }


def list_defaults() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield where a default comes from, its value, and names of its option."""
    for where, parser in list_parsers():
        numbers = (action for action in parser._actions if action.default != argparse.SUPPRESS)
        yield from ((where, action.default, (action.dest,)) for action in numbers)
    for where, name, field in list_fields():
        given = field.default_factory is dataclasses.MISSING
        yield where, field.default if given else field.default_factory(), (name, field.name)
    for name, set_defaults in ARCH_CONFIG_REGISTRY.items():
        args = argparse.Namespace(attention_dropout=0.1)  # lightconv_lm reads it
        set_defaults(args)
        yield from ((f"arch {name}", value, (option,)) for option, value in vars(args).items())
