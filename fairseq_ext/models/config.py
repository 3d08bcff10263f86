"""Flat fairseq configurations, generated from fairseq's own `TransformerConfig`."""

from argparse import Namespace, _StoreFalseAction
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, make_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, NamedTuple, Optional, TypeVar, get_args, get_origin

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import II, DictConfig, OmegaConf

from fairseq_ext.attention.options import (
    Facts,
    Rule,
    flag,
    get_facts,
    option,
    read_help,
    read_options,
    record_ranges,
)
from fairseq_ext.attention.options import Option as PartOption
from fairseq_ext.errors import UsageError
from fairseq_ext.old_settings import upgrade_settings

T = TypeVar("T")

Option = tuple[str, Any, Field]
"""Name, type and dataclass field, as `make_dataclass` takes them."""


Options = Mapping[str, Any]
"""Names and values."""


def list_options(config: Any) -> list[Option]:
    """Return the options of a dataclass of fairseq's."""
    return [(each.name, to_enumeration(each.type), each) for each in fields(config)]  # type: ignore[arg-type]


def list_own_options(config: type) -> list[Option]:
    """Return the options of a dataclass that knows nothing of fairseq."""
    return [to_field(name, each) for name, each in read_options(config).items()]


def to_field(name: str, option: PartOption, **metadata: Any) -> Option:
    """Return an option as a field of a configuration of fairseq's."""
    metadata |= {"help": option.help, "facts": option.facts}
    kind = to_enumeration(option.type)
    return name, kind, field(default=option.default, metadata=metadata)


def as_mapping(options: Any) -> Mapping[str, Any]:
    """Return options of a configuration or a namespace as they are: nothing is resolved yet."""
    return options if isinstance(options, Mapping) else vars(options)


def to_dict(options: Any) -> dict[str, Any]:
    """Return options of a DictConfig (interpolations resolved), a mapping or a namespace.

    Those of an early version are upgraded. Members of enumerations become their values, as
    checkpoints hold them.
    """
    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options, resolve=True)
    values = as_mapping(options).items()
    plain = {name: v.value if isinstance(v, Enum) else v for name, v in values}
    return upgrade_settings(plain)


@cache
def to_enumeration(kind: Any) -> Any:
    """Return an enumeration of fairseq's for a type `Literal[…]`, and any other type as it is."""
    return ChoiceEnum(list(get_args(kind))) if get_origin(kind) is Literal else kind


class TaskFacts(NamedTuple):
    """Attributes of a task that models read; a task of fairseq's own has none of them.

    Attributes:
        pretrained: path of the checkpoint that is fine-tuned, if any.
        segments: how many segments (BERT's token types) its batches have.
        annotated: its batches have parses, which some roles need.
    """

    pretrained: str | None = None
    segments: int = 0
    annotated: bool = False

    @classmethod
    def read(cls, task: Any) -> "TaskFacts":
        """Return the attributes of a task, and the defaults where it has none."""
        return cls(**{name: getattr(task, name) for name in cls._fields if hasattr(task, name)})


Requirements = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""Option -> (options that it needs, values of one of them with which it has an effect).

Without values, it has an effect with every value but the one that switches the other option off."""


def read_facts(config: type) -> dict[str, Facts]:
    """Return option -> facts of a dataclass."""
    return {field.name: get_facts(field) for field in fields(config)}


def list_requirements(facts: Mapping[str, Facts]) -> dict[str, tuple[list[str], list[str]]]:
    """Return what options with these facts need."""
    return {name: ([*each.needs], [*each.values]) for name, each in facts.items() if each.needs}


def check_requirements(
    options: Options, preset: Options, off: Options, requirements: Requirements
) -> None:
    """Raise UsageError for an option that was changed and has no effect.

    Args:
        preset: the values of options that nobody changed.
        off: the values that switch needed options off.
    """
    for name, (needed, accepted) in requirements.items():
        if name not in options or str(options[name]) == str(preset[name]):
            continue
        values = {other: str(options[other]) for other in needed if other in options}
        if not any(v in accepted if accepted else v != str(off[o]) for o, v in values.items()):
            present = " and ".join(flag(other, value) for other, value in values.items())
            raise UsageError(
                f"{flag(name, options[name])} has no effect with {present}; leave it out, or "
                f"{_advise(values, accepted)}"
            )


def contradict(preset: str, accepted: Mapping[str, Sequence[Any]]) -> Rule:
    """Return the rule that an option, if given, has a value that a preset accepts.

    Args:
        preset: the option that names a preset.
        accepted: name of a preset -> the values that it accepts.
    """

    def contradicts(value: Any, name: Any) -> bool:
        values = accepted.get(str(name))
        return not (value is None or values is None or str(value) in map(str, values))

    return Rule(preset, "{one} contradicts {other}; leave out one of them", contradicts)


def _advise(needed: Iterable[str], accepted: Sequence[Any]) -> str:
    if accepted == ["False"]:
        return f"leave out {flag(*needed)}"
    return "give " + " or ".join(flag(n, value) for n in needed for value in accepted or [True])


def default_options(config: type) -> dict[str, Any]:
    """Return option -> default of a dataclass."""
    return {field.name: field.default for field in fields(config)}


def help_from_docstring(config: type[T]) -> type[T]:
    """Decorate a class, below `dataclass`, whose docstring has the help of each of its options.

    An entry of its list of attributes is such a help; lines that go on are indented further.
    """
    for name, text in read_help(config).items():
        value = vars(config)[name]
        made = value if isinstance(value, Field) else option(value)
        metadata = {**made.metadata, "help": text}
        setattr(config, name, field(default=made.default, metadata=metadata))
    record_ranges(vars(config))
    return config


def stock_options(config: type = TransformerConfig, prefix: str = "") -> Iterator[Option]:
    """Yield fairseq's transformer options, flat: `encoder.embed_dim` is `encoder_embed_dim`."""
    for stock in fields(config):
        name = prefix + stock.name
        if isinstance(stock.default, type) and issubclass(stock.default, FairseqDataclass):
            yield from stock_options(stock.default, name + "_")
        elif stock.name.endswith("layers_to_keep"):
            # declared as a list, but read as "0,2,4" wherever fairseq uses it
            yield name, Optional[str], option(None, help=stock.metadata["help"])
        elif stock.name != "_name":
            default = stock.default
            if isinstance(default, str) and default == II("model.decoder.embed_dim"):
                default = II(".decoder_embed_dim")
            yield name, stock.type, field(default=default, metadata=dict(stock.metadata))


class FlatConfig(FairseqDataclass):
    """Base of the configurations that are made here by the hundred.

    It has the one `__init__` of all, since to write and compile one for each takes longer than
    everything else in the registration of a model.
    """

    def __init__(self, **values: Any) -> None:
        for each in fields(self):
            default = each.default
            if default is MISSING and each.default_factory is not MISSING:
                default = each.default_factory()
            setattr(self, each.name, values.get(each.name, default))


def flat_config(name: str, options: Iterable[Option]) -> type:
    """Make a dataclass of these options."""
    return _make(name, FlatConfig, options)


def preset_config(name: str, base: type, defaults: Mapping[str, Any]) -> type:
    """Make a dataclass with the options of another one and some defaults of its own."""
    table = {option.name: option for option in fields(base)}
    changed = []
    for key, value in defaults.items():
        kind = table[key].type if value is not None else Optional[table[key].type]
        changed.append((key, kind, field(default=value, metadata=dict(table[key].metadata))))
    return _make(name, base, changed)


def joined_config(name: str, configs: Sequence[type]) -> type:
    """Make a dataclass of the options of several ones; the last one's stand first."""
    plain: Any = {"init": False, "repr": False, "eq": False}
    own = {"__init__": FlatConfig.__init__}
    return make_dataclass(name, [], bases=tuple(configs), namespace=own, **plain)


def _make(name: str, base: type, options: Iterable[Option]) -> type:
    return make_dataclass(name, list(options), bases=(base,), init=False, repr=False, eq=False)


def keep_true_flags(actions: Iterable[Any], config: type) -> None:
    """Let a flag that is on by default stay on when it is given; fairseq would turn it off."""
    on = {field.name for field in fields(config) if field.default is True}
    for action in actions:
        if isinstance(action, _StoreFalseAction) and action.dest in on:
            action.const = True


def preset(
    architecture: Callable[[Namespace], None], options: Iterable[Option] | None = None
) -> dict[str, Any]:
    """Return defaults of these options (fairseq's own), as a stock architecture function sets them.

    A size of the decoder that follows the encoder's is an interpolation. A probe finds these sizes:
    the function is called with impossible sizes of the encoder, and where the decoder has the same.
    """
    sizes = {"encoder_embed_dim": -1, "encoder_ffn_embed_dim": -2}
    interpolations = {value: II("." + name) for name, value in sizes.items()}
    args, probe = Namespace(), Namespace(**sizes)
    architecture(args)
    architecture(probe)
    for name, value in vars(probe).items():
        if name.startswith("decoder_") and value in interpolations:
            setattr(args, name, interpolations[value])
    names = {name for name, _, _ in options or stock_options()}
    derived = {"decoder_input_dim", "decoder_output_dim"}
    return {name: value for name, value in vars(args).items() if name in names - derived}


def resolve_options(cfg: DictConfig | Namespace) -> dict[str, Any]:
    """Return options as `to_dict` does, with interpolations of a namespace resolved, too."""
    return to_dict(cfg if OmegaConf.is_config(cfg) else OmegaConf.create(vars(cfg)))


def to_transformer_config(cfg: DictConfig | Namespace) -> TransformerConfig:
    """Return fairseq's nested configuration of a flat one; our options stay attributes of it."""
    return TransformerConfig.from_namespace(Namespace(**resolve_options(cfg)))
