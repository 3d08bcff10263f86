r"""Probe which heads find antecedents: coreference in encoder self-attention (AG, Table 8).

A head is right about a mention when the mention's head word attends most to a word of its
antecedent, of all candidates: --among words (default), every word of the text, the mention's too
(the attention guidance paper, word by word); nouns, the noun phrases that the corpus marks (Clark
et al. 2019; Lin et al. 2019); all, words and special tokens. Attention to a word that is split into
pieces is the sum over them, attention from it the mean. Layers and heads count from 0.

Corpora: refl.N (synthetic reflexives), gap-….tsv (GAP), …_conll (CoNLL-2012, files or a folder). In
synthetic ones the antecedent is always first, so a head that attends to the first word is right.
With --distractors N each sentence follows N others chosen by chance. With one, as in the paper, the
place still tells much, and the best random head finds more than half; with 8, as in the code of the
paper's authors, a fifth. A text longer than the model reads is asked in parts: the sentence of a
mention, as many sentences before it as fit, then sentences after it. Mentions whose antecedents are
out of reach are left out.

The best of many heads, chosen on the data on which it is scored, looks better than it is. "Held
out" is the accuracy of heads that are each chosen on one half of the texts (odd, even) and scored
on the other. Each kind of mentions has a best head of its own. Repetitions of a variant
(VARIANT/seed-N) are averaged, ± standard error. Baselines: a head that attends to the previous
word; the nearest noun phrase; rules (the same words, the same head, agreement, any other); the best
head of the same model with random parameters. The loss is that of the checkpoint's last validation,
as fairseq logs it, in bits.

DIR gets probe.csv (a row for each model, layer, head, corpus and kind), probe.json, probe.png.

Example:
  fairseq-ext probe checkpoints/fraction/books_tiny-masked_lm/{plain,ag-0.5,ag-1}/seed-1/\
checkpoint_last.pt encoders/minilm/model.pt --coreference coref-synthetic/refl.1.gz \
    gap/gap-development.tsv.gz --distractors 8 --out probe
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from matplotlib.figure import Figure

from fairseq_ext.analysis import arguments
from fairseq_ext.analysis.coreference.antecedents import ALL, AMONG, HeadAnswers, ask_heads
from fairseq_ext.analysis.coreference.corpus_readers import Corpus, read_corpus
from fairseq_ext.analysis.coreference.mentions import Mention, Text, with_distractors
from fairseq_ext.analysis.coreference.sieves import BASELINES
from fairseq_ext.analysis.heatmaps import draw_numbers
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.loading import check_there
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import as_text, make_column, standard_error
from fairseq_ext.evaluation.pictures import announce, new_figure, save, write_rows
from fairseq_ext.files import check_writable
from fairseq_ext.models.pretrained import computing_options
from fairseq_ext.training_logs import name_variants

RANDOM = "random"

Baselines = Mapping[str, Mapping[str, float]]
"""The accuracy of each baseline for each kind of mentions, by both names."""


class ProbedModel(NamedTuple):
    """The answers of a model, or of one repetition of it, by the name of the corpus."""

    model: str
    repetition: int
    title: str
    loss: float | None
    answers: dict[str, HeadAnswers]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext probe`."""
    add = parser.add_argument
    arguments.add(parser, "checkpoints")
    add("--coreference", nargs="+", type=Path, required=True, metavar="CORPUS")
    arguments.add(parser, "--out")
    add("--among", choices=AMONG, default="words", help="default: words")
    count = arguments.NUMBER
    add("--distractors", **count, default=0, help="of synthetic corpora; default: 0")
    add("--random", **count, default=3, help="seeds of random models; default: 3")
    arguments.add(parser, "--limit", help="texts of a corpus; default: all")
    arguments.add(parser, "--lowercase", "--data", "--max-tokens")


def run(args: argparse.Namespace) -> None:
    """Probe all models on all corpora, write the results and print a table of each corpus."""
    arguments.check_at_least(args, limit=1, max_tokens=1, distractors=0, random=0)
    check_writable(args.out, 0)
    check_there(args.checkpoints)
    corpora = [load_corpus(path, args) for path in args.coreference]
    if len({corpus.name for corpus in corpora}) < len(corpora):
        raise UsageError("--coreference has two corpora of one name; give each once")
    baselines = {corpus.name: score_baselines(corpus, args.among) for corpus in corpora}
    trained = list(probe_checkpoints(args, corpora))
    models = [*trained, *probe_random_models(args, corpora)]
    rows, best = tabulate(models)
    about = {"among": args.among, "distractors": args.distractors}
    about["left_out"] = {corpus.name: corpus.left_out for corpus in corpora}
    about |= {"checkpoints": args.checkpoints, "baselines": baselines, "best": best}
    write_rows(rows, args.out / "probe", **about)
    save(draw(trained), args.out / "probe.png")
    for corpus in corpora:
        left_out = f"{corpus.left_out} texts without antecedent left out"
        print(f"{corpus.name}, among {args.among}; {left_out}")
        print(format_table(models, corpus.name, baselines[corpus.name]))
    announce(args.out)


def load_corpus(path: Path, args: argparse.Namespace) -> Corpus:
    """Read a corpus, with distractors if it is synthetic.

    Raises:
        UsageError: it cannot be read, or --among leaves no choice.
    """
    corpus = read_corpus(path, args.limit, args.lowercase)
    if corpus.synthetic:
        corpus = corpus._replace(texts=with_distractors(corpus.texts, args.distractors, seed=1))
    if not list_asked(corpus, args.among):
        raise UsageError(
            f"{path} marks no noun phrases but antecedents, so --among {args.among} leaves no "
            "choice; give --among words, or --distractors 1 if it is synthetic"
        )
    return corpus


def list_asked(corpus: Corpus, among: str) -> list[tuple[Text, Mention]]:
    """Return the mentions that are asked, each with its text."""
    return [(text, m) for text in corpus.texts for m in text.mentions if m.has_choice(among)]


def score_baselines(corpus: Corpus, among: str) -> Baselines:
    """Return the accuracy of each baseline for each kind of mentions."""
    asked = list_asked(corpus, among)
    kinds = {ALL: asked}
    for kind in sorted({mention.kind for _, mention in asked}):
        kinds[kind] = [(text, mention) for text, mention in asked if mention.kind == kind]
    return {
        name: {
            kind: sum(is_right(text, mention) for text, mention in pairs) / len(pairs)
            for kind, pairs in kinds.items()
        }
        for name, is_right in BASELINES.items()
    }


def name_models(checkpoints: Sequence[Path]) -> list[str]:
    """Return the variant of each checkpoint, with its own name if there are several of one run."""
    folders = [path.parent.resolve() for path in checkpoints]
    return [
        f"{variant}/{path.stem}" if folders.count(folder) > 1 else variant
        for variant, path, folder in zip(name_variants(folders), checkpoints, folders, strict=True)
    ]


def probe_checkpoints(args: argparse.Namespace, corpora: Sequence[Corpus]) -> Iterator[ProbedModel]:
    """Yield the answers of each checkpoint."""
    names = name_models(args.checkpoints)
    for number, (name, path) in enumerate(zip(names, args.checkpoints, strict=True)):
        inspector = ModelInspector(path, args.data)
        answers = ask_corpora(inspector, corpora, args)
        repetition = names[: number + 1].count(name)
        yield ProbedModel(name, repetition, inspector.title, read_loss(path), answers)


def probe_random_models(
    args: argparse.Namespace, corpora: Sequence[Corpus]
) -> Iterator[ProbedModel]:
    """Yield the answers of --random models with random parameters, for each shape of model."""
    if not args.random:
        return
    shapes: dict[Any, tuple[str, Path]] = {}  # and settings
    for name, path in zip(name_models(args.checkpoints), args.checkpoints, strict=True):
        inspector = ModelInspector(path, args.data)
        shape = [(part, p.shape) for part, p in inspector.model.named_parameters()]
        options = sorted(computing_options(inspector.options).items())
        key = inspector.name, inspector.data, str(shape), str(options)
        shapes.setdefault(key, (name, path))
    for name, path in shapes.values():
        model = RANDOM if len(shapes) == 1 else f"{RANDOM}, as {name}"
        for seed in range(1, args.random + 1):
            inspector = ModelInspector(path, args.data, untrained=True, seed=seed)
            answers = ask_corpora(inspector, corpora, args)
            yield ProbedModel(model, seed, inspector.title, None, answers)


def ask_corpora(
    inspector: ModelInspector, corpora: Sequence[Corpus], args: argparse.Namespace
) -> dict[str, HeadAnswers]:
    """Return a model's answers by the name of the corpus.

    Raises:
        UsageError: the model reads too few tokens for any mention of a corpus.
    """
    answers = {}
    for corpus in corpora:
        own = ask_heads(inspector, corpus.texts, args.among, args.max_tokens)
        answers[corpus.name] = own
        if not len(own.right):
            raise UsageError(
                f"{inspector.checkpoint} reads at most {inspector.max_positions} tokens, and no "
                f"mention of {corpus.name} has its antecedent and another candidate so near; leave "
                "it out"
            )
    return answers


def read_loss(checkpoint: Path) -> float | None:
    """Return the loss of a checkpoint's last validation.

    None: it was not validated, or the best checkpoint is chosen by another metric.
    """
    state = load_checkpoint_to_cpu(str(checkpoint))
    settings = getattr(state.get("cfg"), "checkpoint", None)
    if getattr(settings, "best_checkpoint_metric", "loss") != "loss":
        return None
    return (state.get("extra_state") or {}).get("val_loss")


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
    mentions = [[str(len(each.right)) for each in group[:1]] for group in answers]
    heads = [[f"{head.layer}-{head.head}" for head in g if len(g) == 1] for g in best]
    held_out = [[head.held_out for head in group] for group in best]
    columns = [
        make_column("model", groups),
        make_column("loss", losses, _format_mean),
        make_column("mentions", mentions, " ".join),
        make_column("accuracy", accuracies(ALL), _format_mean),
        make_column("head", heads, " ".join),
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
    return f"{mean(known):.3f}" + ("" if error is None else f" ± {error:.3f}")


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
