"""Options of models, in the same tables for flags, hydra and checkpoints.

Those of attention follow from the table of slots, its parts and the kinds of heads; see
`attention/slots.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from fairseq.dataclass.configs import FairseqConfig

from fairseq_ext import mechanisms  # noqa: F401 (registers them)
from fairseq_ext.attention.building import ALL, HEAD_KINDS
from fairseq_ext.attention.options import (
    Facts,
    Rule,
    Rules,
    check_rules,
    flag,
    get_facts,
    option,
    read_rules,
    whole,
)
from fairseq_ext.attention.options import Option as PartOption
from fairseq_ext.attention.sites import SITES
from fairseq_ext.attention.slots import SLOTS, find_needs, list_parts
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import AdversaryOptions
from fairseq_ext.models.config import (
    Option,
    list_options,
    list_own_options,
    list_requirements,
    read_facts,
    stock_options,
    to_field,
)
from fairseq_ext.models.layer_forms import FormOptions, keep_deberta
from fairseq_ext.models.roberta_options import ROBERTA_SHARED, RobertaOptions

TRAINING_OPTIONS = frozenset(
    option.name
    for section in fields(FairseqConfig)
    if is_dataclass(section.type)
    for option in fields(section.type)
)
"""Options of fairseq's commands, whose values would take the place of a part's own."""


@dataclass
class GateOptions:
    """Options of gates beside the one that names them.

    Attributes:
        head_gate_sites: attention whose heads have gates: some of encoder, decoder, cross, as in
            encoder,decoder
    """

    head_gate_sites: str = option("encoder", needs=("head_gate",), sites=("encoder", "cross"))


SHARED_LAYERS = [
    *(
        Rule(
            f"encoder_{name} decoder_{name}",
            "{one} makes one stack of layers, and {other} differ; give both the same",
            lambda shared, encoder, decoder: shared and encoder != decoder,
        )
        for name in (
            *("layers", "layers_to_keep", "attention_heads"),
            *("embed_dim", "ffn_embed_dim", "normalize_before", "kv_heads"),
        )
    ),
    Rule(
        "cross_attention_heads decoder_attention_heads",
        "{one} makes one stack of layers with the same heads, and {other} are not; leave out "
        "--cross-attention-heads",
        lambda shared, cross, decoder: shared and cross not in (0, decoder),
    ),
    Rule(
        "cross_kv_heads decoder_kv_heads",
        "{one} makes one stack of layers with the same heads, and {other} differ; give both the "
        "same",
        lambda shared, cross, decoder: shared and cross != decoder,
    ),
    *(
        Rule(
            f"{site}_heads_left",
            "{one} makes one stack of layers with all heads, and {other} leaves out some; leave "
            "that out",
            lambda shared, left: shared and left != ALL,
        )
        for site in SITES
    ),
    *(
        Rule(
            f"quant_noise_{kind}",
            "{one} does not go with {other}, which changes parameters whenever they are used; "
            "leave one of them out",
        )
        for kind in ("pq", "scalar")
    ),
]
"""Rules for the option that shares layers."""

KV_HEADS = whole("[0, 10000]", "a number of heads; 0: as many as queries have")


@dataclass
class LayerOptions:
    """Options of the layers around our attention, and of how many heads they have.

    Attributes:
        share_encoder_decoder_layers: use one stack of layers as encoder and decoder;
            encoder-decoder attention has the projections of self-attention (inferred from the
            number of parameters of the headline models of Ding et al.)
        cross_layers: decoder layers that attend to the encoder: all, last, or numbers, as in 0,3
        cross_attention_heads: heads of encoder-decoder attention; 0: as many as the decoder has
        encoder_heads_left: heads of each encoder layer of which others were pruned, as in 4/2/0, or
            all; their width stays (fairseq-ext prune)
        decoder_heads_left: the same of decoder self-attention
        cross_heads_left: the same of encoder-decoder attention
        encoder_kv_heads: heads of keys and values that the encoder's heads share in groups, a
            divisor of their number; 1: all share one; 0: each has its own
        decoder_kv_heads: the same of decoder self-attention
        cross_kv_heads: the same of encoder-decoder attention
    """

    share_encoder_decoder_layers: bool = option(
        False, alike=True, sites=("cross",), excludes=SHARED_LAYERS
    )
    cross_layers: str = "all"
    cross_attention_heads: int = option(
        0, whole("[0, 10000]", "a number of heads; 0: as many as the decoder has")
    )
    encoder_heads_left: str = "all"
    decoder_heads_left: str = "all"
    cross_heads_left: str = "all"
    encoder_kv_heads: int = option(0, KV_HEADS, alike=True, excludes=keep_deberta(0))
    decoder_kv_heads: int = option(0, KV_HEADS, alike=True)
    cross_kv_heads: int = option(0, KV_HEADS, alike=True)


OPTIONS: list[Option] = []
"""Options of our attention and of its parts."""

ENCODER_OPTIONS: list[Option] = []
"""Options of a model that is an encoder alone."""

DECODER_OPTIONS: list[Option] = []
"""Options of a model that is a decoder alone."""

ROBERTA_OPTIONS: list[Option] = []
"""Options of fairseq's RoBERTa, with its names and meanings, and options of our attention."""

DEFAULTS: dict[str, Any] = {}

FACTS: dict[str, Facts] = {}
"""Option of our attention -> its facts."""

BUILDING_RULES: Rules = {
    name: rules
    for config in (
        LayerOptions,
        FormOptions,
        RobertaOptions,
        *(k.options for k in HEAD_KINDS.values()),
    )
    for name, rules in read_rules(config).items()
}
"""Rules for options of a model as a whole; those of a part are checked where it is built."""

OPTION_REQUIREMENTS: dict[str, tuple[list[str], list[str]]] = {}


def _list_own() -> Iterator[Option]:
    """Yield options in the order of flags: of slots, of kinds of heads, of layers, of parts."""
    for slot in SLOTS.values():
        if slot.name == "head_gate":
            for kind in HEAD_KINDS.values():
                yield from list_own_options(kind.options)
        extra = {"argparse_const": slot.bare} if slot.bare else {}
        yield from (to_field(name, each, **extra) for name, each in slot.list_options())
    for config in (GateOptions, AdversaryOptions, LayerOptions, FormOptions):
        yield from list_own_options(config)
    of_parts: dict[str, PartOption] = {}
    for _, part in list_parts():
        of_parts |= part.options
    yield from (to_field(name, each) for name, each in of_parts.items())


def update() -> None:
    """Fill the tables above, at first and when a part was registered."""
    OPTIONS[:] = _list_own()
    FACTS.update((name, get_facts(field)) for name, _, field in OPTIONS)
    DEFAULTS.update((name, field.default) for name, _, field in OPTIONS)
    OPTION_REQUIREMENTS.update(find_needs())
    OPTION_REQUIREMENTS.update(list_requirements({**FACTS, **read_facts(RobertaOptions)}))
    for name in FACTS:
        if name.startswith("cross_") and name not in OPTION_REQUIREMENTS:
            OPTION_REQUIREMENTS[name] = ["no_cross_attention"], ["False"]
    ENCODER_OPTIONS[:] = [each for each in OPTIONS if _has_site(each[0], "encoder")]
    shared = [each for each in stock_options() if each[0] in ROBERTA_SHARED]
    ROBERTA_OPTIONS[:] = [*shared, *list_options(RobertaOptions), *ENCODER_OPTIONS]
    decoder = {name for name, *_ in OPTIONS if _has_site(name, "decoder")}

    def has_effect(name: str) -> bool:
        needed, _ = OPTION_REQUIREMENTS.get(name, (decoder, ()))
        return name in decoder and not decoder.isdisjoint(needed)

    DECODER_OPTIONS[:] = [each for each in OPTIONS if has_effect(each[0])]


def _has_site(name: str, site: str) -> bool:
    """Return whether an option has a meaning in a model with attention at this site alone."""
    prefix = name.partition("_")[0]
    own = (prefix,) if prefix in ("encoder", "decoder", "cross") else ()
    return site in (FACTS[name].sites or own or (site,))


def check_part_options(options: Mapping[str, PartOption]) -> None:
    """Raise UsageError if options of a new part are taken by something else."""
    known = {name for name, *_ in (*stock_options(), *list_options(RobertaOptions), *OPTIONS)}
    for name, each in options.items():
        shared = any(part.options.get(name) == each for _, part in list_parts())
        if name in TRAINING_OPTIONS or name in known and not shared:
            raise UsageError(
                f"there is an option {name} already, another one; choose a name that begins with "
                "that of the part"
            )


update()

UNSUPPORTED = (
    "cross_self_attention",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "base_layers",
)

EMBEDDINGS = ("adaptive_input", "char_inputs", "tie_adaptive_weights", "tie_adaptive_proj")
"""Options of fairseq's language models, which its translation models have flags of, too."""


def check_options(cfg: Mapping[str, Any]) -> None:
    """Raise UsageError if a model cannot be built, for options of fairseq or for rules of ours."""
    check_rules(cfg, BUILDING_RULES)
    for name in UNSUPPORTED:
        if cfg.get(name):
            raise UsageError(f"{flag(name)} is not supported here; use fairseq's own --arch")


def check_embeddings(cfg: Any, names: Iterable[str] = EMBEDDINGS) -> None:
    """Raise UsageError for one of these options, of embeddings that no translation model has."""
    for name in names:
        if getattr(cfg, name, False):
            raise UsageError(
                f"{flag(name)} is for language models, and this one translates; leave it out"
            )
