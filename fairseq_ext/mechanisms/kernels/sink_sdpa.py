"""Softmax with a sink on torch's fused attention.

The kernel for CPUs returns the logsumexp l of each row. With the sink's logit b the weights are
exp(s - t), t = log(exp(l) + exp(b)): the output is the kernel's times exp(l - t). The kernel's
gradient computes exp(s - l') and sum(dO * O') from a logsumexp l' and an output O' that it gets.
From t and the output with a sink it computes exactly the gradient here; the gradient of b is minus
the sum of exp(b - t) sum(dO * O') over rows.

Elsewhere the sink is one more key, whose value is 0. Queries and keys get further dimensions, in
which only this key is not 0: they make its score b.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.attention.masks import Mask, as_bias, mask_future

MORE = 8  # dimensions: kernels for GPUs want multiples of it


def attend(call: HeadCall, mask: Mask, sink: Tensor) -> Tensor:
    """Return dropout(weights) @ v, [B, h, T, D], with the logits `sink` [h]."""
    if call.q.device.type == "cpu" and not call.dropout:
        return _CpuSink.apply(
            call.q, call.k, call.v, sink, as_bias(mask, call.q.dtype), mask.causal
        )
    return attend_with_key(call.q, call.k, call.v, sink, mask, call.dropout)


class _CpuSink(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor, bias: Tensor | None, causal: bool
    ) -> Tensor:
        ctx.options = {"attn_mask": bias}
        ctx.causal = causal
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, rows = kernel(q, k, v, 0.0, causal, attn_mask=bias)
        total = rows.logaddexp(sink[:, None].to(rows.dtype))
        out = out * (rows - total).exp()[..., None].to(out.dtype)
        ctx.save_for_backward(q, k, v, sink, out, total)
        return out

    @staticmethod
    @first_derivative_only("attention with a sink on a CPU")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, out, total = ctx.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = kernel(gradient, q, k, v, out, total, 0.0, ctx.causal, **ctx.options)
        share = (sink[:, None].to(total.dtype) - total).exp()  # of the sink in each row
        of_sink = -(share * (gradient * out).sum(-1)).sum((0, 2)).to(sink.dtype)
        return *grads, of_sink, None, None


def attend_with_key(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor, mask: Mask, dropout: float = 0.0
) -> Tensor:
    """Return the same by torch's attention with one more key, on any device."""
    batch, width = len(k), k.size(-1)
    bias = mask_future(q, k, q.dtype) if mask.causal else as_bias(mask, q.dtype)
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))  # as in memory: gradients are not copied
    q = F.pad(q, (0, MORE), value=width**0.5)  # which the scale takes away
    own = F.pad(sink[:, None].to(k.dtype), (width, MORE - 1))  # [h, width + MORE]
    k = torch.cat([F.pad(k, (0, MORE)), own.expand(1, batch, -1, -1)])
    v = F.pad(v, (0, MORE, 0, 0, 0, 0, 0, 1))
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    bias = None if bias is None else F.pad(bias, (0, 1))
    scale = width**-0.5
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    return out[..., :width]
