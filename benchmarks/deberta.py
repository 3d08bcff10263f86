"""Time of DeBERTa v3, as multiples of the implementation in transformers.

A step is forward, backward and Adam. `encoder` computes features alone; `masked words` predicts 15%
of the tokens as each library does: ours projects these to the vocabulary, transformers all of them.
Models have the same sizes and dropout, their own parameters, and the same tokens without padding.
"""

import argparse
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import measure
import torch
import torch.nn.functional as F
from fairseq.models import build_model
from measure import AGAIN, Aim, Quiet, Row, Table, Work
from omegaconf import OmegaConf
from steps import check_lengths, dictionary
from stock import as_released
from torch import Tensor, nn

from fairseq_ext import registry  # noqa: F401
from fairseq_ext.errors import UsageError

PEER, CANDIDATES = "transformers", ("una", "dna")
SIZES = {  # layers, width, width of the feed-forward layers, heads
    "tiny": (2, 64, 128, 4),
    "small": (6, 768, 3072, 12),
    "base": (12, 768, 3072, 12),
}
SYMBOLS = 8_000
MASKED = 0.15
LENGTHS = [128, 512]
KINDS = ("encoder", "masked words")
QUIET = Quiet(deviation=0.02, spread=0.1)


def label(kind: str, size: str, length: int) -> str:
    return f"{kind}, {size} {length}"


AIMS = [Aim(label(k, size, n), "una", 0.8) for k in KINDS for size in SIZES for n in LENGTHS]


def import_transformers() -> ModuleType:
    """Return transformers, without torchaudio, which may need libraries of a GPU.

    Raises:
        UsageError: it is not installed.
    """
    empty = ModuleType("torchaudio")
    empty.__spec__, empty.__dict__["__version__"] = ModuleSpec("torchaudio", None), "0"
    sys.modules.setdefault("torchaudio", empty)
    try:
        import transformers
    except ImportError:
        raise UsageError("transformers is not installed; pip install 'fairseq_ext[test]'") from None
    return transformers


def build_theirs(sizes: tuple[int, ...], length: int) -> nn.Module:
    transformers = import_transformers()
    layers, width, inner, heads = sizes
    config = transformers.DebertaV2Config(
        vocab_size=SYMBOLS,
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        max_position_embeddings=max(512, length),
        relative_attention=True,
        position_biased_input=False,
        position_buckets=256,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        pos_att_type=["p2c", "c2p"],
    )
    return transformers.DebertaV2ForMaskedLM(config)


def build_ours(name: str, sizes: tuple[int, ...], length: int) -> nn.Module:
    words = dictionary(SYMBOLS - 4)
    task = SimpleNamespace(source_dictionary=words, max_positions=lambda: max(512, length))
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    options = {f"encoder_{name}": n for name, n in zip(names, sizes, strict=True)}
    return build_model(OmegaConf.create({"_name": f"deberta_{name}_base", **options}), task)


def compute_loss(kind: str, ours: bool, model: nn.Module, tokens: Tensor, masked: Tensor) -> Tensor:
    """Return the loss of a batch [B, S]: of the features of all tokens, or of masked ones."""
    if kind == "encoder":
        features = model(tokens, features_only=True)[0] if ours else model.deberta(tokens)[0]
        return features.square().mean()
    if ours:
        return F.cross_entropy(model(tokens, masked_tokens=masked)[0], tokens[masked])
    return model(tokens, labels=tokens.masked_fill(~masked, -100)).loss


def build_step(kind: str, name: str, size: str, length: int, args: argparse.Namespace) -> Work:
    """Return a step of training of a model, whose argument is ignored."""
    sizes, ours = SIZES[size], name not in (PEER, AGAIN)
    model = build_ours(name, sizes, length) if ours else build_theirs(sizes, length)
    model = model.to(args.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    chance = torch.Generator().manual_seed(args.seed)
    batch = args.max_tokens // length
    tokens = torch.randint(4, SYMBOLS, (batch, length), generator=chance).to(args.device)
    masked = (torch.rand(batch, length, generator=chance) < MASKED).to(args.device)

    def step(turn: int) -> None:
        optimizer.zero_grad()
        compute_loss(kind, ours, model, tokens, masked).backward()
        optimizer.step()

    return step if ours else as_released(step)


def row(kind: str, size: str, length: int, args: argparse.Namespace) -> Row:
    """Measure all candidates."""
    title = label(kind, size, length)
    names = (PEER, AGAIN, *args.only)
    work = {name: build_step(kind, name, size, length, args) for name in names}
    seconds = measure.interleave(work, PEER, args.rounds, measure.clock(args), args.seed, title)
    return measure.compare(title, seconds, PEER, 1e3)


def parse() -> argparse.Namespace:
    parser = measure.build_parser(__doc__, "python benchmarks/deberta.py --sizes small --threads 1")
    add = parser.add_argument
    add("--sizes", nargs="+", choices=SIZES, default=["small"], help="(default: small)")
    add("--lengths", nargs="+", type=measure.positive, default=LENGTHS, metavar="T")
    add("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    add("--only", nargs="+", choices=CANDIDATES, default=[*CANDIDATES])
    add("--max-tokens", type=measure.positive, default=1024, help="of a batch (default: 1024)")
    return parser.parse_args()


def main() -> int:
    args = parse()
    measure.prepare(args)
    check_lengths(args)
    import_transformers()
    rows = [row(k, size, n, args) for k in args.kinds for size in args.sizes for n in args.lengths]
    facts = {"batches": f"at most {args.max_tokens} tokens, fp32, dropout 0.1, {SYMBOLS:,} symbols"}
    return measure.report(args, facts, [Table("Time of a step", PEER, "ms", rows)], AIMS, QUIET)


if __name__ == "__main__":
    sys.exit(main())
