r"""Measure the alignment error rate of cross-attention against gold alignments, head by head.

The model reads source and reference (teacher forcing). Each target word is linked to the source
word that it attends to most; the end of the sentence does not count. Attention to a word that is
split into pieces is the sum over them, attention from it the mean. --shift output (default) takes
the row that predicts a piece, next the row after it, which has read the piece: in many models that
aligns better (Chen et al. 2020). Layers and heads count from 0; "mean" is the mean of all heads of
a layer.

A line of gold alignments has the links of a pair: sure ones such as 3-4 and possible ones such as
3p4, a source word and a target word or, with --reversed, the other way round. With A the predicted
links, S the sure and P the sure and possible ones: precision |A ∩ P| / |A|, recall |A ∩ S| / |S|,
AER 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|). The baseline links each target word to the source word at
its relative position. Text must be tokenised, in the case of the training data (--lowercase); it is
split into subwords by DATA_BIN/bpe.codes or sentencepiece.model. Pairs with a side that is empty or
too long for the model are left out.

DIR gets align.csv (a row for each layer and head), align.json, align.png.

Example:
  fairseq-ext align checkpoints/study/una/seed-1/checkpoint_best.pt --data data-bin/iwslt14.de-en \
    --source test.de --target test.en --gold test.de-en.talp --lowercase --out align
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fairseq_ext.analysis import arguments
from fairseq_ext.analysis.gold_alignments import GoldLinks, SentencePair, read_pairs, score_links
from fairseq_ext.analysis.heatmaps import arrange
from fairseq_ext.analysis.inspector import MAX_TOKENS, ModelInspector
from fairseq_ext.analysis.recording import LayerAttention
from fairseq_ext.analysis.tokens import TokenisedWords
from fairseq_ext.analysis.word_attention import batch_by_length, build_membership, merge_tokens
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import as_text, make_column
from fairseq_ext.evaluation.pictures import announce, new_figure, save, write_rows
from fairseq_ext.files import check_writable

SHIFTS = {"output": 0, "next": 1}
MEAN, DIAGONAL = "mean", "diagonal"


class EncodedPair(NamedTuple):
    """A sentence pair as a model reads it."""

    source: TokenisedWords
    target: TokenisedWords
    gold: GoldLinks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext align`."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    arguments.add(parser, "--data")
    add("--source", type=Path, required=True, metavar="FILE", help="tokenised")
    add("--target", type=Path, required=True, metavar="FILE", help="tokenised")
    add("--gold", type=Path, required=True, metavar="FILE")
    arguments.add(parser, "--out")
    add("--reversed", action="store_true", help="gold links are target-source")
    add("--first-index", type=int, choices=(0, 1), default=1, help="in gold links; default: 1")
    add("--shift", choices=SHIFTS, default="output", help="default: output")
    arguments.add(parser, "--lowercase", "--max-tokens")


def run(args: argparse.Namespace) -> None:
    """Write the table and the picture, and print the best heads."""
    arguments.check_at_least(args, max_tokens=1)
    check_writable(args.out, 0)
    pairs = read_pairs(args)
    inspector = ModelInspector(args.checkpoint, args.data)
    if "cross" not in inspector.heads:
        raise UsageError(f"{args.checkpoint} has no cross-attention; give a translation model")
    encoded = [e for e in (encode_pair(inspector, pair) for pair in pairs) if e is not None]
    if not encoded:
        raise UsageError(f"{args.source} has no pair that the model can read; give shorter ones")
    rows = align(inspector, encoded, SHIFTS[args.shift], args.max_tokens)
    rows.append(align_diagonally(encoded))
    left_out = len(pairs) - len(encoded)
    about = {"pairs": len(encoded), "left_out": left_out, "shift": args.shift}
    write_rows(rows, args.out / "align", model=inspector.title, **about)
    save(draw(rows, inspector.title), args.out / "align.png")
    print(f"{inspector.title}: {len(encoded)} pairs, {left_out} left out")
    print(format_table(rows))
    announce(args.out)


def encode_pair(inspector: ModelInspector, pair: SentencePair) -> EncodedPair | None:
    """Return a pair as tokens, or None if a side is empty or too long for the model."""
    if not pair.source or not pair.target:
        return None
    source = inspector.codec.encode(pair.source)
    target = inspector.codec.encode(pair.target, target=True)
    longest = inspector.model.max_positions()
    fits = len(source.numbers) <= longest[0] and len(target.numbers) <= longest[1]
    return EncodedPair(source, target, pair.gold) if fits else None


def align(
    inspector: ModelInspector, pairs: list[EncodedPair], shift: int, max_tokens: int = MAX_TOKENS
) -> list[dict[str, Any]]:
    """Return a row of scores for each layer and each of its heads, and for the heads' mean.

    Args:
        shift: one of the values of `SHIFTS`.
    """
    totals: dict[int, Tensor] = {}
    lengths = [max(len(pair.source.numbers), len(pair.target.numbers)) for pair in pairs]
    batches = batch_by_length(pairs, lengths, max_tokens, desc=inspector.title, unit=" pairs")
    for batch in batches:
        gold = GoldBatch(batch, shift)

        def count(attention: LayerAttention, gold: GoldBatch = gold) -> None:
            if attention.site == "cross":
                counts = gold.count_links(attention.maps)
                totals[attention.layer] = totals.get(attention.layer, 0) + counts

        sources = [pair.source.numbers for pair in batch]
        targets = [pair.target.numbers for pair in batch]
        inspector.record_attention(inspector.collate(sources, targets), count)
    all_sure = sum(len(pair.gold.sure) for pair in pairs)
    rows = []
    for layer, counts in sorted(totals.items()):
        heads = [*range(len(counts) - 1), MEAN]
        for head, (links, sure, possible) in zip(heads, counts.tolist(), strict=True):
            scores = score_links(links, sure, possible, all_sure)
            rows.append({"layer": layer, "head": head, **scores, "links": links})
    return rows


class GoldBatch:
    """The gold links of a batch as tensors, and the tokens of its words.

    Attributes:
        rows: [B, R, T] membership of target tokens in words, moved by the shift.
        columns: [B, C, S] membership of source tokens in words.
        sure: [B, R, C] bool.
        possible: [B, R, C] bool.
    """

    def __init__(self, pairs: Sequence[EncodedPair], shift: int) -> None:
        source = max(len(pair.source.numbers) for pair in pairs)
        target = max(len(pair.target.numbers) for pair in pairs)
        moved = [[[i + shift for i in span] for span in pair.target.spans] for pair in pairs]
        self.rows = build_membership(moved, target)
        self.columns = build_membership([pair.source.spans for pair in pairs], source)
        shape = len(pairs), self.rows.size(1), self.columns.size(1)
        self.sure, self.possible = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
        for number, pair in enumerate(pairs):
            for links, gold in zip(pair.gold, (self.sure, self.possible), strict=True):
                for i, j in links:
                    gold[number, j, i] = True

    def count_links(self, maps: Tensor) -> Tensor:
        """Return counts [H + 1, 3] of links, sure ones and possible ones, from [B, H, T, S].

        The last row is for the mean of the heads. A word that attends to no word has no link.
        """
        weights = merge_tokens(maps, self.rows, self.columns)
        weights = torch.cat([weights, weights.mean(1, keepdim=True)], 1)
        highest, place = weights.max(-1)  # [B, H + 1, R]
        linked = highest > 0
        hits = [
            gold[:, None].expand_as(weights).gather(3, place[..., None])[..., 0] & linked
            for gold in (self.sure, self.possible)
        ]
        return torch.stack([each.sum((0, 2)) for each in (linked, *hits)], 1)


def align_diagonally(pairs: Sequence[EncodedPair]) -> dict[str, Any]:
    """Return the row of the baseline, which links words at the same relative position."""
    links = sure = possible = 0
    for source, target, gold in pairs:
        columns, rows = len(source.spans), len(target.spans)
        predicted = {((2 * row + 1) * columns // (2 * rows), row) for row in range(rows)}
        links += rows
        sure += len(predicted & gold.sure)
        possible += len(predicted & gold.possible)
    scores = score_links(links, sure, possible, sum(len(pair.gold.sure) for pair in pairs))
    return {"layer": "", "head": DIAGONAL, **scores, "links": links}


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a text table of the baseline and each layer's best head and mean of heads."""
    shown = [row for row in rows if row["head"] == DIAGONAL]
    for layer in sorted({row["layer"] for row in rows} - {""}):
        *heads, average = (row for row in rows if row["layer"] == layer)
        shown += [min(heads, key=lambda row: row["aer"]), average]
    columns = []
    for name in ("layer", "head"):
        texts = [r[name] if isinstance(r[name], str) else f"{name} {r[name]}" for r in shown]
        columns.append(make_column(name, texts))
    for name, title in (("aer", "AER"), ("precision", "precision"), ("recall", "recall")):
        columns.append(make_column(title, (row[name] for row in shown), "{:.3f}".format))
    note = "of each layer the best head, chosen on these pairs, and the mean of all"
    return as_text(columns, [note])


def draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """Draw error rates: layers down, heads and their mean across."""
    rows = [row for row in rows if row["layer"] != ""]
    layers = sorted({row["layer"] for row in rows})
    heads = [*sorted({row["head"] for row in rows} - {MEAN}), MEAN]
    figure = new_figure(2 + 0.5 * len(heads), 1.2 + 0.5 * len(layers))
    axes = figure.add_subplot(xlabel="head", ylabel="layer")
    numbers = arrange(rows, "aer", layers, heads)
    image = axes.imshow(numbers, cmap="Blues_r", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(heads)), heads)
    axes.set_yticks(range(len(layers)), layers)
    axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, label="alignment error rate")
    return figure
