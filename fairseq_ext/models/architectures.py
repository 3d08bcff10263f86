"""The table of architectures: mechanism x size, each a registered model with its own defaults.

A size is part of the registered dataclass, not an architecture function: hydra ignores the latter
and would build the base size.
"""

from typing import Any, NamedTuple

from fairseq.models import register_model
from fairseq.models.roberta import model as stock_roberta
from fairseq.models.transformer import transformer_legacy as stock

from fairseq_ext.models import pretrained
from fairseq_ext.models.config import Option, flat_config, preset, stock_options
from fairseq_ext.models.options import OPTIONS, ROBERTA_OPTIONS
from fairseq_ext.models.roberta import RobertaModel
from fairseq_ext.models.transformer import TransformerModel

_HARD_CODED = {"encoder_gaussian_heads": "all", "decoder_gaussian_heads": "all"}

ONE_SIDED: dict[str, dict[str, Any]] = {
    "una": {"encoder_normaliser": "softmax"},
    "dna": {"encoder_normaliser": "doubly"},
    "hna": {"encoder_normaliser": "hybrid"},
    "asa": {"asa_layers": "all"},
    "roles": {"encoder_roles": "rare,separator,relative"},
}

MECHANISMS: dict[str, dict[str, Any]] = {
    **ONE_SIDED,
    "gaussian": _HARD_CODED,
    "gaussian_all": {**_HARD_CODED, "cross_gaussian_heads": "all"},
    "gaussian_shx": {**_HARD_CODED, "cross_layers": "last", "cross_attention_heads": 1},
}

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


class Family(NamedTuple):
    """Models of one kind, in every combination of mechanism and size."""

    base: type
    options: list[Option]
    mechanisms: dict[str, dict[str, Any]]
    sizes: dict[str, dict[str, Any]]


FAMILIES = {
    "transformer": Family(TransformerModel, [*stock_options(), *OPTIONS], MECHANISMS, SIZES),
    "roberta": Family(RobertaModel, ROBERTA_OPTIONS, ONE_SIDED, ROBERTA_SIZES),
}


def _register(kind: str, mechanism: str, size: str) -> None:
    name, family = f"{kind}_{mechanism}{size}", FAMILIES[kind]
    class_name = "".join(part.capitalize() for part in name.split("_"))
    defaults = {**family.sizes[size], **family.mechanisms[mechanism]}
    config = flat_config(class_name + "Config", family.options, defaults)
    register_model(name, dataclass=config)(type(class_name, (family.base,), {}))


for _kind, _family in FAMILIES.items():
    for _mechanism in _family.mechanisms:
        for _size in _family.sizes:
            _register(_kind, _mechanism, _size)
