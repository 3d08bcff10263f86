"""Draw one attention map of a checkpoint, for a sentence of a split or one given as text.

Rows are the tokens that attend, columns those attended to; in the decoder a row is the token that
is predicted. The target is the reference, or for --sentence the model's own translation (beam 5).
That text must be tokenised, in the case of the training data; subwords are made of it if there are
merges in DATA_BIN/bpe.codes. Layers and heads count from 0.
"""

import argparse
import logging
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.tasks.translation import TranslationTask
from subword_nmt.apply_bpe import BPE
from torch import Tensor

from fairseq_ext.analysis.pictures import check_picture, save
from fairseq_ext.attention import Listener
from fairseq_ext.errors import UsageError
from fairseq_ext.models.transformer import TransformerModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext map checkpoints/study/dna/seed-1/checkpoint_best.pt --data data-bin/multi30k.en-de \\
    --sentence 'a man in an orange hat .' --layer 3 --head 1 --out map.png
  fairseq-ext map checkpoints/study/dna/seed-1/checkpoint_best.pt --data data-bin/multi30k.en-de \\
    --split valid --index 7 --site cross --out cross.svg"""

# what it is called, what its rows and its columns are
SITES = {
    "encoder": ("encoder self-attention", "attending token", "attended token"),
    "decoder": ("decoder self-attention", "predicted token", "attended token"),
    "cross": ("cross-attention", "predicted token", "attended source token"),
}
CELL = 0.27  # inches
LABELS = 64  # on an axis; with more tokens cells are smaller and not all are labelled


class Sentence(NamedTuple):
    """Token numbers [S] and [T] as fairseq holds them: each ends with the end of sentence."""

    source: Tensor
    target: Tensor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--data", type=Path, required=True, metavar="DATA_BIN")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg, .pdf")
    sentence = parser.add_mutually_exclusive_group()
    sentence.add_argument("--sentence", metavar="TEXT", help="source text, tokenised")
    sentence.add_argument("--split", default="test", help="default: test")
    parser.add_argument("--index", type=int, default=0, help="sentence of the split; default: 0")
    parser.add_argument("--site", choices=SITES, default="encoder", help="default: encoder")
    parser.add_argument("--layer", type=int, metavar="N", help="default: the last one")
    parser.add_argument("--head", default="mean", metavar="N|mean", help="default: mean of all")


def run(given: argparse.Namespace) -> None:
    check_picture(given.out)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    name, model, task = load(given.checkpoint, given.data)
    if given.sentence is None:
        sentence = from_split(task, given.split, given.index)
    else:
        sentence = from_text(task, model, given.sentence, given.data / "bpe.codes")
    maps, (kind, *axes) = attention_maps(model, sentence), SITES[given.site]
    if given.site not in maps:
        raise UsageError(f"{given.checkpoint} has no {kind}; give --site {' or '.join(maps)}")
    weights, where = choose(maps[given.site], given.layer, given.head)
    figure = draw_map(weights, *tokens(task, sentence, given.site), *axes)
    figure.axes[0].set_title(f"{name}\n{kind}, {where}", fontsize=10)
    save(figure, given.out)


def load(checkpoint: Path, data: Path) -> tuple[str, TransformerModel, TranslationTask]:
    """Name of the architecture, model and task; raises UsageError if it is not one of ours."""
    if not checkpoint.is_file():
        raise UsageError(f"there is no checkpoint {checkpoint}; give the path of one")
    if not any(data.glob("dict.*.txt")):
        raise UsageError(f"{data} has no dictionaries; give a folder made by fairseq-preprocess")
    paths, overrides = [str(checkpoint)], {"data": str(data)}
    try:
        (model,), cfg, task = load_model_ensemble_and_task(paths, arg_overrides=overrides)
    except FileNotFoundError as error:
        raise UsageError(
            f"{error.filename} is missing; give --data the folder with which the model was trained"
        ) from error
    if not isinstance(model, TransformerModel):
        raise UsageError(
            f"{checkpoint} is a {cfg.model._name}, whose maps cannot be had; give a translation "
            "model of this plugin"
        )
    return cfg.model._name, model.eval(), task


def from_split(task: TranslationTask, split: str, index: int) -> Sentence:
    try:
        task.load_dataset(split)
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no split {split} in {task.cfg.data}; give one of its splits"
        ) from error
    pairs = task.dataset(split)
    if not 0 <= index < len(pairs):
        raise UsageError(f"--index is {index} and must be 0 to {len(pairs) - 1} in {split}")
    return Sentence(pairs[index]["source"], pairs[index]["target"])


def from_text(task: TranslationTask, model: TransformerModel, text: str, codes: Path) -> Sentence:
    """Tokenised text, split by the merges in `codes` if that file is there, and translated."""
    if not text.strip():
        raise UsageError("--sentence is empty; give at least one word")
    if codes.exists():
        with codes.open(encoding="utf-8") as merges:
            text = BPE(merges).process_line(text)
    source = task.source_dictionary.encode_line(text, add_if_not_exist=False).long()
    _check_length(source, model.max_positions()[0])
    pairs = task.build_dataset_for_inference([source], [len(source)])
    generator = task.build_generator([model], argparse.Namespace(beam=5))
    found = task.inference_step(generator, [model], pairs.collater([pairs[0]]))
    return Sentence(source, found[0][0]["tokens"])


def _check_length(numbers: Tensor, most: int) -> None:
    if len(numbers) > most:
        raise UsageError(
            f"the sentence has {len(numbers)} tokens and the model takes {most}; give a shorter one"
        )


def attention_maps(model: TransformerModel, sentence: Sentence) -> dict[str, Tensor]:
    """Site -> [L, H, T, S], the maps of all layers and heads it has, for one sentence."""
    for numbers, most in zip(sentence, model.max_positions(), strict=True):
        _check_length(numbers, most)
    source, target = (numbers.unsqueeze(0) for numbers in sentence)
    heads = dict.fromkeys(SITES, model.cfg.decoder.attention_heads)
    heads["encoder"] = model.cfg.encoder.attention_heads
    listener = Listener(lambda site, layer: range(heads[site]), detach=True)
    lengths = torch.tensor([source.size(1)])
    with torch.no_grad():
        model(source, lengths, target.roll(1, 1), listener=listener)  # the end begins a sentence
    heard = sorted(listener.maps)
    return {
        site: torch.cat([listener.maps[key] for key in heard if key[0] == site])
        for site in dict.fromkeys(site for site, _ in heard)
    }


def choose(maps: Tensor, layer: int | None, head: str) -> tuple[Tensor, str]:
    """One map [T, S] of [L, H, T, S], and words for which it is."""
    layers, heads = maps.shape[:2]
    layer = layers - 1 if layer is None else layer
    if not 0 <= layer < layers:
        raise UsageError(f"--layer is {layer} and must be 0 to {layers - 1}")
    if head == "mean":
        return maps[layer].mean(0), f"layer {layer}, mean of {heads} heads"
    if not head.isdecimal() or int(head) >= heads:
        raise UsageError(f"--head is {head} and must be 0 to {heads - 1}, or mean")
    return maps[layer, int(head)], f"layer {layer}, head {head}"


def tokens(task: TranslationTask, sentence: Sentence, site: str) -> tuple[list[str], list[str]]:
    """Those of the rows and of the columns."""
    source = [task.source_dictionary[number] for number in sentence.source]
    target = [task.target_dictionary[number] for number in sentence.target]
    read = [target[-1], *target[:-1]]
    return {"encoder": (source, source), "decoder": (target, read), "cross": (target, source)}[site]


def draw_map(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], ylabel: str = "", xlabel: str = ""
) -> "Figure":
    """A picture of weights [T, S], white for 0, with a token at each row and column."""
    from matplotlib.figure import Figure

    height, width = (CELL * max(5, min(size, LABELS)) for size in weights.shape)
    figure = Figure(figsize=(width, height))  # of the cells: what is around them is added later
    axes = figure.add_axes((0, 0, 1, 1), ylabel=ylabel, xlabel=xlabel)
    image = axes.imshow(weights, cmap="Blues", vmin=0, interpolation="nearest", aspect="auto")
    for axis, texts in ((axes.yaxis, rows), (axes.xaxis, columns)):
        shown = range(0, len(texts), ceil(len(texts) / LABELS))
        axis.set_ticks(shown, [texts[i] for i in shown], parse_math=False, fontsize=9)
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    figure.colorbar(image, cax=axes.inset_axes((1 + 0.1 / width, 0, 0.13 / width, 1)))
    return figure
