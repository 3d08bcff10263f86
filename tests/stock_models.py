"""Models of random parameters that stock fairseq could compute, and their checkpoints."""

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.models import build_model as build
from omegaconf import OmegaConf

from fairseq_ext.models.config import default_options
from fairseq_ext.testing.mechanisms import SIZES

EVERYWHERE = {"head_gate_sites": "encoder,decoder,cross"}
CLOSING = {"head_gate": "l0", **EVERYWHERE}


def build_model(architecture: str, *words: Dictionary, ending: float = 0, **options):
    """A tiny model in evaluation, whose parameters are not initial.

    `ending` is added to the score of the end of a sentence, as sentences of untrained models hardly
    end.
    """
    known = default_options(MODEL_DATACLASS_REGISTRY[architecture])
    options = {name: size for name, size in SIZES.items() if name in known} | options
    task = Namespace(
        source_dictionary=words[0],
        target_dictionary=words[-1],
        max_positions=lambda: 64,
        cfg=Namespace(),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = build(OmegaConf.create({"_name": architecture, **options}), task).eval()
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    if ending and options["decoder_embed_dim"] == model.decoder.output_embed_dim:
        end = model.decoder.output_projection.weight.data[words[-1].eos()]
        model.decoder.layers[-1].final_layer_norm.bias.data += ending * end / end.dot(end)
    return model


def checkpoint(architecture: str, model, task: dict | None = None, **options) -> dict:
    """A checkpoint of a model with these options, as a training leaves it."""
    known = default_options(MODEL_DATACLASS_REGISTRY[architecture])
    sizes = {name: size for name, size in SIZES.items() if name in known}
    config = OmegaConf.create({**known, **sizes, **options, "_name": architecture})
    settings = OmegaConf.to_container(config, resolve=True) | model.adopted_options()
    cfg = {"model": settings, "task": task or {"_name": "translation", "data": "nowhere"}}
    state = {"args": None, "cfg": cfg, "optimizer_history": [{"num_updates": 7}]}
    return state | {"extra_state": {}, "model": model.state_dict()}
