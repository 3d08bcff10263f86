"""Flat fairseq configurations, generated from fairseq's own `TransformerConfig`."""

from argparse import Namespace, _StoreFalseAction
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import II, DictConfig, OmegaConf

from fairseq_ext.errors import UsageError

Option = tuple[str, Any, Field]
"""Name, type and dataclass field, as `make_dataclass` takes them."""


def option(name: str, kind: Any, default: Any, help: str) -> Option:
    return name, kind, field(default=default, metadata={"help": help})


Requirements = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""Option -> others, and the values of one of those with which it has an effect; none: all but the
one that switches that off."""


def check_requirements(
    given: Mapping[str, Any], preset: Mapping[str, Any], idle: Mapping[str, Any], users: Requirements
) -> None:
    """Raises UsageError for an option that was changed and has no effect.

    Args:
        preset: what options have unless told otherwise.
        idle: the values that switch the others off.
    """
    for name, (others, needed) in users.items():
        if name not in given or str(given[name]) == str(preset[name]):
            continue
        values = {other: str(given[other]) for other in others if other in given}
        if not any(v in needed if needed else v != str(idle[o]) for o, v in values.items()):
            met = " and ".join(_said(other, value) for other, value in values.items())
            raise UsageError(
                f"{_said(name, given[name])} has no effect with {met}; leave it out, or "
                f"{_remedy(values, needed)}"
            )


def _said(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value in (True, "True") else f"{flag} {value}"


def _remedy(others: Iterable[str], needed: Sequence[str]) -> str:
    flags = [_said(other, True) for other in others]
    if needed == ["False"]:
        return f"leave out {flags[0]}"
    return "give " + " or ".join(f"{f} {value}".strip() for f in flags for value in needed or [""])


def stock_options(config: type = TransformerConfig, prefix: str = "") -> Iterator[Option]:
    """fairseq's transformer options, flat: `encoder.embed_dim` becomes `encoder_embed_dim`."""
    for stock in fields(config):
        name = prefix + stock.name
        if isinstance(stock.default, type) and issubclass(stock.default, FairseqDataclass):
            yield from stock_options(stock.default, name + "_")
        elif stock.name.endswith("layers_to_keep"):
            # declared as a list, but read as "0,2,4" wherever fairseq uses it
            yield option(name, Optional[str], None, stock.metadata["help"])  # noqa: UP045 (argparse)
        elif stock.name != "_name":
            default = stock.default if stock.default is not MISSING else stock.default_factory()
            if isinstance(default, str) and default == II("model.decoder.embed_dim"):
                default = II(".decoder_embed_dim")
            yield name, stock.type, field(default=default, metadata=dict(stock.metadata))


def flat_config(name: str, options: Iterable[Option], defaults: dict[str, Any]) -> type:
    """A dataclass of these options, with its own defaults."""
    table = {option[0]: option for option in options}
    for key, value in defaults.items():
        _, kind, old = table[key]
        kind = kind if value is not None else Optional[kind]  # noqa: UP045 (argparse)
        table[key] = key, kind, field(default=value, metadata=dict(old.metadata))
    return make_dataclass(name, list(table.values()), bases=(FairseqDataclass,))


def keep_on(actions: Iterable[Any], config: type) -> None:
    """A flag that is on by default stays on when it is given; fairseq would turn it off."""
    on = {field.name for field in fields(config) if field.default is True}
    for action in actions:
        if isinstance(action, _StoreFalseAction) and action.dest in on:
            action.const = True


def preset(
    architecture: Callable[[Namespace], None], options: Iterable[Option] | None = None
) -> dict[str, Any]:
    """What a stock architecture function sets, as defaults of these options (fairseq's own).

    A size of the decoder that follows the encoder's there is an interpolation here.
    """
    sizes = {"encoder_embed_dim": -1, "encoder_ffn_embed_dim": -2}
    follows = {value: II("." + name) for name, value in sizes.items()}
    args, probe = Namespace(), Namespace(**sizes)
    architecture(args)
    architecture(probe)
    for name, value in vars(probe).items():
        if name.startswith("decoder_") and value in follows:
            setattr(args, name, follows[value])
    known = {name for name, _, _ in options or stock_options()}
    derived = {"decoder_input_dim", "decoder_output_dim"}
    return {name: value for name, value in vars(args).items() if name in known - derived}


def to_transformer_config(cfg: DictConfig | Namespace) -> TransformerConfig:
    """fairseq's nested configuration of a flat one; our own options stay attributes of it."""
    flat = cfg if OmegaConf.is_config(cfg) else OmegaConf.create(vars(cfg))
    return TransformerConfig.from_namespace(Namespace(**OmegaConf.to_container(flat, resolve=True)))
