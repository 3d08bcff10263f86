"""Layers whose computation torch.compile translates, once for all layers of a class: --compile.

What is compiled is a function of the layer, so that modules, and the names of their parameters in a
checkpoint, stay as they are.
"""

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.attention import Attention, AttentionRecorder, Inputs
from fairseq_ext.errors import UsageError
from fairseq_ext.permissions import is_given

FLAG = "--compile"
OLDEST = (2, 7)
"""The first torch that traces generators, of which attention has some."""

MOST = 64
"""Compilations of a class of layers: with padding or none, in training or not, with other heads."""


def is_compiled() -> bool:
    """Return whether layers are to be compiled; raise UsageError if they cannot be."""
    check_compilation()
    return is_given(FLAG)


def check_compilation() -> None:
    """Raise UsageError if the flag is given where layers cannot be compiled."""
    if is_given(FLAG):
        check_compiler()


def check_compiler() -> None:
    """Raise UsageError if torch is too old to compile layers, or what it needs is missing."""
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < OLDEST:
        raise UsageError(
            f"{FLAG} needs torch {'.'.join(map(str, OLDEST))} or newer, and this is "
            f"{torch.__version__}; install a newer one, or leave the flag out"
        )
    if torch.cuda.is_available():
        from torch.utils._triton import has_triton

        if not has_triton():
            raise UsageError(
                f"{FLAG} needs Triton on a GPU, which is not installed or does not know this one; "
                "pip install triton, or leave the flag out"
            )
    elif shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        raise UsageError(
            f"{FLAG} needs a GPU or a C++ compiler, and there is no {compiler}; install one, name "
            "another in CXX, or leave the flag out"
        )


def check_model(model: nn.Module) -> None:
    """Raise UsageError if the flag is given, and nothing of a model is compiled."""
    if is_given(FLAG) and not any(getattr(part, "compiled", False) for part in model.modules()):
        raise UsageError(
            f"{FLAG} compiles the layers of our models, and this one has none; leave it out, or "
            "give an --arch of ours, such as transformer_una"
        )


@cache
def compile_function(function: Callable) -> Callable:
    """Return a function compiled for all sizes, and so for all layers that it gets."""
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST)
    return torch.compile(function, dynamic=True)


class LayerRecorder(AttentionRecorder):
    """A recorder of one layer, which does not know its number: one graph is that of all layers.

    Args:
        recorder: of the whole model.
        attentions: of the layer.

    Attributes:
        recorded: site -> maps.
    """

    def __init__(self, recorder: AttentionRecorder, attentions: Sequence[Attention]) -> None:
        heads = {each.site: recorder.wants(each.site, each.layer) for each in attentions}
        super().__init__(lambda site, layer: heads[site], dropped=recorder.dropped)
        self.recorder, self.attentions = recorder, attentions
        self.recorded: dict[str, Tensor] = {}

    def record(self, site: str, layer: int, maps: Tensor) -> None:
        """Keep the maps [B, wanted heads, T, S] of a site."""
        self.recorded[site] = maps

    def pass_on(self) -> None:
        """Give the maps to the recorder of the model."""
        for each in self.attentions:
            if each.site in self.recorded:
                self.recorder.record(each.site, each.layer, self.recorded[each.site])


def run_compiled(function: Callable, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return `function(layer, …)`, compiled.

    The steps of beam search and second passes are computed as they are: a cache grows under the
    name of its layer, and a second pass counts by layer.
    """
    inputs = [x for x in (*args, *kwargs.values()) if isinstance(x, Inputs)]
    stepwise = any(isinstance(x, dict) for x in (*args, *kwargs.values()))
    if stepwise or any(tuple(each.passes) != (None,) for each in inputs):
        return function(layer, *args, **kwargs)
    recorders = [each.recorder for each in inputs if each.recorder is not None]
    own = None
    if recorders:
        attentions = [m for m in layer.modules() if isinstance(m, Attention)]
        own = LayerRecorder(recorders[0], attentions)

    def prepare(x: Any) -> Any:
        if isinstance(x, Tensor):  # the first layer gets [B, T, C] transposed, others do not
            return x.contiguous()
        return replace(x, recorder=own) if isinstance(x, Inputs) else x

    args = tuple(map(prepare, args))
    kwargs = {name: prepare(x) for name, x in kwargs.items()}
    result = compile_function(function)(layer, *args, **kwargs)
    if own is not None:
        own.pass_on()
    return result
