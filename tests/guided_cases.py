"""Layers with guided heads in tests: their patterns, their loss and its gradients."""

import torch

from fairseq_ext.attention import Attention, Inputs
from fairseq_ext.mechanisms.guidance.loss import sentence_losses
from fairseq_ext.mechanisms.guidance.patterns import View
from fairseq_ext.mechanisms.guidance.plan import GuidedHeads, parse_heads
from fairseq_ext.mechanisms.guidance.recorder import GuidanceRecorder

PAD, LENGTHS = 1, [11, 7, 1]

SIZE = max(LENGTHS)


def recorder_of(view, text, edges="uniform", dropped=False, site="encoder", layers=1, first=1):
    patterns = parse_heads("--ag-encoder-heads", text)
    heads = range(first, first + patterns[-1].stop)
    symbols = {each.pattern: [5] for each in patterns}
    guided = GuidedHeads(dict.fromkeys(range(layers), heads), patterns, symbols)
    return GuidanceRecorder({site: guided}, lambda inputs: {site: view}, edges, dropped)


def layer(site="encoder", number=0, dropout=0.0, groups=None, **options):
    torch.manual_seed(3)
    made = Attention(24, 4, site=site, layer=number, dropout=dropout, groups=groups, **options)
    return made.double().train()


def tokens_of(side):
    at, lengths = torch.arange(SIZE), torch.tensor(LENGTHS)[:, None]
    padding = at >= lengths if side == "right" else at < SIZE - lengths
    return torch.arange(5, 5 + SIZE).expand(len(LENGTHS), -1).masked_fill(padding, PAD)


def results(module, recorder, site, view, edges, kernelled, reduction="mean", probe=True):
    """Output at real rows, losses of sentences, and the gradients of inputs and parameters."""
    torch.manual_seed(9)
    dtype = module.out_proj.weight.dtype
    x = torch.randn(view.queries.size(1), len(LENGTHS), 24, dtype=dtype).requires_grad_()
    y = torch.randn(view.keys.size(1), len(LENGTHS), 24, dtype=dtype).requires_grad_()
    keys = y if site == "cross" else x
    recorder.begin({})
    inputs = Inputs(~view.keys, causal=site == "decoder", recorder=recorder)
    torch.manual_seed(7)
    out, _ = module(x, keys, keys, inputs, need_weights=False)
    assert recorder.maps[site, 0].dim() == (3 if kernelled else 4)
    guided = recorder._guided[site]
    losses = sentence_losses(recorder.maps, site, guided, view, reduction, edges)
    out = out.transpose(0, 1)[view.queries]
    torch.manual_seed(8)
    total = (out * torch.randn_like(out)).sum() * probe + (losses * torch.rand(3)).sum()
    leaves = [x, y, *module.parameters()] if site == "cross" else [x, *module.parameters()]
    return [out, losses, *torch.autograd.grad(total, leaves)]


SITES = {"encoder": "next:1,prev:2", "decoder": "prev:1,first:2", "cross": "next:1,diagonal:2"}


def view_of(site, side):
    tokens = tokens_of(side)
    targets = tokens_of("right")[:, :9]
    keys, queries = tokens.ne(PAD), targets.ne(PAD)
    if site == "cross":
        return View(tokens, keys, queries)
    return View(tokens, keys, keys, causal=site == "decoder")


def written_out(maps, targets):
    """d, as autograd can differentiate it."""
    keys, exist, share = targets
    edge = (1 - 2 * maps.sum(-1)) * (0.0 if share is None else share)
    hit = maps.gather(-1, keys).squeeze(-1)
    return maps.square().sum(-1) + torch.where(exist, 1 - 2 * hit, edge)
