"""Mechanisms in models of Hugging Face: `attn_implementation="dna"` after `register()`.

The model projects, rotates and caches as ever; from its queries, keys and values to the mixed
values it is our attention. Here are torch and transformers alone.

    register()
    model = AutoModel.from_pretrained("bert-base-uncased", attn_implementation="hna")
    prepare(model)  # mechanisms with parameters need it, before an optimiser is built
    model(**batch, recorder=AttentionRecorder(lambda site, layer: [0]))
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionRecorder, Inputs, as_inputs
from fairseq_ext.attention.sites import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange.hf_mechanism import (
    GivenInputs,
    Implementation,
    Mechanism,
    list_options,
    read_options,
)

CHANGES = ("softcap", "s_aux", "sinks")
"""Arguments by which models change scores or weights in ways of their own."""

ATTRIBUTE = "mechanism"
"""Where an attention module of transformers' has its :class:`Mechanism`."""

_preparing: list[bool] = []


def register(name: str | None = None, **options: Any) -> list[str]:
    """Register values of `attn_implementation`, and return their names.

    Args:
        name: of a new one; by default all presets, normalisers and head mixers are registered.
        options: its normaliser and its head mixer, of all attention or by site, and their options,
            as in `register("sparsemax", normaliser="entmax", entmax_alpha=2.0)`.

    Raises:
        UsageError: transformers is missing or too old, or options have no meaning.
    """
    attention, masks, _, _ = _import_transformers()
    every = list_options() if name is None else {name: options}
    for each, given in every.items():
        implementation = Implementation(each, read_options(given))
        with torch.random.fork_rng(devices=[]):
            for site in SITES:  # refuses bad options
                if site == "encoder" or not implementation.looks_across(site):
                    Mechanism(2, 8, site, 0, implementation, False)
        attention.register(each, partial(_attend, implementation))
        masks.register(each, partial(_mask, implementation))
    return list(every)


def prepare(model: nn.Module, **inputs: Any) -> None:
    """Give attention modules what their mechanism learns; call it before an optimiser is built.

    The model runs once, without gradients. Parameters that it has saved are loaded, if it comes
    from a folder.

    Args:
        model: one of transformers', with a registered `attn_implementation`.
        inputs: arguments of its forward (default: its own `dummy_inputs`).
    """
    training = model.training
    _preparing.append(True)
    try:
        with torch.no_grad():
            model.eval()(**(inputs or model.dummy_inputs))  # type: ignore[arg-type]
    finally:
        _preparing.pop()
        model.train(training)
    _load_saved(model)


def _load_saved(model: nn.Module) -> None:
    """Load parameters of mechanisms from the folder of a model, whatever class saved it."""
    from safetensors.torch import load_file

    def own(name: str) -> str:
        return name.removeprefix(f"{getattr(model, 'base_model_prefix', '')}.")

    folder = Path(getattr(model, "name_or_path", "") or "/nowhere")
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    saved = {own(n): x for f in files for n, x in load_file(f).items() if f".{ATTRIBUTE}." in n}
    for name, parameter in model.named_parameters():
        if own(name) in saved:
            parameter.data.copy_(saved[own(name)])


def _import_transformers() -> tuple[Any, Any, Any, Any]:
    """Return the two interfaces, the mask of whole sequences and what makes masks."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
    except ImportError as error:
        raise UsageError(
            f"transformers is missing or too old ({error}); install transformers>=5"
        ) from None
    return AttentionInterface, AttentionMaskInterface, bidirectional_mask_function, sdpa_mask


def _mask(
    implementation: Implementation, mask_function: Callable[..., Any], **given: Any
) -> Tensor | None:
    """Return where queries may attend, [B, 1, T or 1, S] bool, or None if that is everywhere.

    Masks that are the same for all queries have one row.
    """
    *_, bidirectional, sdpa_mask = _import_transformers()
    alike = mask_function is bidirectional
    if not alike and implementation.looks_across("decoder"):
        zero, one = torch.tensor(0), torch.tensor(1)
        if not mask_function(zero, zero, zero, one):
            raise implementation.refuse()
    given |= {"mask_function": mask_function, "allow_is_causal_skip": False}
    visible = sdpa_mask(**given)
    return visible[:, :, :1] if visible is not None and alike else visible


def _attend(
    implementation: Implementation,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    recorder: AttentionRecorder | None = None,
    output_attentions: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return [B, T, H, D] and, if asked for, weights [B, H, T, S]; as transformers wants it.

    Args:
        query: [B, H, T, D].
        key: [B, G, S, D], with G heads that those of queries share.
        value: as key.
        attention_mask: what `_mask` returned, or a mask of the caller's.
    """
    if changes := [name for name in CHANGES if more.get(name) is not None]:
        raise UsageError(
            f'attn_implementation="{implementation.name}" does not know {changes[0]}, with which '
            f"{type(module).__name__} changes its scores; give that model another one"
        )
    mechanism = _find_mechanism(module, query, implementation, position_bias is not None)
    across = any(group.normaliser.across_queries for group in mechanism.groups)
    if across and query.size(2) != key.size(2):
        raise implementation.refuse()
    if recorder is not None:
        _number(module)
    mechanism.dropout_module.p = dropout
    factor = 1.0 if scaling is None else scaling * query.size(-1) ** 0.5
    inputs = _read_mask(attention_mask, query, key)
    given = GivenInputs(inputs.padding, masked=inputs.masked, recorder=recorder, bias=position_bias)
    q = query if abs(factor - 1) < 1e-9 else query * factor
    weighed = {"need_weights": output_attentions, "need_head_weights": output_attentions}
    out, maps = mechanism(q, key, value, given, **weighed)
    out = out.transpose(0, 1).unflatten(-1, (query.size(1), -1)).contiguous()
    return out, None if maps is None else maps.transpose(0, 1).to(query.dtype)


def _read_mask(mask: Tensor | None, query: Tensor, key: Tensor) -> Inputs:
    """Return `Inputs` with the padding of keys, and with a mask if it differs between queries."""
    if mask is None:
        return Inputs()
    if mask.dim() == 4:
        mask = mask[..., : key.size(2)].expand(len(query), -1, -1, -1)
    masked = as_inputs(None, ~mask if mask.dtype == torch.bool else mask).masked
    assert masked is not None
    padding = masked.all(-2)[:, 0] if masked.dim() == 4 else None
    if masked.size(-2) == 1:
        return Inputs(padding)
    return Inputs(padding if query.size(2) == key.size(2) else None, masked=masked)


def _find_mechanism(
    module: nn.Module, query: Tensor, implementation: Implementation, biased: bool
) -> Mechanism:
    """Return what a module has, or make it if it learns nothing or the model is being prepared."""
    name, found = implementation.name, getattr(module, ATTRIBUTE, None)
    if isinstance(found, Mechanism) and found.implementation == name:
        return found
    site = _find_site(module)
    if site != "encoder" and implementation.looks_across(site):
        raise implementation.refuse()
    layer, sizes = getattr(module, "layer_idx", None) or 0, (query.size(1), query.size(3))
    made = Mechanism(*sizes, site, layer, implementation, biased).to(query.device, query.dtype)
    if made.mixer is not None and made.mixer.numbered:
        _number(module)
    if next(made.parameters(), None) is not None and not _preparing:
        raise UsageError(
            f'attn_implementation="{name}" has parameters, which this model lacks; call '
            f"{__name__}.prepare(model) once, before its optimiser is made"
        )
    setattr(module, ATTRIBUTE, made.train(module.training))
    return made


def _find_site(module: Any) -> str:
    """Return where a module attends: "encoder", "decoder" or "cross"."""
    if getattr(module, "is_causal", False):
        return "decoder"
    config = getattr(module, "config", None)
    decodes = getattr(module, "is_decoder", False) or getattr(config, "is_decoder", False)
    return "cross" if decodes else "encoder"


def _number(module: Any) -> int:
    """Return the number of a module's layer; raise UsageError if it does not know it."""
    if (layer := getattr(module, "layer_idx", None)) is None:
        raise UsageError(
            f"{type(module).__name__} does not know the number of its layer (layer_idx), which "
            "recorders and differential attention need; give another model"
        )
    return int(layer)
