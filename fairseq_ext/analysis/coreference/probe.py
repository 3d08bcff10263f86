"""Ask which heads find antecedents: coreference in encoder self-attention (AG, Table 8).

A mention counts as right when its head word attends most to a word of its antecedent, of all
candidates: --among words (default), every word of the text, the mention among them (the attention
guidance paper, word by word); nouns, the noun phrases that the corpus marks (Clark et al. 2019; Lin
et al. 2019); all, words and special tokens. To a word split into pieces attention is summed, from
one it is averaged. Layers and heads count from 0.

Corpora: refl.N (synthetic reflexives), gap-….tsv (GAP), …_conll (CoNLL-2012, files or a folder). In
the synthetic ones the antecedent is always first, and a head that looks there is right: with
--distractors N each sentence follows N others drawn by chance. With one, as in the paper, its place
still tells much, and the best random head finds more than half; 8, as in the code of the paper's
authors, leave it a fifth. A text longer than the model reads is asked in parts: the sentence of a
mention, as many before it as fit, then after it; mentions whose antecedents are out of reach are
left out.

The best of many heads, chosen on the data on which it is scored, looks better than it is. "Held
out" is the accuracy of heads each chosen on one half of the texts (odd, even) and scored on the
other. Of a kind of mentions the best head is that of the kind. Repetitions of a variant
(VARIANT/seed-N) are averaged, ± standard error. Baselines: a head that looks at the previous word;
the nearest noun phrase; rules (the same words, the same head, agreement, any other); the best head
of the same model with random parameters. The loss is that of the checkpoint's last validation, as
fairseq logs it, in bits.

DIR gets probe.csv (a row for each model, layer, head, corpus and kind), probe.json, probe.png.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fairseq.checkpoint_utils import load_checkpoint_to_cpu

from fairseq_ext.analysis import streams
from fairseq_ext.analysis.coreference.antecedents import ALL, AMONG, Answers, answers, is_asked
from fairseq_ext.analysis.coreference.corpora import Corpus, read
from fairseq_ext.analysis.coreference.mentions import with_distractors
from fairseq_ext.analysis.coreference.sieves import BASELINES
from fairseq_ext.analysis.subjects import MAX_TOKENS, Subject
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import as_text, make_column, standard_error
from fairseq_ext.evaluation.pictures import save
from fairseq_ext.files import check_writable
from fairseq_ext.training_logs import name_variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext probe checkpoints/fraction/books_tiny-masked_lm/{plain,ag-0.5,ag-1}/seed-1/\\
checkpoint_last.pt encoders/minilm/model.pt --coreference coref-synthetic/refl.1.gz \\
    gap/gap-development.tsv.gz --distractors 8 --out probe"""

RANDOM = "random"
LEAST = {"limit": 1, "max_tokens": 1, "distractors": 0, "random": 0}


class Probed(NamedTuple):
    """What a model, or a repetition of it, answers for each corpus."""

    model: str
    repetition: int
    title: str
    loss: float | None
    found: dict[str, Answers]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--coreference", nargs="+", type=Path, required=True, metavar="CORPUS")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--among", choices=AMONG, default="words", help="default: words")
    parser.add_argument(
        "--distractors", type=int, default=0, metavar="N", help="of synthetic corpora; default: 0"
    )
    parser.add_argument(
        "--random", type=int, default=3, metavar="N", help="seeds of random models; default: 3"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="texts of a corpus; default: all")
    parser.add_argument("--lowercase", action="store_true", help="for models of such text")
    parser.add_argument(
        "--data", type=Path, metavar="DATA_BIN", help="default: what the checkpoint names"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"default: {MAX_TOKENS}"
    )


def run(given: argparse.Namespace) -> None:
    for name, least in LEAST.items():
        if (value := getattr(given, name)) is not None and value < least:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is {value} and must be at least {least}")
    check_writable(given.out, 0)
    corpora = [corpus(path, given) for path in given.coreference]
    if len({each.name for each in corpora}) < len(corpora):
        raise UsageError("--coreference has two corpora of one name; give each once")
    simple = {each.name: baselines(each, given.among) for each in corpora}
    probed = [*trained(given, corpora), *untrained(given, corpora)]
    write(probed, corpora, simple, given)
    save(
        draw([each for each in probed if not each.model.startswith(RANDOM)]),
        given.out / "probe.png",
    )
    for each in corpora:
        print(
            f"{each.name}, among {given.among}; {each.left_out} texts without antecedent left out"
        )
        print(table(probed, each.name, simple[each.name]))


def corpus(path: Path, given: argparse.Namespace) -> Corpus:
    found = read(path, given.limit, given.lowercase)
    if found.synthetic:
        found = found._replace(texts=with_distractors(found.texts, given.distractors, seed=1))
    if not any(is_asked(mention, given.among) for text in found.texts for mention in text.mentions):
        raise UsageError(
            f"{path} marks no noun phrases but antecedents, so --among {given.among} leaves no "
            "choice; give --among words, or --distractors 1 if it is synthetic"
        )
    return found


def baselines(corpus: Corpus, among: str) -> dict[str, dict[str, float]]:
    """name -> kind -> accuracy"""
    asked = [(text, m) for text in corpus.texts for m in text.mentions if is_asked(m, among)]
    kinds = {ALL: asked} | {
        kind: [(text, m) for text, m in asked if m.kind == kind]
        for kind in sorted({m.kind for _, m in asked})
    }
    return {
        name: {
            kind: sum(right(text, m) for text, m in those) / len(those)
            for kind, those in kinds.items()
        }
        for name, right in BASELINES.items()
    }


def names_of(checkpoints: Sequence[Path]) -> list[str]:
    """Variants of which they are repetitions; several of one run are told apart."""
    folders = [path.parent.resolve() for path in checkpoints]
    return [
        f"{variant}/{path.stem}" if folders.count(folder) > 1 else variant
        for variant, path, folder in zip(name_variants(folders), checkpoints, folders, strict=True)
    ]


def trained(given: argparse.Namespace, corpora: Sequence[Corpus]) -> Iterator[Probed]:
    names = names_of(given.checkpoints)
    for number, (name, path) in enumerate(zip(names, given.checkpoints, strict=True)):
        subject = Subject(path, given.data)
        found = ask(subject, corpora, given)
        repetition = names[: number + 1].count(name)
        yield Probed(name, repetition, subject.title, validation_loss(path), found)


def untrained(given: argparse.Namespace, corpora: Sequence[Corpus]) -> Iterator[Probed]:
    """Of each shape of model."""
    shapes: dict[Any, tuple[str, Path]] = {}
    names = names_of(given.checkpoints)
    for name, path in zip(names, given.checkpoints, strict=True) if given.random else ():
        subject = Subject(path, given.data)
        shape = tuple((part, p.shape) for part, p in subject.model.named_parameters())
        shapes.setdefault((subject.name, subject.data, shape), (name, path))
    for name, path in shapes.values():
        model = RANDOM if len(shapes) == 1 else f"{RANDOM}, as {name}"
        for seed in range(1, given.random + 1):
            subject = Subject(path, given.data, untrained=True, seed=seed)
            yield Probed(model, seed, subject.title, None, ask(subject, corpora, given))


def ask(
    subject: Subject, corpora: Sequence[Corpus], given: argparse.Namespace
) -> dict[str, Answers]:
    found = {}
    for each in corpora:
        found[each.name] = answers(subject, each.texts, given.among, given.max_tokens)
        if not len(found[each.name].right):
            raise UsageError(
                f"{subject.checkpoint} reads at most {subject.positions} tokens, and no mention of "
                f"{each.name} has its antecedent and another candidate so near; leave it out"
            )
    return found


def validation_loss(checkpoint: Path) -> float | None:
    """Of its last validation; None if there was none, or by another metric."""
    state = load_checkpoint_to_cpu(str(checkpoint))
    settings = getattr(state.get("cfg"), "checkpoint", None)
    if getattr(settings, "best_checkpoint_metric", "loss") != "loss":
        return None
    return (state.get("extra_state") or {}).get("val_loss")


def write(
    probed: Sequence[Probed],
    corpora: Sequence[Corpus],
    simple: Mapping[str, Any],
    given: argparse.Namespace,
) -> None:
    rows, best = [], []
    for model, repetition, _, loss, found in probed:
        for name, those in found.items():
            for kind, members in those.of.items():
                about = {"model": model, "repetition": repetition, "corpus": name, "kind": kind}
                about["mentions"] = int(members.sum())
                best.append({**about, "valid_loss": loss, **those.best(kind)._asdict()})
                rows += [
                    {**about, "layer": layer, "head": head, "accuracy": value}
                    for layer, heads in enumerate(those.accuracy(kind).tolist())
                    for head, value in enumerate(heads)
                ]
    streams.write_rows(
        rows,
        given.out / "probe",
        among=given.among,
        distractors=given.distractors,
        left_out={each.name: each.left_out for each in corpora},
        checkpoints=list(given.checkpoints),
        baselines=simple,
        best=best,
    )


def table(probed: Sequence[Probed], name: str, simple: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each baseline and model, with what the best head gets right."""
    groups: dict[str, list[Probed]] = {baseline: [] for baseline in simple}
    for each in probed:
        groups.setdefault(each.model, []).append(each)
    own = [[each.found[name] for each in group] for group in groups.values()]
    best = [[each.best() for each in group] for group in own]
    kinds = list(next(iter(simple.values())))

    def accuracies(kind: str) -> list[list[float | None]]:
        """None: no mention of this kind is within reach of a model."""
        fixed = [[values[kind]] for values in simple.values()]
        return fixed + [
            [each.best(kind).accuracy if kind in each.of else None for each in group]
            for group in own[len(simple) :]
        ]

    columns = [
        make_column("model", groups),
        make_column("loss", ([p.loss for p in group] for group in groups.values()), _mean),
        make_column("mentions", ([len(each.right) for each in group[:1]] for group in own), _join),
        make_column("accuracy", accuracies(ALL), _mean),
        make_column("head", ([f"{b.layer}-{b.head}" for b in g if len(g) == 1] for g in best), _join),
        make_column("held out", ([b.held_out for b in group] for group in best), _mean),
        *(make_column(kind, accuracies(kind), _mean) for kind in kinds[1:] if len(kinds) > 2),
    ]
    note = "head: layer-head; held out: chosen on one half of the texts, scored on the other"
    return as_text(columns, [note])


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    error = standard_error(known)
    return f"{np.mean(known):.3f}" + ("" if error is None else f" ± {error:.3f}")


def _join(values: Sequence[Any]) -> str:
    return " ".join(map(str, values))


def draw(probed: Sequence[Probed]) -> "Figure":
    """A panel for each corpus (rows) and model (columns): layers down, heads across."""
    from matplotlib.figure import Figure

    names = list(probed[0].found)
    tall, wide = (max(p.found[names[0]].right.size(i) for p in probed) for i in (1, 2))
    size = 1.5 + len(probed) * max(2.2, 0.25 * wide), 1 + len(names) * max(1.3, 0.25 * tall)
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(len(names), len(probed), squeeze=False)
    for line, name in zip(every, names, strict=True):
        for axes, each in zip(line, probed, strict=True):
            accuracy = each.found[name].accuracy()
            image = axes.imshow(accuracy, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_major_locator().set_params(integer=True)
            axes.tick_params(labelsize=6)
        line[0].set_ylabel(f"{name}\nlayer", fontsize=8)
    for axes, each in zip(every[0], probed, strict=True):
        axes.set_title(each.title.replace(", ", "\n"), fontsize=8)
    figure.supxlabel("head", fontsize=8)
    figure.colorbar(image, ax=every, label="antecedents found")
    return figure
