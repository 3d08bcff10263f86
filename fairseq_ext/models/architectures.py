"""The table of architectures: mechanism x size, each a registered model with its own defaults.

A size is part of the registered dataclass, not an architecture function: hydra ignores the latter
and would build the base size.
"""

from typing import Any

from fairseq.models import register_model
from fairseq.models.transformer import transformer_legacy as stock

from fairseq_ext.models.config import flat_config, preset
from fairseq_ext.models.options import OPTIONS
from fairseq_ext.models.transformer import TransformerModel

_HARD_CODED = {"encoder_gaussian_heads": "all", "decoder_gaussian_heads": "all"}

MECHANISMS: dict[str, dict[str, Any]] = {
    "una": {"encoder_normaliser": "softmax"},
    "dna": {"encoder_normaliser": "doubly"},
    "hna": {"encoder_normaliser": "hybrid"},
    "gaussian": _HARD_CODED,
    "gaussian_all": {**_HARD_CODED, "cross_gaussian_heads": "all"},
    "gaussian_shx": {**_HARD_CODED, "cross_layers": "last", "cross_attention_heads": 1},
}

_TINY = {"embed_dim": 128, "ffn_embed_dim": 256, "layers": 4, "attention_heads": 4}

SIZES: dict[str, dict[str, Any]] = {
    "": preset(stock.base_architecture),
    "_tiny": {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in _TINY.items()},
    "_iwslt_de_en": preset(stock.transformer_iwslt_de_en),
    "_wmt_en_de": preset(stock.transformer_wmt_en_de),
    "_wmt_en_de_big": preset(stock.transformer_wmt_en_de_big),
}


def _register(mechanism: str, size: str) -> None:
    name = f"transformer_{mechanism}{size}"
    class_name = "".join(part.capitalize() for part in name.split("_"))
    defaults = {**SIZES[size], **MECHANISMS[mechanism]}
    config = flat_config(class_name + "Config", OPTIONS, defaults)
    register_model(name, dataclass=config)(type(class_name, (TransformerModel,), {}))


for _mechanism in MECHANISMS:
    for _size in SIZES:
        _register(_mechanism, _size)
