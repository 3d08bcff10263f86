"""Checks of options whose text is a dict of settings, such as --model-overrides."""

import ast
import dataclasses
import json
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from typing import Any

from fairseq_ext.commands.ranges import check_number, find_range
from fairseq_ext.errors import UsageError
from fairseq_ext.suggestions import suggest

GROUP = frozenset(
    "lr initial_lr lr_scale betas beta1 eps weight_decay momentum dampening nesterov rho amsgrad "
    "maximize foreach capturable fused differentiable clip_threshold decay_rate scale_parameter "
    "relative_step warmup_init max_grad_norm bias_correction lr_decay lr_correct".split()
)
"""Settings of a group of parameters, in all optimizers."""


def check_overrides(given: str, text: Any) -> None:
    """Raise UsageError if the value of --model-overrides, or of its kin, changes no settings.

    Args:
        given: how the option was given, as in "--model-overrides".
        text: a dict, as Python writes it; nothing else is read.
    """
    settings = _read_dict(given, text, ast.literal_eval)
    known = GROUP if "optimizer" in given else list_settings() if settings else ()
    for name, value in settings.items():
        _check_known(given, name, known, "{'dropout': 0.1}")
        if name in list_sections() and not isinstance(value, Mapping | None):
            raise UsageError(
                f"{given} has {name!r}: {value!r}, for a section as a whole, which changes "
                "nothing; give settings, as in {'dropout': 0.1}"
            )
        if isinstance(value, Mapping):
            check_overrides(f"{given}: {name}", value)
        elif known is GROUP and isinstance(value, str):
            raise UsageError(f"{given}: {name} is {value!r}; give a number, or numbers")
        else:
            _check_value(f"{given}: {name}", name, value)


def _check_known(given: str, name: Any, known: Collection[str], example: str) -> None:
    if name not in known:
        advice = suggest(name, known, f"give names, as in {example}")
        raise UsageError(f"{given} has {name!r}, which is no setting; {advice}")


def check_arguments(
    given: str, text: Any, list_known: Callable[[], Collection[str]] | None = None
) -> None:
    """Raise UsageError if a text is no dict in JSON, or has unknown names or numbers out of range.

    Args:
        given: how the option was given.
        text: of the dict.
        list_known: returns the names that have a meaning; all names have one without it.
    """
    for name, value in _read_dict(given, text or "{}", json.loads).items():
        if list_known:
            _check_known(given, name, list_known(), '{"beam": 3}')
        check_number(f"{given}: {name}", value, name)


def _list_generation() -> list[str]:
    from fairseq.dataclass.configs import GenerationConfig

    return [field.name for field in dataclasses.fields(GenerationConfig)]


def _list_tokenizers() -> set[str]:
    from fairseq.registry import REGISTRIES

    kinds = REGISTRIES["tokenizer"]["dataclass_registry"].values()
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}


def check_steps(given: str, text: Any) -> None:
    """Raise UsageError if a text is no dict of learning rates, as for --update2lr."""
    for name, value in _read_dict(given, text, ast.literal_eval).items():
        check_number(f"{given}: {name}", value, "lr")


TEXTS: dict[str, Callable[[str, Any], None]] = {
    "model_overrides": check_overrides,
    "optimizer_overrides": check_overrides,
    "update2lr": check_steps,
    "epoch2lr": check_steps,
    "eval_args": check_arguments,
    "eval_bleu_args": partial(check_arguments, list_known=_list_generation),
    "eval_bleu_detok_args": partial(check_arguments, list_known=_list_tokenizers),
}
"""Option whose text is a dict -> its check."""


def _read_dict(given: str, text: Any, read: Callable[[str], Any]) -> Mapping[Any, Any]:
    """Return the dict that a text is, or a dict as it is."""
    try:
        settings = read(text) if isinstance(text, str) else text
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        settings = None
    if isinstance(settings, Mapping):
        return settings
    example = '{"beam": 3}' if read is json.loads else "{'dropout': 0.1}"
    raise UsageError(f"{given} is '{str(text)[:80]}'; give a dict of settings, as in {example}")


def _check_value(given: str, name: str, value: Any) -> None:
    """Raise UsageError for a value out of range, of another type, or none of the choices."""
    check_number(given, value, name)
    kinds = list_settings().get(name, set())
    accepted = find_range(name)
    if value is None or not kinds:
        return
    if kinds <= {int, float} and accepted and isinstance(value, str | bool):
        raise UsageError(f"{given} is {value!r}; give {accepted.describe(too_high=False)}")
    choices = [choice for kind in kinds if issubclass(kind, Enum) for choice in kind]
    if choices and all(issubclass(kind, Enum) for kind in kinds) and value not in choices:
        raise UsageError(f"{given} is {value!r}; choose from {', '.join(map(str, choices))}")


@cache
def list_settings() -> dict[str, set[type]]:
    """Return all settings that fairseq, we and the user's packages have -> their types."""
    settings: dict[str, set[type]] = {}
    for name, kind in (*_list_fields(), *_list_flags()):
        settings.setdefault(name, set()).add(kind)
    return settings


@cache
def list_sections() -> frozenset[str]:
    """Return the sections of a configuration that a name alone does not choose anew."""
    from fairseq.dataclass.configs import FairseqConfig

    chosen = {"bpe", "tokenizer", "scoring", "_name"}  # and that of an architecture
    return frozenset(field.name for field in dataclasses.fields(FairseqConfig)) - chosen


def _list_fields() -> Iterator[tuple[str, type]]:
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.dataclass.utils import interpret_dc_type
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    yield from ((name, object) for name in ("arch", *REGISTRIES))
    registries = [MODEL_DATACLASS_REGISTRY, TASK_DATACLASS_REGISTRY]
    registries += [registry["dataclass_registry"] for registry in REGISTRIES.values()]
    sections = [field.default for field in dataclasses.fields(FairseqConfig)]
    configs = [FairseqConfig, *sections, *(each for each in registries for each in each.values())]
    for config in filter(dataclasses.is_dataclass, configs):
        for field in dataclasses.fields(config):
            kind = interpret_dc_type(field.type)
            yield field.name, kind if isinstance(kind, type) else object


def _list_flags() -> Iterator[tuple[str, type]]:
    """Yield settings of models and tasks that have no dataclass."""
    from fairseq.models import MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    for cls in (*MODEL_REGISTRY.values(), *TASK_REGISTRY.values()):
        parser = ArgumentParser()
        cls.add_args(parser)
        for action in parser._actions:
            yield action.dest, action.type if isinstance(action.type, type) else object
