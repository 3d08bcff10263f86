"""Time and memory of every way to normalise attention, as multiples of plain attention.

Forward and backward between the projections are measured, as `Attention` runs them in training
without dropout: 8 heads of width 64, batches of 8 or fewer. The peer is torch's
scaled_dot_product_attention (SDPA) on the same tensors.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import measure
import torch
import torch.nn.functional as F
from measure import AGAIN, Aim, Quiet, Row, Table, Work
from torch import Tensor

from fairseq_ext.attention import (
    MIXERS,
    NORMALISERS,
    AttentionContext,
    HeadGroup,
    Inputs,
    build_normaliser,
)
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads
from fairseq_ext.models.options import OPTIONS

SDPA = "SDPA"
HEADS, BATCH, WIDTH = 8, 8, 64
SCORES = {"cpu": 2**26, "cuda": 2**30}
DEFAULTS = {name: field.default for name, _, field in OPTIONS}
QUIET = Quiet(deviation=0.03, spread=0.1)
AIMS = [  # on a CPU, in float32
    *(Aim(str(n), "doubly", limit) for n, limit in ((128, 1.1), (512, 1.2), (1024, 1.2))),
    *(Aim(str(length), "hybrid", 1.5) for length in (128, 512, 1024)),
    Aim("memory at 2048", "doubly", 1.1),
]


@dataclass(frozen=True)
class Problem:
    """Tensors as fairseq lays them out: q, k and v [B, H, T, D] are views of [T, B, C]."""

    qkv: tuple[Tensor, Tensor, Tensor]
    context: AttentionContext
    grad: Tensor  # [T, B, C]

    @property
    def heads(self) -> int:
        return self.qkv[0].size(1)

    @property
    def padding(self) -> Tensor | None:
        """[B, 1, 1, S] or None."""
        mask = self.context.key_padding
        return None if mask is None else mask[:, None, None]


def build_problem(length: int, args: argparse.Namespace) -> Problem:
    groups = max(1, min(HEADS * BATCH, args.scores // length**2))
    heads = min(HEADS, groups)
    batch = groups // heads
    place = {"device": args.device, "dtype": getattr(torch, args.dtype)}
    q, k, v = (
        torch.randn(length, batch, heads, WIDTH, **place).permute(1, 2, 0, 3).requires_grad_()
        for _ in range(3)
    )
    padding = ragged(batch, length, args.padding).to(args.device) if args.padding else None
    inputs = Inputs(padding)
    context = AttentionContext(
        inputs, length, length, 0, q.device, padding, inputs.padded_queries()
    )
    return Problem((q, k, v), context, torch.randn(length, batch, heads * WIDTH, **place))


def ragged(batch: int, length: int, share: float) -> Tensor:
    """Return padding [B, S] on the left, where fairseq pads the source: 0 to twice the share."""
    longest = torch.linspace(0, 2 * share * length, batch) if batch > 1 else share * length
    return torch.arange(length) < torch.as_tensor(longest).round().view(-1, 1)


Candidate = tuple[Callable[[], Tensor], Iterable[Tensor]]
"""A function that computes [B, H, T, D] of a problem, and the parameters that it trains."""


def sdpa(problem: Problem) -> Candidate:
    allowed = None if problem.padding is None else ~problem.padding
    return lambda: F.scaled_dot_product_attention(*problem.qkv, attn_mask=allowed), ()


def ours(name: str, **options: object) -> Callable[[Problem], Candidate]:
    def build(problem: Problem) -> Candidate:
        heads, q = problem.heads, problem.qkv[0]
        normaliser = build_normaliser(name, heads, **(DEFAULTS | options))
        group = HeadGroup(heads, normaliser=normaliser).to(q.device, q.dtype)
        call = HeadCall(*problem.qkv, problem.context, slice(0, heads))
        return lambda: group.attend(call, observed=False)[0], group.parameters()

    return build


def mixed(name: str) -> Callable[[Problem], Candidate]:
    """Build softmax heads with a mixer."""

    def build(problem: Problem) -> Candidate:
        heads, q = problem.heads, problem.qkv[0]
        mixer = MIXERS.build(name, heads, width=WIDTH, layer=0)
        assert mixer is not None
        mixer.to(q.device, q.dtype)
        group = HeadGroup(heads, normaliser=build_normaliser("softmax", heads))
        call = HeadCall(*problem.qkv, problem.context, slice(0, heads))
        return lambda: group.attend(call, False, mixer)[0], mixer.parameters()

    return build


def gaussian(problem: Problem) -> Candidate:
    """Build hard-coded heads."""
    group = hard_coded(problem.heads)
    call = HeadCall(*problem.qkv, problem.context, slice(0, problem.heads))
    return lambda: group.attend(call, observed=False)[0], ()


def convolution(problem: Problem) -> Candidate:
    """Build the same by torch's grouped convolution, cut off where the density is below 1e-7."""
    (_, _, v), padding = problem.qkv, problem.padding
    offsets = torch.tensor(hard_coded(problem.heads).scorer.offsets).to(v)[:, None]
    reach = torch.arange(-7.0, 8.0).to(v)
    taps = torch.exp(-0.5 * (reach - offsets).square()) / math.sqrt(2 * math.pi)
    kernel = taps.repeat_interleave(WIDTH, 0)[:, None]

    def attend() -> Tensor:
        kept = v if padding is None else v.masked_fill(padding.mT, 0)
        channels = kept.mT.flatten(1, 2)
        return F.conv1d(channels, kernel, padding=7, groups=len(kernel)).view_as(v.mT).mT

    return attend, ()


def hard_coded(heads: int) -> HeadGroup:
    return build_gaussian_heads([-1.0, 1.0] * (heads // 2) + [-1.0] * (heads % 2), [1.0] * heads)


def textbook(weights: Callable[[Tensor, Tensor | None], Tensor]) -> Callable[[Problem], Candidate]:
    """Build a form of DNA that keeps maps, from a function of scores and padding."""

    def build(problem: Problem) -> Candidate:
        (q, k, v), padding = problem.qkv, problem.padding

        def attend() -> Tensor:
            scores = (q * WIDTH**-0.5) @ k.mT
            lowest = torch.finfo(scores.dtype).min
            return weights(fill(scores, padding, -2, lowest), padding) @ v

        return attend, ()

    return build


def literal(scores: Tensor, padding: Tensor | None) -> Tensor:
    """Normalise as the paper writes it: divide by the sums of columns, then by the sums of rows."""
    c = fill(scores.softmax(-2), padding, -1, 0.0)
    return c / c.sum(-1, keepdim=True).clamp_min(torch.finfo(c.dtype).tiny)  # padded queries: 0


def log_form(scores: Tensor, padding: Tensor | None) -> Tensor:
    return fill(scores - scores.logsumexp(-2, keepdim=True), padding, -1, -math.inf).softmax(-1)


def fill(x: Tensor, padding: Tensor | None, axis: int, value: float) -> Tensor:
    """Fill the padding [B, 1, 1, S] of x [B, H, T, S] along an axis, -1 keys or -2 queries."""
    return x if padding is None else x.masked_fill(padding.transpose(-1, axis), value)


CANDIDATES: dict[str, Callable[[Problem], Candidate]] = {
    SDPA: sdpa,
    AGAIN: sdpa,
    **{name: ours(name) for name in NORMALISERS if name != "sinkhorn"},
    **{f"sinkhorn {sweeps}": ours("sinkhorn", sinkhorn_sweeps=sweeps) for sweeps in (2, 5)},
    **{name: mixed(name) for name in MIXERS if name != "none"},
    "literal DNA": textbook(literal),
    "log DNA": textbook(log_form),
    "gaussian": gaussian,
    "conv1d": convolution,
}


def step(name: str, problem: Problem) -> Work:
    """Build forward and backward of a candidate, from q, k and v to the output projection."""
    attend, parameters = CANDIDATES[name](problem)
    inputs = [*problem.qkv, *parameters]

    def run(_: int) -> None:
        # [B, H, T, D] -> [T, B, C]
        output = attend().permute(2, 0, 1, 3).flatten(2)
        torch.autograd.grad(output, inputs, problem.grad, allow_unused=True)

    return run


def fits(work: Work) -> bool:
    """Return whether a GPU has room for the work."""
    try:
        work(0)
    except torch.OutOfMemoryError:
        return False
    return True


def time_row(length: int, args: argparse.Namespace) -> Row:
    problem = build_problem(length, args)
    steps = {name: step(name, problem) for name in args.only}
    steps = {name: work for name, work in steps.items() if fits(work)}
    seconds = measure.interleave(
        steps, SDPA, args.rounds, measure.clock(args), args.seed, str(length)
    )
    return measure.compare(str(length), seconds, SDPA, 1e3)


def extra_memory(name: str, args: argparse.Namespace) -> float:
    """Return the extra peak memory of a candidate in MiB."""
    measure.prepare(args)
    step(name, build_problem(128, args))(0)  # load what is loaded on first use
    work = step(name, build_problem(args.memory_length, args))
    return measure.extra_memory(lambda: work(0), args.device)


def memory_row(args: argparse.Namespace) -> Row:
    def alone(name: str) -> float:
        if args.device == "cuda":
            return extra_memory(name, args)
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(extra_memory, name, args).result()

    names = [name for name in args.only if name != AGAIN]
    progress = measure.tqdm(names, "memory", disable=None, leave=False)
    measured = {name: [alone(name)] for name in progress}
    return measure.compare(f"memory at {args.memory_length}", measured, SDPA, 1.0)


# Command line.


def parse() -> argparse.Namespace:
    example = "python benchmarks/attention.py --lengths 128 512 --only doubly hybrid --threads 1"
    parser = measure.build_parser(__doc__, example)
    parser.add_argument(
        "--lengths",
        nargs="*",
        type=measure.positive,
        default=[2**n for n in range(5, 12)],
        metavar="T",
        help="queries and keys to be timed (default: 32 64 ... 2048)",
    )
    parser.add_argument(
        "--memory-length",
        type=measure.not_negative,
        default=2048,
        metavar="T",
        help="where memory is measured; 0: nowhere (default: %(default)s)",
    )
    parser.add_argument(
        "--scores",
        type=measure.positive,
        help="at most so many, batch x heads x T x T: long lengths get a smaller batch, then fewer "
        "heads (default: 2^26, on a GPU 2^30)",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--padding",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the tokens, ragged over the batch, at least 0 and below 0.5 (default: none)",
    )
    names = [name for name in CANDIDATES if name not in (SDPA, AGAIN)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="(default: all)")
    return parser.parse_args()


def main() -> int:
    args = parse()
    measure.prepare(args)
    if not 0 <= args.padding < 0.5:
        raise UsageError(f"--padding is {args.padding}; give a share of at least 0 and below 0.5")
    if args.memory_length and args.device == "cpu" and not Path("/proc/self/clear_refs").exists():
        raise UsageError(
            "memory on a CPU is read from /proc, which only Linux has; give --memory-length 0"
        )
    args.scores = args.scores or SCORES[args.device]
    args.only = [SDPA, AGAIN, *args.only]
    times = [time_row(length, args) for length in args.lengths]
    memory = [memory_row(args)] if args.memory_length else []
    tables = [
        Table("Time of forward + backward, by length", SDPA, "ms", times),
        Table("Extra peak memory", SDPA, "MiB", memory),
    ]
    sizes = f"{args.dtype}, at most {args.scores:,} scores, padding {args.padding:.0%}"
    aims = AIMS if (args.device, args.dtype) == ("cpu", "float32") else []
    return measure.report(args, {"attention": sizes}, tables, aims, QUIET)


if __name__ == "__main__":
    sys.exit(main())
