"""Checks of mechanisms in whole models: a step of training, and what must hold after it."""

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY, build_model
from omegaconf import OmegaConf

from fairseq_ext import registry  # noqa: F401
from fairseq_ext.models.architectures import FAMILIES
from fairseq_ext.testing import invariants
from fairseq_ext.testing.invariants import SENTENCES, TARGETS

SIZES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("embed_dim", 32), ("ffn_embed_dim", 32))
}
SIZES |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
SIZES |= {"tokens_per_sample": 64, "max_target_positions": 64}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def build_tiny_model(architecture: str, **options: Any) -> Any:
    """Build a model of 2 layers in evaluation mode, whose parameters (biases) are not initial."""
    words = Dictionary()
    for n in range(40):
        words.add_symbol(f"w{n}" if n else ",", n=50 - n)
    task = Namespace(
        source_dictionary=words, target_dictionary=words, max_positions=lambda: 64, cfg=Namespace()
    )
    known = getattr(MODEL_REGISTRY[architecture], "__dataclass").__dataclass_fields__
    sizes = {name: size for name, size in (SIZES | NO_DROPOUT).items() if name in known}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = OmegaConf.create({"_name": architecture, **sizes, **options})
        model = build_model(config, task).eval()
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def check_mechanism(name: str, **options: Any) -> None:
    """Check `FAMILY_NAME_tiny` of every family that has the mechanism; see `check_model`.

    Args:
        name: as given to `register_mechanism`.
        options: further options of the models.
    """
    families = [kind for kind, family in FAMILIES.items() if name in family.mechanisms]
    assert families, f"no mechanism {name!r} is registered"
    for kind in families:
        check_model(f"{kind}_{name}_tiny", **options)


def check_model(architecture: str = "transformer_una_tiny", **options: Any) -> None:
    """Check what must hold of a model, whatever its attention.

    Every parameter has a finite gradient; neither batches nor padding nor its side change a result;
    a masked token is as good as none; a decoder does not look ahead, and decodes token by token as
    it was trained; parameters are saved and read again.

    Args:
        architecture: a registered name.
        options: of the model, as in `encoder_normaliser="cubed"`.
    """
    model = build_tiny_model(architecture, **options)
    text = (SENTENCES, TARGETS) if hasattr(model, "decoder") else (SENTENCES,)
    if not hasattr(model, "encoder"):
        text = (TARGETS,)
    _check_gradients(model.train(), text)
    model.eval()
    for side in ("left", "right"):
        invariants.assert_batches_change_nothing(model, *text, side=side, extra=2)
    invariants.assert_masked_is_truncated(model, *text)
    if hasattr(model, "decoder"):
        invariants.assert_no_look_ahead(model, *text)
        for side in ("left", "right"):
            targets = text[1] if len(text) == 2 else None
            invariants.assert_decoding_is_teacher_forcing(model, text[0], targets, side)
    _check_saved(model, build_tiny_model(architecture, **options), text)


def _check_gradients(model: Any, text: Iterable) -> None:
    sources, *targets = text
    source = invariants.batch(sources)
    further = (None, invariants.batch(*targets)) if targets else ()
    logits, _ = model(source, *further)
    model.zero_grad()
    logits.logsumexp(-1).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"


def _check_saved(model: Any, other: Any, text: Iterable) -> None:
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    other.load_state_dict(model.state_dict(), strict=True)
    pair = (invariants.run(each, *text) for each in (model, other))
    torch.testing.assert_close(*pair, atol=0, rtol=0)
