"""Positions and gates of models, read from fairseq's options and ours."""

from collections.abc import Mapping
from copy import copy
from typing import Any

from torch import nn

from fairseq_ext.attention import Attention
from fairseq_ext.attention.building import parse_gate_sites
from fairseq_ext.attention.positions import EMBEDDED
from fairseq_ext.attention.sites import ALL_LAYERS, SITES, choose_layers
from fairseq_ext.errors import UsageError


def embed_positions(cfg: Any, side: str) -> Any:
    """Return a configuration that embeds positions as the option of a side of the model says."""
    name = getattr(cfg, f"{side}_positions", None)
    if name is None:
        return cfg
    cfg = copy(cfg)
    cfg.no_token_positional_embeddings = name not in EMBEDDED
    setattr(cfg, side, copy(getattr(cfg, side)))
    getattr(cfg, side).learned_pos = EMBEDDED.get(name, False)
    return cfg


def name_positions(side: str, options: Mapping[str, Any]) -> str:
    """Return the positions of a side of the model, by fairseq's flags if our option is not given.

    Without these flags it is an encoder of fairseq's RoBERTa, which learns them, or is sinusoidal.
    """
    if (name := options.get(f"{side}_positions")) is not None:
        return str(name)
    if options.get("no_token_positional_embeddings"):
        return "none"
    alone = side == "encoder" and "decoder_layers" not in options
    return "learned" if options.get(f"{side}_learned_pos", alone) else "sinusoidal"


def check_gate_sites(model: nn.Module, options: Mapping[str, Any]) -> None:
    """Raise UsageError if heads are to have gates at a site where the model has no attention."""
    sides = [module for name, module in model.named_modules() if name in ("encoder", "decoder")]
    parts = [part for side in sides for part in side.modules() if isinstance(part, Attention)]
    present = {part.site for part in parts}
    # a decoder alone has no such option, and gates at its only site
    named = parse_gate_sites(options) if "head_gate_sites" in options else []
    if missing := [site for site in named if site not in present]:
        raise UsageError(
            f"--head-gate-sites is '{options['head_gate_sites']}', and this model has no attention "
            f"called {missing[0]}; give some of {', '.join(s for s in SITES if s in present)}"
        )


def parse_cross_layers(text: str, layers: int) -> list[int]:
    """Return the decoder layers that attend to the encoder, named as "all", "last" or "0,3"."""
    words = {**ALL_LAYERS, "last": slice(-1, None)}
    return choose_layers("--cross-layers", text, range(layers), words)
