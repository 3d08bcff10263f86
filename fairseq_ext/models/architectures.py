"""The table of architectures: mechanism x size, each a registered model with its own defaults.

Mechanisms say what they preset in their own files; see `attention/presets.py`.

A size is part of the registered dataclass, not an architecture function: hydra ignores the latter
and would build the base size.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fairseq import models as registration
from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    register_model,
)
from fairseq.models import transformer_lm as stock_lm
from fairseq.models.roberta import model as stock_roberta
from fairseq.models.transformer import transformer_legacy as stock
from omegaconf import II

from fairseq_ext.attention.parts import check_name
from fairseq_ext.attention.presets import PRESETS
from fairseq_ext.errors import UsageError
from fairseq_ext.models import pretrained
from fairseq_ext.models.config import (
    Option,
    flat_config,
    preset,
    preset_config,
    stock_options,
)
from fairseq_ext.models.language_model import TransformerLanguageModel, list_stock_options
from fairseq_ext.models.options import DECODER_OPTIONS, OPTIONS, ROBERTA_OPTIONS
from fairseq_ext.models.roberta import RobertaModel
from fairseq_ext.models.transformer import TransformerModel

_TINY = {"embed_dim": 128, "ffn_embed_dim": 256, "layers": 4, "attention_heads": 4}

_GIGAWORD = {"embed_dim": 768, "ffn_embed_dim": 3072, "layers": 12, "attention_heads": 12}


def _sized(side: str, **sizes: int) -> dict[str, Any]:
    return {f"{side}_{name}": value for name, value in sizes.items()}


_BASE_SIZE = preset(stock.base_architecture)

SIZES: dict[str, dict[str, Any]] = {
    "": _BASE_SIZE,
    "_tiny": _sized("encoder", **_TINY) | _sized("decoder", **_TINY),
    "_iwslt_de_en": preset(stock.transformer_iwslt_de_en),
    "_wmt_en_de": preset(stock.transformer_wmt_en_de),
    "_wmt_en_de_big": preset(stock.transformer_wmt_en_de_big),
    "_gigaword": {  # headlines, Ding et al. 2020
        **_BASE_SIZE,
        **_sized("encoder", **_GIGAWORD),
        **_sized("decoder", layers=12, attention_heads=12),
        "share_all_embeddings": True,
        "max_source_positions": 128,
        "max_target_positions": 64,
        "hna_init": 0.1,
    },
}

_TODAY = {"norm": "rms", "ffn": "swiglu", "no_biases": True, "qk_norm": True}


def _modernise(size: dict[str, Any], inner: int, *sides: str) -> dict[str, Any]:
    """Return a size as a Transformer of today, with as many parameters by the inner width."""
    form = {"positions": "rotary", "normalize_before": True, "ffn_embed_dim": inner}
    sided = {f"{side}_{name}": value for side in sides for name, value in form.items()}
    return {**size, **_TODAY, **sided}


SIZES["_today_tiny"] = _modernise(SIZES["_tiny"], 176, "encoder", "decoder")
SIZES["_today_base"] = _modernise(SIZES[""], 1368, "encoder", "decoder")

_BASE = preset(stock_roberta.base_architecture, ROBERTA_OPTIONS)

ROBERTA_SIZES: dict[str, dict[str, Any]] = {
    "": {**_BASE, **dict.fromkeys(pretrained.ADOPTED)},  # the checkpoint's
    "_tiny": {
        **_BASE,
        **_sized("encoder", layers=4, attention_heads=8, embed_dim=128, ffn_embed_dim=512),
    },
    "_8": {**_BASE, "encoder_layers": 8},
    "_12": _BASE,
    "_16": {**_BASE, "encoder_layers": 16, "encoder_attention_heads": 16},
    "_large": preset(stock_roberta.roberta_large_architecture, ROBERTA_OPTIONS),
}

ROBERTA_SIZES["_today_tiny"] = _modernise(ROBERTA_SIZES["_tiny"], 344, "encoder")
ROBERTA_SIZES["_today_base"] = _modernise(ROBERTA_SIZES["_12"], 2048, "encoder")

_DEBERTA = {
    **_BASE,
    "encoder_scorer": "disentangled",
    "encoder_positions": "none",
    "layer_norm_eps": 1e-7,
}

DEBERTA_SIZES: dict[str, dict[str, Any]] = {  # DeBERTa v3's, and the xlarge one of v2
    "": {**_DEBERTA, **dict.fromkeys(pretrained.ADOPTED)},
    "_tiny": {
        **_DEBERTA,
        **_sized("encoder", layers=4, attention_heads=8, embed_dim=128, ffn_embed_dim=512),
    },
    "_small": {**_DEBERTA, "encoder_layers": 6},
    "_base": _DEBERTA,
    "_large": {
        **_DEBERTA,
        **_sized("encoder", layers=24, attention_heads=16, embed_dim=1024, ffn_embed_dim=4096),
    },
    "_xlarge": {
        **_DEBERTA,
        **_sized("encoder", layers=24, attention_heads=24, embed_dim=1536, ffn_embed_dim=6144),
        "encoder_conv_kernel": 3,
        "encoder_conv_activation_fn": "gelu",
    },
}


_FOLLOWING = dict.fromkeys(("decoder_input_dim", "decoder_output_dim"), II(".decoder_embed_dim"))


def _preset_lm(architecture: Callable[[Any], None]) -> dict[str, Any]:
    """Return the size of a language model of fairseq's, whose embeddings are as wide as it is."""
    number = {"base_shuffle": 0}  # a bool there
    return preset(architecture, list_stock_options()) | _FOLLOWING | number


_LM_BASE = _preset_lm(stock_lm.base_lm_architecture)

LM_SIZES: dict[str, dict[str, Any]] = {
    "": _LM_BASE,
    "_tiny": _LM_BASE | _sized("decoder", **_TINY),
    "_gpt": _preset_lm(stock_lm.transformer_lm_gpt),
    "_big": _preset_lm(stock_lm.transformer_lm_big),
    "_gbw": _preset_lm(stock_lm.transformer_lm_baevski_gbw),
    "_wiki103": _preset_lm(stock_lm.transformer_lm_baevski_wiki103),
}

_UNSCALED = {"no_scale_embedding": True}  # as in Llama
LM_SIZES["_today_tiny"] = _modernise(LM_SIZES["_tiny"], 176, "decoder") | _UNSCALED
LM_SIZES["_today_base"] = _modernise(LM_SIZES[""], 1368, "decoder") | _UNSCALED


class Family(NamedTuple):
    """Models of one kind, in every combination of mechanism and size.

    Attributes:
        base: the class of all.
        options: lists their options; these may become more.
        mechanisms: name -> options that a mechanism presets.
        sizes: end of a name -> options that a size presets.
    """

    base: type
    options: Callable[[], list[Option]]
    mechanisms: dict[str, dict[str, Any]]
    sizes: dict[str, dict[str, Any]]


FAMILIES = {
    "transformer": Family(
        TransformerModel, lambda: [*stock_options(), *OPTIONS], PRESETS["transformer"], SIZES
    ),
    "roberta": Family(RobertaModel, lambda: ROBERTA_OPTIONS, PRESETS["roberta"], ROBERTA_SIZES),
    "deberta": Family(RobertaModel, lambda: ROBERTA_OPTIONS, PRESETS["deberta"], DEBERTA_SIZES),
    "transformer_lm": Family(
        TransformerLanguageModel,
        lambda: [*list_stock_options(), *DECODER_OPTIONS],
        PRESETS["transformer_lm"],
        LM_SIZES,
    ),
}


def _list_architectures(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the preset options of every architecture of a family."""
    for mechanism, preset_options in FAMILIES[kind].mechanisms.items():
        for size, sizes in FAMILIES[kind].sizes.items():
            yield f"{kind}_{mechanism}{size}", {**sizes, **preset_options}
            if mechanism == "una" and size.startswith("_today"):
                yield f"{kind}{size}", {**sizes, **preset_options}


def update() -> None:
    """Register the architectures that are not there yet, and give all of them all options."""
    for kind, family in FAMILIES.items():
        base = flat_config(f"{kind.title().replace('_', '')}Config", family.options())
        for name, defaults in _list_architectures(kind):
            class_name = "".join(part.capitalize() for part in name.split("_"))
            config = preset_config(class_name + "Config", base, defaults)
            if name not in MODEL_REGISTRY:
                register_model(name, dataclass=config)(type(class_name, (family.base,), {}))
            else:
                _replace_config(name, config)


def _replace_config(name: str, config: type) -> None:
    """Put another configuration in the place of the one with which a model was registered."""
    setattr(MODEL_REGISTRY[name], "__dataclass", config)
    MODEL_DATACLASS_REGISTRY[name] = config
    node = config()
    node._name = name
    store = registration.ConfigStore.instance()
    store.store(name=name, group="model", node=node, provider="fairseq")


def add_mechanism(name: str, options: dict[str, Any]) -> list[str]:
    """Register a mechanism in all sizes of the families that have all of its options.

    Returns:
        the names of the architectures.

    Raises:
        UsageError: the name is taken or none, or no family has all options.
    """
    check_name("mechanism", name, PRESETS["transformer"])
    known = {kind: {each[0] for each in family.options()} for kind, family in FAMILIES.items()}
    fitting = [kind for kind, names in known.items() if options.keys() <= names]
    if not fitting:
        unknown = min((options.keys() - names for names in known.values()), key=len)
        raise UsageError(
            f"the mechanism {name!r} presets {', '.join(sorted(unknown))}, which no --arch of ours "
            "has; give names of options with _ in the place of -, as in encoder_normaliser"
        )
    made = [f"{kind}_{name}{size}" for kind in fitting for size in FAMILIES[kind].sizes]
    if taken := [each for each in made if each in MODEL_REGISTRY or each in ARCH_MODEL_REGISTRY]:
        raise UsageError(
            f"the mechanism {name!r} would make {taken[0]}, an architecture that is there already; "
            "choose another name"
        )
    for kind in fitting:
        FAMILIES[kind].mechanisms[name] = options
    update()
    return [f"{kind}_{name}{size}" for kind in fitting for size in FAMILIES[kind].sizes]


update()
