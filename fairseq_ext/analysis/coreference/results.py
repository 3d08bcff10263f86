"""Results of the coreference probe: rows, a table and a picture."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fairseq_ext.analysis.coreference.antecedents import ALL, HeadAnswers
from fairseq_ext.analysis.heatmaps import draw_numbers
from fairseq_ext.evaluation.layout import as_text, make_column, standard_error
from fairseq_ext.evaluation.pictures import new_figure

Baselines = Mapping[str, Mapping[str, float]]
"""The accuracy of each baseline for each kind of mentions, by both names."""


class ProbedModel(NamedTuple):
    """The answers of a model, or of one repetition of it, by the name of the corpus."""

    model: str
    repetition: int
    title: str
    loss: float | None
    answers: dict[str, HeadAnswers]


def tabulate(models: Iterable[ProbedModel]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a row for each head, and a row for the best head, of each model, corpus and kind."""
    rows, best = [], []
    for model, repetition, _, loss, corpora in models:
        for corpus, answers in corpora.items():
            for kind, members in answers.members.items():
                about = {"model": model, "repetition": repetition, "corpus": corpus, "kind": kind}
                about["mentions"] = int(members.sum())
                best.append({**about, "valid_loss": loss, **answers.best(kind)._asdict()})
                rows += [
                    {**about, "layer": layer, "head": head, "accuracy": value}
                    for layer, heads in enumerate(answers.accuracy(kind).tolist())
                    for head, value in enumerate(heads)
                ]
    return rows, best


def format_table(models: Sequence[ProbedModel], corpus: str, baselines: Baselines) -> str:
    """Return a text table: a row for each baseline and model, with its best head's accuracy."""
    groups: dict[str, list[ProbedModel]] = {baseline: [] for baseline in baselines}
    for each in models:
        groups.setdefault(each.model, []).append(each)
    answers = [[each.answers[corpus] for each in group] for group in groups.values()]
    best = [[each.best() for each in group] for group in answers]
    kinds = list(next(iter(baselines.values())))

    def accuracies(kind: str) -> list[list[float | None]]:
        """Return a list for each row; None: a model can read no mention of this kind."""
        rows: list[list[float | None]] = [[values[kind]] for values in baselines.values()]
        for group in answers[len(baselines) :]:
            rows.append([e.best(kind).accuracy if kind in e.members else None for e in group])
        return rows

    losses = [[model.loss for model in group] for group in groups.values()]
    mentions = [[len(each.right) for each in group[:1]] for group in answers]
    heads = [[f"{head.layer}-{head.head}" for head in g if len(g) == 1] for g in best]
    held_out = [[head.held_out for head in group] for group in best]
    columns = [
        make_column("model", groups),
        make_column("loss", losses, _format_mean),
        make_column("mentions", mentions, _join),
        make_column("accuracy", accuracies(ALL), _format_mean),
        make_column("head", heads, _join),
        make_column("held out", held_out, _format_mean),
    ]
    if len(kinds) > 2:  # a single kind is the same as all
        columns += [make_column(kind, accuracies(kind), _format_mean) for kind in kinds[1:]]
    note = "head: layer-head; held out: chosen on one half of the texts, scored on the other"
    return as_text(columns, [note])


def _format_mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    error = standard_error(known)
    return f"{np.mean(known):.3f}" + ("" if error is None else f" ± {error:.3f}")


def _join(values: Sequence[Any]) -> str:
    return " ".join(map(str, values))


def draw(models: Sequence[ProbedModel]) -> Figure:
    """Draw a panel for each corpus (rows) and model (columns): layers down, heads across."""
    corpora = list(models[0].answers)
    layers, heads = (max(m.answers[corpora[0]].right.size(i) for m in models) for i in (1, 2))
    width = 1.5 + len(models) * max(2.2, 0.25 * heads)
    figure = new_figure(width, 1 + len(corpora) * max(1.3, 0.25 * layers))
    panels = figure.subplots(len(corpora), len(models), squeeze=False)
    for line, corpus in zip(panels, corpora, strict=True):
        for axes, each in zip(line, models, strict=True):
            image = draw_numbers(axes, each.answers[corpus].accuracy())
        line[0].set_ylabel(f"{corpus}\nlayer", fontsize=8)
    for axes, each in zip(panels[0], models, strict=True):
        axes.set_title(each.title.replace(", ", "\n"), fontsize=8)
    figure.supxlabel("head", fontsize=8)
    figure.colorbar(image, ax=panels, label="antecedents found")
    return figure
