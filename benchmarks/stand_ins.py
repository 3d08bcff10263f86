"""What stands in for a GPU while a step is counted: a mode of torch, and functions by hand.

Where a GPU has one operation and the device "meta" has several or none, it is counted by hand:
attention by SDPA, dropout, RMS norm and each Triton kernel are one operation each way. Views are
none.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any
from unittest import mock

import torch
from fairseq import utils
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fairseq_ext.mechanisms.kernels import triton_launch
from fairseq_ext.patches import adam

FREE = frozenset(
    "detach detach_ view view_as_real view_as_complex t transpose permute expand expand_as squeeze "
    "squeeze_ unsqueeze unsqueeze_ slice select split split_with_sizes unbind narrow chunk alias "
    "as_strided unfold diagonal _unsafe_view _reshape_alias empty empty_like empty_strided "
    "new_empty new_empty_strided resize_ set_ lift_fresh is_same_size sym_size numel promote_types "
    "_local_scalar_dense conj _conj real imag "
    "_record_function_enter_new _record_function_exit".split()
)
"""Operations that issue nothing: views, memory and marks for a profile."""

IN_PLACE = ("_fused_adam", "_foreach_copy")  # that "meta" does not know


class Count(TorchDispatchMode):
    """Mode of torch that counts what is dispatched, and answers where "meta" has no number.

    Args:
        chosen: share of elements that a boolean index takes, as masked words of a batch; 0: none.
    """

    def __init__(self, chosen: float) -> None:
        super().__init__()
        self.chosen, self.phase = chosen, "forward"
        self.places: Counter[tuple[str, str, str]] = Counter()
        self.waits: Counter[tuple[str, str]] = Counter()

    def note(self, name: str, times: int = 1) -> None:
        """Count an operation."""
        if name not in FREE:
            self.places[self.phase, name, find_place()] += times

    def wait(self, kind: str) -> None:
        """Count a wait."""
        self.waits[kind, find_place()] += 1

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name, kwargs = function._schema.name.partition("::")[2], kwargs or {}
        tensors = [x for x in args if isinstance(x, Tensor)]
        if any(x.is_meta for x in tensors):
            answer = getattr(self, f"_{name.strip('_')}", None)
            if answer:
                return answer(function, args, kwargs)
        if name == "_to_copy" and str(kwargs.get("device")) == "meta":
            return self._copy_to_gpu(args[0], kwargs)
        self.note(name)
        if name.startswith(IN_PLACE):
            return None
        return function(*args, **kwargs)

    def _local_scalar_dense(self, function: Any, args: tuple, kwargs: dict) -> Any:
        self.wait("item")
        return {torch.bool: True}.get(args[0].dtype, 1.0 if args[0].is_floating_point() else 1)

    def _equal(self, function: Any, args: tuple, kwargs: dict) -> bool:
        self.note("equal")
        self.wait("equal")
        return True

    def _nonzero(self, function: Any, args: tuple, kwargs: dict) -> Tensor:
        self.note("nonzero")
        self.wait("nonzero")
        return self._indices(args[0], args[0].dim())

    def _masked_select(self, function: Any, args: tuple, kwargs: dict) -> Tensor:
        self.note("masked_select")
        self.wait("masked_select")
        return args[0].new_empty(self._many(args[0]))

    def _to_copy(self, function: Any, args: tuple, kwargs: dict) -> Tensor:
        self.note("_to_copy")
        if str(kwargs.get("device")) != "cpu":
            return function(*args, **kwargs)
        if not kwargs.get("non_blocking"):
            self.wait("to cpu")
        return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)

    def _copy_to_gpu(self, x: Tensor, kwargs: dict) -> Tensor:
        self.note("_to_copy")
        if not x.is_meta and not kwargs.get("non_blocking"):
            self.wait("to gpu")
        return torch.empty(x.shape, dtype=kwargs.get("dtype") or x.dtype, device="meta")

    def _index(self, function: Any, args: tuple, kwargs: dict) -> Any:
        self.note(function._schema.name.partition("::")[2])
        x, indices, *others = args
        with _disable_current_modes():
            known = [part for index in indices for part in self._to_numbers(index)]
            return function(x, known, *others, **kwargs)

    _index_put = _unsafe_index = _index

    def _to_numbers(self, index: Tensor | None) -> list[Tensor | None]:
        """Return an index as one of whole numbers; a boolean one needs the GPU's answer."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        self.note("nonzero")
        self.wait("boolean index")
        return [*self._indices(index, index.dim()).unbind(1)]

    def _indices(self, x: Tensor, width: int) -> Tensor:
        return torch.empty(self._many(x), width, dtype=torch.long, device="meta")

    def _many(self, x: Tensor) -> int:
        return max(1, int(x.numel() * self.chosen)) if self.chosen else 0


def find_place() -> str:
    """Return the file and line of the package or fairseq that asks for what is counted."""
    frame: FrameType | None = sys._getframe(2)
    while frame:
        for package in ("fairseq_ext", "fairseq"):
            _, found, file = frame.f_code.co_filename.rpartition(f"/{package}/")
            if found:  # the last folder of that name
                return f"{package}/{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"


def _outside(count: Count, name: str, make: Any) -> Any:
    """Return what `make` makes, uncounted, and count one operation in its place."""
    count.note(name)
    with _disable_current_modes():
        return make()


def _one_operation(count: Count) -> tuple[Any, Any, Any]:
    """Return functions for SDPA, `dropout` and `rms_norm`, one operation each way."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            out = _outside(count, "sdpa", lambda: q.new_empty(*q.shape[:-1], v.size(-1)))
            ctx.save_for_backward(q, k, v, bias, out)
            return out

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> Any:
            *inputs, _ = ctx.saved_tensors
            made = [x if x is None else torch.empty_like(x) for x in inputs]
            given = [
                x if need else None for x, need in zip(made, ctx.needs_input_grad, strict=True)
            ]
            return _outside(count, "sdpa_backward", lambda: tuple(given))

    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            kept = _outside(count, "dropout", lambda: torch.empty_like(x, dtype=torch.bool))
            ctx.save_for_backward(kept)
            with _disable_current_modes():
                return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> Tensor:
            return _outside(count, "dropout_backward", lambda: torch.empty_like(slope))

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return _outside(count, "rms_norm", lambda: torch.empty_like(x))

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
            x, weight = ctx.saved_tensors
            pair = _outside(count, "rms_norm_backward", lambda: map(torch.empty_like, (x, weight)))
            return tuple(pair)

    def attend(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
    ) -> Tensor:
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:  # torch writes a bias of it: a number, and where
                count.note("mask to bias", 2)
                with _disable_current_modes():
                    attn_mask = q.new_empty(attn_mask.shape)
            if any(stride % 8 for stride in attn_mask.stride()[:-1]):
                count.note("bias padded to 8", 2)
            if attn_mask.requires_grad:  # the slope of each head, which are added then
                attn_mask = attn_mask.expand(*q.shape[:3], k.size(2))
        return Attention.apply(q, k, v, attn_mask)

    def drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return Dropout.apply(x) if training and p else x

    def norm(x: Tensor, shape: Any, weight: Tensor, eps: float) -> Tensor:
        if not x.is_contiguous():
            count.note("clone")
        return Norm.apply(x, weight)

    return attend, drop, norm


@contextmanager
def standing_in(count: Count) -> Iterator[None]:
    """Put what is counted by hand in the place of torch's and the package's functions."""
    attend, drop, norm = _one_operation(count)

    def to_gpu(make: Any) -> Any:
        """Return a function that makes a tensor of Python's numbers, which the GPU waits for."""

        def made(*args: Any, **kwargs: Any) -> Tensor:
            owner = args[0] if isinstance(args[0], Tensor) else None
            if str(kwargs.get("device")) == "meta" or owner is not None and owner.is_meta:
                count.note("host to device")
                count.wait("to gpu")
            return make(*args, **kwargs)

        return made

    def to_cpu(read: Any) -> Any:
        """Return a method that reads a tensor."""

        def copied(x: Tensor) -> Any:
            if not x.is_meta:
                return read(x)
            count.note("device to host")
            count.wait("to cpu")
            with _disable_current_modes():
                return read(torch.ones(x.shape, dtype=x.dtype))

        return copied

    def run(kernels: Any, kernel: str, *_: Any, **__: Any) -> None:
        count.note(f"triton {kernel}")

    stands_in = mock.patch.object
    with ExitStack() as stack:
        for patch in (
            stands_in(F, "scaled_dot_product_attention", attend),
            stands_in(F, "dropout", drop),
            stands_in(F, "rms_norm", norm),
            stands_in(triton_launch, "runs", lambda *_: True),
            stands_in(triton_launch, "run", run),
            stands_in(adam, "DEVICES", (*adam.DEVICES, "meta")),
            stands_in(utils, "torch", _OnGpu()),
            stands_in(torch, "autocast", lambda *_, **__: nullcontext()),  # "meta" has none
            stands_in(torch, "tensor", to_gpu(torch.tensor)),
            stands_in(torch, "as_tensor", to_gpu(torch.as_tensor)),
            stands_in(Tensor, "new_tensor", to_gpu(Tensor.new_tensor)),
            stands_in(Tensor, "tolist", to_cpu(Tensor.tolist)),
            stands_in(Tensor, "cpu", to_cpu(Tensor.cpu)),
        ):
            stack.enter_context(patch)
        yield


class _OnGpu:
    """The module torch, as fairseq's norm of gradients sees it where there is a GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: str) -> torch.device:
        return torch.device("meta")


def to_meta(value: Any) -> Any:
    """Return a batch, or a part of one, on the device "meta"."""
    if isinstance(value, Tensor):
        return value.to("meta", non_blocking=True)
    if isinstance(value, dict):
        return {key: to_meta(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(to_meta, value))
    return value


def move_to_meta(module: nn.Module) -> None:
    """Move parameters, which stay shared, buffers and tensors in attributes."""
    moved: dict[Tensor, Tensor] = {}
    for part in module.modules():
        for name, old in part._parameters.items():
            if old is not None and old not in moved:
                moved[old] = nn.Parameter(torch.empty_like(old, device="meta"), old.requires_grad)
                moved[old].__dict__.update(old.__dict__)
            part._parameters[name] = old if old is None else moved[old]
        for held in (part._buffers, part.__dict__):
            held.update({k: x.to("meta") for k, x in held.items() if isinstance(x, Tensor)})
