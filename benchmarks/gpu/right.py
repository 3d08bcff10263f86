"""Stage 1, *right*: kernels against the plain form in float64, and a step of every family.

A kernel's output and gradients may differ from those of the plain form by BOUNDS, as norms; the
loss of a training step from that of the same step on a CPU in float32 by LOSSES.
"""

import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import asa
import pretraining
import steps
import torch
import training
from fairseq.logging import metrics
from families import FAMILIES
from items import Item, Options
from torch import Tensor

from fairseq_ext.attention import AttentionContext, HeadGroup, Inputs
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask
from fairseq_ext.attention.normalisers import build_normaliser
from fairseq_ext.mechanisms.doubly import GPU_KERNELS
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads
from fairseq_ext.mechanisms.kernels import triton_launch

WORKERS = min(14, max(1, (os.cpu_count() or 1) - 2))  # all of them on one GPU
ROOT = Path(__file__).parents[2]

TESTS = ("tests/test_triton.py", "tests/test_guided_triton.py")
KERNELS = ("doubly triton", "hybrid triton", "softmax", "gaussian")
LENGTHS = (1, 2, 17, 64, 129, 512, 1000, 2048, 4096, 8192)
WIDTHS = (32, 64, 128)
DTYPES = ("float32", "float16", "bfloat16")
SIDES = ("none", "left", "right")
BOUNDS = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3.2e-2}
SCORES, FEW_SCORES = 2**24, 2**11  # at most so many at a time; on a GPU, and dry
DROPOUT = 0.3

MODES = {
    "fp32": [],
    "fp16": ["--fp16", "--fp16-init-scale", "4"],
    "bf16": ["--bf16"],
    "amp": ["--amp", "--amp-init-scale", "4"],
    "memory-efficient-fp16": ["--memory-efficient-fp16", "--fp16-init-scale", "4"],
}
LOSSES = {"fp32": 1e-4, **dict.fromkeys(list(MODES)[1:], 3e-2)}
NOISE = 3e-2  # for losses with noise, which a GPU draws in another way
ON_CPU = ("fp32", "bf16")  # modes
NO_DROPOUT = "--dropout 0 --attention-dropout 0 --activation-dropout 0".split()


def plan(options: Options) -> list[Item]:
    items = [Item("tests", file, run_tests, (file,)) for file in TESTS if not options.dry]
    sizes = [(n, d) for n in LENGTHS for d in WIDTHS]
    dtypes: Sequence[str] = DTYPES
    if options.dry:
        sizes, dtypes = [(1, 32), (33, 32)], ("float32", "float16")
    modes = ON_CPU if options.dry else MODES
    items += [
        Item("training step", f"{family}, {mode}", check_step, (family, mode))
        for mode in modes
        for family in FAMILIES
        if not options.dry or mode == "fp32" or family in ("dna", "masked_lm_ag", "asa")
    ]
    items += [
        Item("dropout", f"{name}, {DROPOUT}", check_dropout, (name,))
        for name in ("softmax", "doubly triton", "hybrid triton")
    ]
    items += [
        Item(
            "kernels", f"{name}, {dtype}, length {n}, width {d}", check_kernel, (name, dtype, n, d)
        )
        for name in KERNELS
        for n, d in sizes
        for dtype in dtypes
    ]
    return items


def prepare(options: Options) -> None:
    """Write synthetic data of all tasks, and interpret Triton where there is no GPU."""
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # of the worker, before it imports Triton
    for module in (training, pretraining, asa):
        folder = options.runs / module.__name__
        if not folder.exists():
            with TemporaryDirectory(dir=options.runs) as partial:
                module.write_synthetic(Path(partial), 500, 1)
                if module is pretraining:
                    with Path(partial, "dict.txt").open("a") as symbols:
                        symbols.write("<mask> 0\n")  # that replaced tokens need
                shutil.copytree(partial, folder)


def run_tests(options: Options, file: str) -> dict[str, Any]:
    """Run tests of kernels on the GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, file], cwd=ROOT, capture_output=True, text=True)
    log = options.runs / f"{Path(file).stem}.log"
    log.write_text(done.stdout + done.stderr, "utf-8")
    last = done.stdout.rstrip().split("\n")[-1]
    if done.returncode:
        raise AssertionError(f"{last} ({log})")
    return {name: int(number) for number, name in re.findall(r"(\d+) (passed|skipped)", last)}


# Kernels.


def check_kernel(
    options: Options, name: str, dtype: str, length: int, width: int
) -> dict[str, Any]:
    """Compare outputs and gradients, without padding and with it on both sides."""
    worst: dict[str, float] = {}
    for side in SIDES if length > 2 else SIDES[:1]:
        for part, error in errors(name, dtype, length, width, side, options).items():
            worst[part] = max(worst.get(part, 0.0), error)
    bound = BOUNDS[dtype]
    if wrong := {part: error for part, error in worst.items() if not error <= bound}:
        raise AssertionError(f"relative errors {wrong}, at most {bound}")
    return {part: f"{error:.1e}" for part, error in worst.items()}


def errors(
    name: str, dtype: str, length: int, width: int, side: str, options: Options
) -> dict[str, float]:
    """Return ||fused - plain|| / ||plain|| of the output and of each gradient."""
    torch.manual_seed(length + width)
    device, scores = options.device, FEW_SCORES if options.dry else SCORES
    heads = max(1, min(8, scores // length**2))
    batch = max(1, min(2, scores // (heads * length**2)))
    shape = (batch, heads, length, width)
    inputs = [torch.randn(shape, device=device, dtype=getattr(torch, dtype)) for _ in range(4)]
    padding = pad(side, batch, length, device)
    group = build_group(name, heads).to(device)
    fused = outcome(group, inputs, padding, observed=False)
    plain = outcome(group.double(), [x.double() for x in inputs], padding, observed=True)
    named = zip(("output", "dq", "dk", "dv", "du"), fused, plain, strict=False)
    q, k, v, probe = (x.double() for x in inputs)
    terms = {"du": (probe * plain[0]).norm()}  # of sums that may cancel
    if length == 1:  # whose only weight is 1, so that dq and dk are 0
        slope = (probe * v).sum(-1, keepdim=True) / width**0.5
        terms |= {"dq": (slope * k).norm(), "dk": (slope * q).norm()}
    return {
        part: distance(ours, theirs, terms.get(part, q.new_tensor(1.0)))
        for part, ours, theirs in named
        if theirs is not None
    }


def distance(ours: Tensor | None, theirs: Tensor, least: Tensor) -> float:
    """Return ||ours - theirs|| / ||theirs||; a norm below `least` counts as that."""
    if ours is None:
        raise AssertionError("the gradient is missing")
    return ((ours.double() - theirs).norm() / theirs.norm().maximum(least)).item()


def build_group(name: str, heads: int) -> HeadGroup:
    kind, _, kernel = name.partition(" ")
    if kind == "gaussian":
        return build_gaussian_heads([(-1.0) ** head for head in range(heads)], [1.0] * heads)
    options = {"hna_init": 0.3, "hna_weight": "sigmoid", "doubly_kernel": kernel or "none"}
    return HeadGroup(heads, normaliser=build_normaliser(kind, heads, **options))


def pad(side: str, batch: int, length: int, device: str) -> Tensor | None:
    """Return padding [B, T] of a third of the last sentence."""
    if side == "none":
        return None
    at, padded = torch.arange(length, device=device), torch.zeros(batch, 1, device=device)
    padded[-1] = length // 3
    return at < padded if side == "left" else at >= length - padded


def outcome(
    group: HeadGroup, inputs: Sequence[Tensor], padding: Tensor | None, observed: bool
) -> list[Tensor | None]:
    """Return the output at real queries, and gradients of q, k, v and the hybrid weights."""
    *qkv, probe = inputs
    q, k, v = (x.detach().requires_grad_() for x in qkv)
    context = AttentionContext(Inputs(padding), q.size(2), k.size(2), 0, q.device, padding, padding)
    call = HeadCall(q, k, v, context, slice(0, group.num_heads))
    if not observed:
        assert_fused(group, call, padding)
    out = group.attend(call, observed)[0]
    if padding is not None:
        out, probe = (x.masked_fill(padding[:, None, :, None], 0) for x in (out, probe))
    leaves = [q, k, v, *group.parameters()]
    return [out, *torch.autograd.grad((out * probe).sum(), leaves, allow_unused=True)]


def assert_fused(group: HeadGroup, call: HeadCall, padding: Tensor | None) -> None:
    """Fail if a kernel of DNA declines, so that the plain form would be compared with itself."""
    doubly = getattr(group.normaliser, "doubly", group.normaliser)
    kernel = GPU_KERNELS.get(getattr(doubly, "kernel", "none"))
    mask = Mask(None if padding is None else padding[:, None, None])
    if kernel and not kernel.supports(call.q, call.k, mask):
        raise AssertionError(f"{kernel.__name__} declines")


def check_dropout(options: Options, name: str) -> dict[str, Any]:
    """Read the dropped weights of fused attention off its output, with v = 1."""
    length = 64
    q, k = (torch.randn(2, 4, length, length, device=options.device) for _ in range(2))
    v = torch.eye(length, device=options.device).expand_as(q)
    context = AttentionContext(Inputs(), length, length, 0, q.device)
    call = HeadCall(q, k, v, context, slice(0, 4), DROPOUT)
    group = build_group(name, 4).to(options.device)
    assert_fused(group, call, None)
    dropped = group.attend(call, False)[0]
    kept = dropped != 0
    weights = group.attend(call._replace(dropout=0.0), True)[0] / (1 - DROPOUT)
    torch.testing.assert_close(dropped[kept], weights[kept], atol=1e-5, rtol=1e-4)
    share, deviation = 1 - kept.double().mean().item(), (DROPOUT * 0.7 / kept.numel()) ** 0.5
    assert abs(share - DROPOUT) < 5 * deviation, f"{share} of the weights are dropped"
    return {"dropped": f"{share:.4f}"}


# Families.


def check_step(options: Options, family: str, mode: str) -> dict[str, Any]:
    """Compare the loss of the first step with that on a CPU; look for parameters not finite."""
    module, flags = FAMILIES[family]
    line = [*common(module, options), *flags.split(), *NO_DROPOUT]
    # dry, not in Triton's interpreter
    plain = patch.object(triton_launch, "runs", lambda *_: False)
    with plain if options.dry else nullcontext():
        reference, _ = step(line, Namespace(device="cpu"))
        loss, finite = step([*line, *MODES[mode]], Namespace(device=options.device))
    error = abs(loss - reference) / abs(reference)
    bound = NOISE if family.startswith("freelb") else LOSSES[mode]
    if not (error <= bound and finite):
        raise AssertionError(f"loss {loss}, on a CPU {reference}; parameters finite: {finite}")
    return {"loss": f"{loss:.4f}", "relative error": f"{error:.1e}"}


def common(module: Any, options: Options) -> list[str]:
    """Return data and flags of a family's task."""
    folder = options.runs / module.__name__
    if module is training:
        return [str(folder), *training.FLAGS]
    if module is pretraining:
        return [str(folder), *pretraining.FLAGS, "--tokens-per-sample", "64"]
    return [
        str(folder / "128"),
        "--vocabulary",
        str(folder),
        "--tokens-per-sample",
        "128",
        "--task",
        "sentence_classification",
    ]


def step(line: list[str], place: Namespace) -> tuple[float, bool]:
    """Return the loss of the first training step, and whether parameters are finite after three."""
    args = Namespace(**vars(place), max_tokens=512, seed=1, precision="fp32")
    torch.manual_seed(1)
    metrics.reset()  # of another task
    candidate = steps.build_candidate(line, args)
    batches = steps.read_batches(candidate, 3)
    trainer, losses = steps.build_trainer(candidate), []
    for batch in batches:
        log = trainer.train_step([batch])
        losses.append(float(log["loss"]) if log else float("nan"))  # None after an overflow
    return losses[0], all(bool(x.isfinite().all()) for x in candidate.model.parameters())
