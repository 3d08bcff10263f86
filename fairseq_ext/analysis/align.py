"""Measure what cross-attention aligns: alignment error rate against gold alignments, head by head.

The model reads source and reference (teacher forcing); each target word is linked to the source
word that it attends to most, the end of the sentence aside. To a word split into pieces attention
is summed, from one it is averaged. --shift output (default) takes the row that predicts a piece,
next the one after, which has read it: in many models that aligns better (Chen et al. 2020). Layers
and heads count from 0; "mean" is of all heads of a layer.

Gold alignments are a line for each pair, sure links as in 3-4 and possible ones as in 3p4: a source
word and a target word, or, with --reversed, the other way round. With A the links found, S the sure
and P the sure and possible ones: precision |A ∩ P| / |A|, recall |A ∩ S| / |S|, AER 1 - (|A ∩ S| +
|A ∩ P|) / (|A| + |S|). The baseline links each target word to the source word at its relative
position. Text must be tokenised, in the case of the training data (--lowercase); subwords are made
if there are merges in DATA_BIN/bpe.codes. Pairs of which a side is empty or too long for the model
are left out.

DIR gets align.csv (a row for each layer and head), align.json, align.png.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.analysis import streams
from fairseq_ext.analysis.subjects import MAX_TOKENS, Heard, Subject
from fairseq_ext.analysis.tokens import Words
from fairseq_ext.analysis.words import alike, members, merge, together
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import as_text, make_column
from fairseq_ext.evaluation.pictures import save
from fairseq_ext.files import check_writable, read_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext align checkpoints/study/una/seed-1/checkpoint_best.pt --data data-bin/iwslt14.de-en \\
    --source test.de --target test.en --gold test.de-en.talp --lowercase --out align"""

LINK = re.compile(r"(\d+)([-p])(\d+)")
SHIFTS = {"output": 0, "next": 1}
MEAN, DIAGONAL = "mean", "diagonal"

Link = tuple[int, int]
"""Source word, target word, from 0."""


class Gold(NamedTuple):
    """The links of a pair; the possible ones hold the sure ones."""

    sure: set[Link]
    possible: set[Link]


class Pair(NamedTuple):
    source: list[str]
    target: list[str]
    gold: Gold


class Job(NamedTuple):
    """A pair as a model reads it."""

    source: Words
    target: Words
    gold: Gold


def scores(links: int, sure: int, possible: int, all_sure: int) -> dict[str, float]:
    """Of the number of links found, of the sure and possible ones among them, of all sure ones."""
    return {
        "aer": 1 - (sure + possible) / max(1, links + all_sure),
        "precision": possible / max(1, links),
        "recall": sure / max(1, all_sure),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--data", type=Path, metavar="DATA_BIN", help="default: what the checkpoint names"
    )
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help="tokenised")
    parser.add_argument("--target", type=Path, required=True, metavar="FILE", help="tokenised")
    parser.add_argument("--gold", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--reversed", action="store_true", help="gold links are target-source")
    parser.add_argument(
        "--first-index", type=int, choices=(0, 1), default=1, help="in gold links; default: 1"
    )
    parser.add_argument("--shift", choices=SHIFTS, default="output", help="default: output")
    parser.add_argument("--lowercase", action="store_true", help="for models of such text")
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"default: {MAX_TOKENS}"
    )


def run(given: argparse.Namespace) -> None:
    if given.max_tokens < 1:
        raise UsageError(f"--max-tokens is {given.max_tokens} and must be at least 1")
    check_writable(given.out, 0)
    pairs = read_pairs(given)
    subject = Subject(given.checkpoint, given.data)
    if "cross" not in subject.heads:
        raise UsageError(f"{given.checkpoint} has no cross-attention; give a translation model")
    read = [job for job in (encode(subject, pair) for pair in pairs) if job is not None]
    if not read:
        raise UsageError(f"{given.source} has no pair that the model can read; give shorter ones")
    rows = [*align(subject, read, SHIFTS[given.shift], given.max_tokens), diagonal(read)]
    about = {"pairs": len(read), "left_out": len(pairs) - len(read), "shift": given.shift}
    streams.write_rows(rows, given.out / "align", model=subject.title, **about)
    save(draw(rows, subject.title), given.out / "align.png")
    print(f"{subject.title}: {len(read)} pairs, {len(pairs) - len(read)} left out")
    print(table(rows))


def read_pairs(given: argparse.Namespace) -> list[Pair]:
    """Raises UsageError unless all three files fit each other."""
    files = given.source, given.target, given.gold
    columns = [list(read_lines(file)) for file in files]
    if len({*map(len, columns)}) > 1:
        found = ", ".join(f"{f} has {len(c)}" for f, c in zip(files, columns, strict=True))
        raise UsageError(f"the files differ in their numbers of lines: {found}; give parallel ones")
    pairs = []
    for number, (source, target, links) in enumerate(zip(*columns, strict=True), 1):
        if given.lowercase:
            source, target = source.lower(), target.lower()
        words = [[word for word in side.split(" ") if word] for side in (source, target)]
        gold = read_gold(links, words, given, f"{given.gold}, line {number}")
        pairs.append(Pair(*words, gold))
    if given.first_index == 0 and not any(0 in link for p in pairs for link in p.gold.possible):
        raise UsageError(f"{given.gold} has no link with index 0; give --first-index 1")
    return pairs


def read_gold(line: str, words: Sequence[list[str]], given: argparse.Namespace, where: str) -> Gold:
    gold = Gold(set(), set())
    for part in line.split():
        match = LINK.fullmatch(part)
        if not match:
            raise UsageError(f"{where}: '{part}' is no link; expected are such as 3-4 and 3p4")
        link = int(match[1]) - given.first_index, int(match[3]) - given.first_index
        link = link[::-1] if given.reversed else link
        if not all(0 <= i < len(side) for i, side in zip(link, words, strict=True)):
            source, target = (len(side) - 1 + given.first_index for side in words)
            raise UsageError(
                f"{where}: '{part}' is out of range; expected are source words {given.first_index} "
                f"to {source} and target words {given.first_index} to {target} (see --first-index, "
                "--reversed)"
            )
        gold.possible.add(link)
        if match[2] == "-":
            gold.sure.add(link)
    return gold


def encode(subject: Subject, pair: Pair) -> Job | None:
    """None if a side is empty or too long."""
    if not pair.source or not pair.target:
        return None
    job = Job(subject.encode(pair.source), subject.encode(pair.target, target=True), pair.gold)
    longest = subject.model.max_positions()
    fits = all(len(w.numbers) <= most for w, most in zip(job[:2], longest, strict=True))
    return job if fits else None


def align(
    subject: Subject, jobs: Sequence[Job], shift: int, max_tokens: int = MAX_TOKENS
) -> list[dict[str, Any]]:
    """A row for each layer, and in it each head and their mean."""
    found: dict[int, Tensor] = {}
    lengths = [max(len(job.source.numbers), len(job.target.numbers)) for job in jobs]
    with tqdm(total=len(jobs), desc=subject.title, unit=" pairs") as bar:
        for numbers in alike(lengths, max_tokens):
            batch = [jobs[number] for number in numbers]
            wanted = Wanted(batch, shift)

            def record(heard: Heard, wanted: Wanted = wanted) -> None:
                if heard.site == "cross":
                    counts = wanted.count(heard.maps)
                    found[heard.layer] = found.get(heard.layer, 0) + counts

            sides = zip(*((job.source.numbers, job.target.numbers) for job in batch), strict=True)
            subject.listen(together(subject, *sides), record)
            bar.update(len(batch))
    sure = sum(len(job.gold.sure) for job in jobs)
    return [
        {"layer": layer, "head": head if head < len(counts) - 1 else MEAN}
        | scores(*map(int, each), sure)
        | {"links": int(each[0])}
        for layer, counts in sorted(found.items())
        for head, each in enumerate(counts)
    ]


class Wanted:
    """The gold links of a batch, and which tokens make up its words.

    Attributes:
        rows: [B, R, T], columns: [B, C, S]. sure, possible: [B, R, C] bool.
    """

    def __init__(self, batch: Sequence[Job], shift: int) -> None:
        source, target = (max(len(job[side].numbers) for job in batch) for side in (0, 1))
        read = [[[i + shift for i in span] for span in job.target.spans] for job in batch]
        self.rows = members(read, target)
        self.columns = members([job.source.spans for job in batch], source)
        shape = len(batch), self.rows.size(1), self.columns.size(1)
        self.sure, self.possible = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
        for number, job in enumerate(batch):
            for links, gold in zip(job.gold, (self.sure, self.possible), strict=True):
                for i, j in links:
                    gold[number, j, i] = True

    def count(self, maps: Tensor) -> Tensor:
        """[B, H, T, S] -> [H + 1, 3], of each head and their mean: how many links it has, how many
        of them are sure, how many possible. A word that attends to no word has no link."""
        weights = merge(maps, self.rows, self.columns)
        weights = torch.cat([weights, weights.mean(1, keepdim=True)], 1)
        most, place = weights.max(-1)  # [B, H + 1, R]
        linked = most > 0
        hits = [
            gold[:, None].expand_as(weights).gather(3, place[..., None])[..., 0] & linked
            for gold in (self.sure, self.possible)
        ]
        return torch.stack([each.sum((0, 2)) for each in (linked, *hits)], 1)


def diagonal(jobs: Sequence[Job]) -> dict[str, Any]:
    """The row of the baseline."""
    links = sure = possible = 0
    for source, target, gold in jobs:
        columns, rows = len(source.spans), len(target.spans)
        found = {((2 * row + 1) * columns // (2 * rows), row) for row in range(rows)}
        links += len(found)
        sure, possible = sure + len(found & gold.sure), possible + len(found & gold.possible)
    values = scores(links, sure, possible, sum(len(job.gold.sure) for job in jobs))
    return {"layer": "", "head": DIAGONAL, **values, "links": links}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The best head of each layer, the mean of its heads, and the baseline."""
    shown = [row for row in rows if row["head"] == DIAGONAL]
    for layer in sorted({row["layer"] for row in rows} - {""}):
        own = [row for row in rows if row["layer"] == layer]
        shown += [min(own[:-1], key=lambda row: row["aer"]), own[-1]]
    places = [f"layer {row['layer']}" if row["layer"] != "" else "" for row in shown]
    heads = [
        row["head"] if isinstance(row["head"], str) else f"head {row['head']}" for row in shown
    ]
    numbers = (
        make_column(title, (row[name] for row in shown), lambda value: f"{value:.3f}")
        for name, title in (("aer", "AER"), ("precision", "precision"), ("recall", "recall"))
    )
    note = "of each layer the best head, chosen on these pairs, and the mean of all"
    return as_text([make_column("layer", places), make_column("head", heads), *numbers], [note])


def draw(rows: Sequence[dict[str, Any]], title: str) -> "Figure":
    """Layers down, heads and their mean across."""
    from matplotlib.figure import Figure

    layers = sorted({row["layer"] for row in rows} - {""})
    heads = list(dict.fromkeys(row["head"] for row in rows if row["layer"] != ""))
    heads = [*(head for head in heads if head != MEAN), MEAN]
    values = np.full((len(layers), len(heads)), np.nan)
    for row in rows:
        if row["layer"] != "":
            values[layers.index(row["layer"]), heads.index(row["head"])] = row["aer"]
    size = 2 + 0.5 * len(heads), 1.2 + 0.5 * len(layers)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="head", ylabel="layer")
    image = axes.imshow(values, cmap="Blues_r", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(heads)), heads)
    axes.set_yticks(range(len(layers)), layers)
    axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, label="alignment error rate")
    return figure
