"""Options of models, in the same tables for flags, hydra and checkpoints."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.dataclass.configs import FairseqConfig

from fairseq_ext.attention import GATES, MASKS, MIXERS, NORMALISERS, POSITIONS, SCORERS
from fairseq_ext.attention.parts import Part, Parts
from fairseq_ext.attention.sites import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.roles.role_masks import DEFINITIONS, ROLES
from fairseq_ext.models.config import (
    Option,
    Requirements,
    described,
    flag,
    help_from_docstring,
    list_options,
    stock_options,
    to_enumeration,
)
from fairseq_ext.models.roberta_options import ROBERTA_SHARED, RobertaOptions

Definitions = ChoiceEnum(list(DEFINITIONS))

TRAINING_OPTIONS = frozenset(
    option.name
    for section in fields(FairseqConfig)
    if is_dataclass(section.type)
    for option in fields(section.type)
)
"""Options of fairseq's commands, whose values would take the place of a part's own."""

SLOTS: dict[str, Parts] = {
    **{f"{site}_normaliser": NORMALISERS for site in SITES},
    **{f"{site}_scorer": SCORERS for site in SITES},
    **{f"{site}_masks": MASKS for site in SITES},
    **{f"{side}_positions": POSITIONS for side in ("encoder", "decoder")},
    **{f"{site}_head_mixer": MIXERS for site in SITES},
    "head_gate": GATES,
}
"""Option -> the parts that it can name; parts may be registered at any time."""

LISTS = [name for name in SLOTS if name.endswith("_masks")]
"""Options that name several parts, separated by commas."""


def _gaussian_heads(kind: str) -> Any:
    return described(
        "0",
        f"number of hard-coded heads (You et al. 2020) in each layer's {kind}, or all; they are "
        "the first ones",
    )


def _gaussian_offsets(site: str, default: str) -> Any:
    return described(
        default,
        "centres of the hard-coded heads, in tokens from the query, as in "
        f"--{site}-gaussian-offsets={default} (with =); repeated over the heads; / separates "
        "layers",
    )


def _head_gate() -> Any:
    text = (
        "gates of heads: none, or a weight for each head, which begins as 1 (static, "
        "also without a value; Wang et al. 2020 announce it without a formula), a sigmoid of the "
        "input (input), or gates that may close heads (l0, for a criterion with _l0)"
    )
    return field(default="none", metadata={"help": text, "argparse_const": "static"})


@dataclass
@help_from_docstring
class AttentionOptions:
    """Options of our attention and of the layers around it.

    Attributes:
        encoder_normaliser: normaliser of encoder self-attention
        decoder_normaliser: normaliser of decoder self-attention; none that looks across queries
            (doubly, hybrid, sinkhorn, sinkformer), which would see the future
        cross_normaliser: normaliser of encoder-decoder attention; none that looks across queries,
            since translations grow token by token
        encoder_scorer: scorer of encoder self-attention; dot is the scaled dot product,
            disentangled DeBERTa's
        decoder_scorer: scorer of decoder self-attention
        cross_scorer: scorer of encoder-decoder attention
        encoder_positions: positions of the encoder: embedded (sinusoidal, learned), in its
            self-attention (alibi, t5, rotary) or none (default: embedded, as fairseq's flags say)
        decoder_positions: positions of the decoder
        encoder_masks: masks of encoder self-attention beside padding, as in NAME,NAME, or none
        decoder_masks: masks of decoder self-attention beside padding and the future
        cross_masks: masks of encoder-decoder attention beside padding
        encoder_head_mixer: mixer of the maps of heads in encoder self-attention: none, projections
            across heads (talking), or the difference of two maps of each head (differential)
        decoder_head_mixer: mixer of the maps of heads in decoder self-attention
        cross_head_mixer: mixer of the maps of heads in encoder-decoder attention
        gaussian_sigma: standard deviation of hard-coded heads, in tokens: one, or one for each head
        gaussian_ratio: source tokens per target token, for hard-coded heads of cross-attention
        role_definitions: definitions of the roles: those of the paper, or of its released code
        role_rare_min_count: words that dict.txt counts less often are never rare; 0: all may be
        head_gate_sites: attention whose heads have gates: some of encoder, decoder, cross, as in
            encoder,decoder
        asa_layers: encoder layers with an adversary (Wu et al. 2023), for a criterion with _asa:
            none, all, upper (the upper half; layers below are computed once for both passes), or
            numbers, as in 3,5
        asa_per_head: let adversaries mask each head on its own (paper: one mask for all heads of a
            layer)
        share_encoder_decoder_layers: use one stack of layers as encoder and decoder;
            encoder-decoder attention has the projections of self-attention (inferred from the
            number of parameters of the headline models of Ding et al.)
        cross_layers: decoder layers that attend to the encoder: all, last, or numbers, as in 0,3
        cross_attention_heads: heads of encoder-decoder attention; 0: as many as the decoder has
        encoder_heads_left: heads of each encoder layer of which others were pruned, as in 4/2/0, or
            all; their width stays (fairseq-ext prune)
        decoder_heads_left: the same of decoder self-attention
        cross_heads_left: the same of encoder-decoder attention
    """

    encoder_normaliser: str = "softmax"
    decoder_normaliser: str = "softmax"
    cross_normaliser: str = "softmax"
    encoder_scorer: str = "dot"
    decoder_scorer: str = "dot"
    cross_scorer: str = "dot"
    encoder_positions: Optional[str] = None
    decoder_positions: Optional[str] = None
    encoder_masks: str = "none"
    decoder_masks: str = "none"
    cross_masks: str = "none"
    encoder_head_mixer: str = "none"
    decoder_head_mixer: str = "none"
    cross_head_mixer: str = "none"
    encoder_gaussian_heads: str = _gaussian_heads("encoder self-attention")
    decoder_gaussian_heads: str = _gaussian_heads("decoder self-attention")
    cross_gaussian_heads: str = _gaussian_heads("encoder-decoder attention")
    encoder_gaussian_offsets: str = _gaussian_offsets("encoder", "-1,1")
    decoder_gaussian_offsets: str = _gaussian_offsets("decoder", "-1,0")
    cross_gaussian_offsets: str = _gaussian_offsets("cross", "-1,1")
    gaussian_sigma: str = "1"
    gaussian_ratio: float = 1.0
    encoder_roles: str = described(
        "none",
        "roles of the first heads of each encoder layer (Wang et al. 2020), as in rare,relative: "
        f"{', '.join(ROLES)} (an ordinary head); / separates layers",
    )
    role_definitions: Definitions = "paper"
    role_rare_min_count: int = 0
    head_gate: str = _head_gate()
    head_gate_sites: str = "encoder"
    asa_layers: str = "none"
    asa_per_head: bool = False
    share_encoder_decoder_layers: bool = False
    cross_layers: str = "all"
    cross_attention_heads: int = 0
    encoder_heads_left: str = "all"
    decoder_heads_left: str = "all"
    cross_heads_left: str = "all"


_TWO_SIDED = ("decoder_", "cross_", "gaussian_ratio", "share_")

_NOT_IN_DECODERS = ("encoder_", "cross_", "asa_", "share_", "head_gate_sites")

HYBRID = ("hna_init", "hna_weight")
"""Options that the parameters of hybrid weights are stored relative to."""

CROSS = (
    "gaussian_heads layers attention_heads normaliser scorer masks head_mixer heads_left".split()
)

OWN_REQUIREMENTS: Requirements = {
    **{f"{site}_gaussian_offsets": ([f"{site}_gaussian_heads"], []) for site in SITES},
    "gaussian_sigma": ([f"{site}_gaussian_heads" for site in SITES], []),
    "gaussian_ratio": (["cross_gaussian_heads"], []),
    **{f"cross_{name}": (["no_cross_attention"], ["False"]) for name in CROSS},
    **{f"role_{name}": (["encoder_roles"], []) for name in ("definitions", "rare_min_count")},
    "asa_per_head": (["asa_layers"], []),
    "encoder_conv_activation_fn": (["encoder_conv_kernel"], []),
    "head_gate_sites": (["head_gate"], []),
}

OPTIONS: list[Option] = []
"""Options of our attention and of its parts."""

ENCODER_OPTIONS: list[Option] = []
"""Options of a model that is an encoder alone."""

DECODER_OPTIONS: list[Option] = []
"""Options of a model that is a decoder alone."""

ROBERTA_OPTIONS: list[Option] = []
"""Options of fairseq's RoBERTa, with its names and meanings, and options of our attention."""

DEFAULTS: dict[str, Any] = {}

OPTION_REQUIREMENTS: dict[str, tuple[list[str], list[str]]] = {}


def list_parts() -> list[tuple[Parts, Part]]:
    """Return all parts that have options, each with its table."""
    tables = {id(table): table for table in SLOTS.values()}.values()
    return [(table, part) for table in tables for part in table.parts().values() if part.options]


def update() -> None:
    """Fill the tables above, at first and when a part was registered."""
    parts = list_parts()
    of_parts: dict[str, Option] = {}
    for _, part in parts:
        for name, option in part.options.items():
            kind = to_enumeration(option.type)
            of_parts[name] = name, kind, described(option.default, option.help)
    own = list_options(AttentionOptions)
    OPTIONS[:] = [*own, *(each for name, each in of_parts.items())]
    ENCODER_OPTIONS[:] = [option for option in OPTIONS if not option[0].startswith(_TWO_SIDED)]
    shared = [option for option in stock_options() if option[0] in ROBERTA_SHARED]
    ROBERTA_OPTIONS[:] = [*shared, *list_options(RobertaOptions), *ENCODER_OPTIONS]
    DEFAULTS.update((name, field.default) for name, _, field in OPTIONS)
    OPTION_REQUIREMENTS.update(_require(parts), **OWN_REQUIREMENTS)
    names = {name for name, *_ in OPTIONS if not name.startswith(_NOT_IN_DECODERS)}
    DECODER_OPTIONS[:] = [
        option
        for option in OPTIONS
        if option[0] in names
        and names.intersection(OPTION_REQUIREMENTS.get(option[0], (names, ()))[0])
    ]


def _require(parts: Iterable[tuple[Parts, Part]]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the requirement of each option of a part: a slot where such a part stands."""
    requirements: dict[str, tuple[list[str], list[str]]] = {}
    for table, part in parts:
        default = part.default()
        one_sided = any(getattr(default, n, False) for n in ("across_queries", "encoder_only"))
        flags = [name for name, slot in SLOTS.items() if slot is table]
        if getattr(default, "in_sequence", False):
            flags = [name for name in flags if not name.startswith("cross_")]
        for name in part.options:
            needed, names = requirements.setdefault(name, ([], []))
            needed += [each for each in flags[: 1 if one_sided else None] if each not in needed]
            names += [] if table is MASKS else [part.name]
    return requirements


def check_part_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError if options of a new part are taken by something else."""
    for name, option in options.items():
        taken = [kind for known, kind, _ in _known() if known == name]
        shared = any(part.options.get(name) == option for _, part in list_parts())
        if name in TRAINING_OPTIONS or taken and not shared:
            raise UsageError(
                f"there is an option {name} already, another one; choose a name that begins with "
                "that of the part"
            )


def _known() -> list[Option]:
    return [*stock_options(), *list_options(RobertaOptions), *OPTIONS]


update()

UNSUPPORTED = (
    "cross_self_attention",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "base_layers",
)

EMBEDDINGS = ("adaptive_input", "char_inputs", "tie_adaptive_weights", "tie_adaptive_proj")
"""Options of fairseq's language models, which its translation models have flags of, too."""


def check_supported(cfg: Any) -> None:
    """Raise UsageError for an option of fairseq's own Transformer that ours does not have."""
    for name in UNSUPPORTED:
        if getattr(cfg, name):
            raise UsageError(f"{flag(name)} is not supported here; use fairseq's own --arch")


def check_embeddings(cfg: Any, names: Iterable[str] = EMBEDDINGS) -> None:
    """Raise UsageError for one of these options, of embeddings that no translation model has."""
    for name in names:
        if getattr(cfg, name, False):
            raise UsageError(
                f"{flag(name)} is for language models, and this one translates; leave it out"
            )
