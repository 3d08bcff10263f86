"""Criterions on labelled text, against naive twins and worked examples, however batched."""

import math
from argparse import Namespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq.logging import metrics
from fairseq.utils import apply_to_sample
from letter_tasks import (
    LETTERS,
    OF,
    TAGS,
    Model,
    batches,
    choice,
    classification,
    regression,
    spans,
    tagging,
    task_of,
)
from torch import nn

from fairseq_ext.criterions.labelled import (
    SentenceRegression,
    compute_metric,
    negative_pearson,
)
from fairseq_ext.data.rows import IGNORED
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks.sentences import (
    TWO_CLASSES,
    SentenceClassificationTask,
    SentenceRegressionTask,
)
from fairseq_ext.tasks.sequence_tagging import SequenceTaggingTask
from fairseq_ext.tasks.span_extraction import SpanExtractionTask


def criterion_of(task, **options):
    if isinstance(task, SentenceRegressionTask):
        options.setdefault("regression_loss", "mse")
    return OF[type(task)](task, **options)


def evaluate(task, model, samples, apart=True, **options):
    """Losses, sizes, logs, and the metrics of all batches in evaluation."""
    criterion = criterion_of(task, **options)
    found = [criterion(model.eval(), sample) for sample in samples]
    logs = [log for *_, log in found]
    with metrics.aggregate(new_root=True) as all_of_it:
        for each in [[log] for log in logs] if apart else [logs]:
            criterion.reduce_metrics(each)
    losses, sizes = [loss.item() for loss, *_ in found], [size for _, size, _ in found]
    return losses, sizes, logs, all_of_it.get_smoothed_values()


ALL = {f.__name__: f for f in (classification, regression, choice, tagging, spans)}
EVERY = pytest.mark.parametrize("kind", ALL.values(), ids=ALL)


# Naive twins of the losses: sums over examples, in nats.


def log_softmax(scores):
    scores = np.asarray(scores, float)
    return scores - np.log(np.exp(scores).sum())


def scores_of(model, tokens):
    """[S, outputs], or [outputs] of the row, in float64."""
    table = model.table.detach().double().numpy()
    every = np.array([table[token] for token in tokens])
    return every.sum(0) if model.per_row else every


def naive_classification(model, item):
    return -log_softmax(scores_of(model, item.rows[0].tokens))[item.target]


def naive_regression(model, item):
    return (scores_of(model, item.rows[0].tokens)[0] - item.target) ** 2


def naive_choice(model, item):
    return -log_softmax([scores_of(model, row.tokens)[0] for row in item.rows])[item.target]


def naive_tagging(model, item):
    scores = scores_of(model, item.rows[0].tokens)
    tags = item.example.values["tags"]
    return -sum(log_softmax(scores[1 + i])[TAGS.index(tag)] for i, tag in enumerate(tags))


def naive_spans(model, item):
    total = 0
    for row, (start, end, answered) in zip(item.rows, item.target, strict=True):
        scores = scores_of(model, row.tokens)
        probability = 1 / (1 + math.exp(-scores[0, 2]))
        total -= math.log(probability if answered else 1 - probability)
        if answered:
            total -= (log_softmax(scores[:, 0])[start] + log_softmax(scores[:, 1])[end]) / 2
    return total


TWINS = {name: globals()[f"naive_{name}"] for name in ALL}
BITS = {name: 1.0 if name == "regression" else math.log(2) for name in ALL}


def sizes_of(name, items):
    """What a loss is divided by when it is logged."""
    return sum({"tagging": lambda i: len(i.example.values["tags"]), "spans": lambda i: len(i.rows)}
               .get(name, lambda i: 1)(item) for item in items)  # fmt: skip


@EVERY
@pytest.mark.parametrize("sizes", [(7,), (4, 3), (1, 5, 1)], ids=str)
def test_losses_are_sums_over_examples_however_batched(kind, sizes):
    """Of which the logged one is the mean."""
    name, (task, model, examples) = kind.__name__, kind()
    samples = batches(task, examples, sizes)
    losses, found, _, values = evaluate(task, model, samples)
    items = [item for sample in samples for item in sample["items"]]
    expected = sum(TWINS[name](model, item) for item in items)
    assert sum(losses) == pytest.approx(expected, rel=1e-5)
    assert sum(found) == sizes_of(name, items)
    assert values["loss"] == pytest.approx(expected / sum(found) / BITS[name], abs=6e-4)


@EVERY
def test_gradients_are_sums_over_batches(kind):
    task, model, examples = kind()
    criterion, found = criterion_of(task), []
    for sizes in ((7,), (2, 5)):
        model.zero_grad()
        for sample in batches(task, examples, sizes):
            criterion(model, sample)[0].backward()
        found.append(model.table.grad.clone())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    assert found[0].abs().sum() > 0.1


@EVERY
@pytest.mark.parametrize("apart", [True, False], ids=["by batch", "by several workers"])
def test_metrics_are_of_all_batches_together(kind, apart):
    task, model, examples = kind()
    *_, expected = evaluate(task, model, batches(task, examples))
    *_, found = evaluate(task, model, batches(task, examples, (1, 4, 2)), apart)
    assert found == pytest.approx(expected, abs=2e-3)
    assert len(found) > 1 and not any(name.startswith("_") for name in found)


@EVERY
def test_training_logs_no_lists(kind):
    """They are for metrics over a whole data set."""
    task, model, examples = kind()
    (sample,) = batches(task, examples)
    *_, log = criterion_of(task)(model.train(), sample)
    lists = {name for name, value in log.items() if isinstance(value, list)}
    assert not lists
    with metrics.aggregate(new_root=True) as found:
        criterion_of(task).reduce_metrics([log])
    counted = {"accuracy"} if "correct" in log else set()
    assert set(found.get_smoothed_values()) == {"loss"} | counted


@pytest.mark.parametrize("task", OF, ids=lambda kind: kind.__name__)
def test_a_criterion_is_for_the_task_of_its_name(task):
    made = task_of(task, LETTERS)
    for kind, criterion in OF.items():
        options = {"regression_loss": "mse"} if criterion is SentenceRegression else {}
        if kind is task:
            criterion(made, **options)
            continue
        with pytest.raises(UsageError, match=f"--criterion {criterion.name} needs --task"):
            criterion(made, **options)


# Sentences.


def confusion(samples, model):
    """Predictions and labels, by hand."""
    pairs = []
    for sample in samples:
        for item in sample["items"]:
            pairs.append((int(scores_of(model, item.rows[0].tokens).argmax()), item.target))
    return pairs


def f1_of(pairs, kind):
    hits = sum(p == r == kind for p, r in pairs)
    return 2 * hits / max(1, sum(p == kind for p, _ in pairs) + sum(r == kind for _, r in pairs))


def test_two_classes_by_hand():
    """Accuracy, F1 of the second class and Matthews' correlation, in per cent."""
    task, model, examples = classification(2)
    samples = batches(task, examples, (3, 4))
    *_, values = evaluate(task, model, samples)
    pairs = confusion(samples, model)
    tp, tn, fp, fn = (pairs.count(cell) for cell in ((1, 1), (0, 0), (1, 0), (0, 1)))
    assert min(tp, tn, fp + fn) > 0  # else the figures below say little
    assert values["accuracy"] == round(100 * (tp + tn) / 7, 2)
    assert values["f1"] == pytest.approx(200 * tp / (2 * tp + fp + fn), abs=1e-3)
    scale = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert values["mcc"] == pytest.approx(100 * (tp * tn - fp * fn) / scale, abs=1e-3)


def test_several_classes_by_hand():
    task, model, examples = classification(3)
    samples = batches(task, examples, (3, 4))
    *_, values = evaluate(task, model, samples)
    pairs = confusion(samples, model)
    expected = 100 * sum(f1_of(pairs, kind) for kind in range(3)) / 3
    assert values["f1"] == pytest.approx(expected, abs=1e-3)
    assert values["accuracy"] == round(100 * sum(p == r for p, r in pairs) / 7, 2)


def test_a_class_of_three_that_does_not_occur():
    """The mean is then over the others, and not F1 of the second."""
    task, _, examples = classification(3)
    kept = [e for e in examples if e["label"] != "2"]
    model = Model(torch.tensor([[1.0, 0.5, -9.0]]).repeat(len(task.source_dictionary), 1), True)
    *_, values = evaluate(task, model, batches(task, kept))
    assert values["f1"] == pytest.approx(100 * (2 * 2 / 7 + 0) / 2, abs=1e-3)


def constant(task, outputs, per_row=True):
    return Model(torch.zeros(len(task.source_dictionary), outputs), per_row)


def test_constant_classes_have_no_correlation():
    task, _, examples = classification(2)
    *_, values = evaluate(task, constant(task, 2), batches(task, examples))
    assert values["mcc"] == 0 and values["f1"] == 0
    assert values["accuracy"] == round(200 / 7, 2) and values["loss"] == 1


def test_choices_have_an_accuracy():
    task, model, examples = choice()
    samples = batches(task, examples, (3, 4))
    *_, values = evaluate(task, model, samples)
    right = 0
    for sample in samples:
        for item in sample["items"]:
            scores = [scores_of(model, row.tokens)[0] for row in item.rows]
            right += int(np.argmax(scores)) == item.target
    assert values["accuracy"] == round(100 * right / 7, 2)
    assert set(values) == {"loss", "accuracy"}


def test_the_loss_of_one_score_is_logistic():
    torch.manual_seed(1)
    score, label = torch.randn(9, 1, requires_grad=True), torch.arange(9) % 2
    task = task_of(SentenceClassificationTask, LETTERS, "01")
    sample = {"target": label, "nsentences": 9, "ntokens": 9, "net_input": {}}
    results = []
    for loss in (
        criterion_of(task)(Fixed(TWO_CLASSES(score)), sample)[0],
        F.binary_cross_entropy_with_logits(score.view(-1), label.float(), reduction="sum"),
    ):
        results.append((loss, *torch.autograd.grad(loss, score)))
    torch.testing.assert_close(*results)
    shares = task.read_answers(TWO_CLASSES(score.detach()), {})
    for share, probability in zip(shares, score.sigmoid().view(-1).tolist(), strict=True):
        assert share["probabilities"]["1"] == pytest.approx(probability, abs=1e-6)


class Fixed(nn.Module):
    """Says the same whatever it is asked."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, task_head, **inputs):
        return self.scores, {}


# Regression.


def ranks(values):
    return [sum(v < x for v in values) + (values.count(x) + 1) / 2 for x in values]


def correlation(x, y):
    x, y = (np.asarray(side) - np.asarray(side).mean() for side in (x, y))
    return (x @ y) / math.sqrt((x @ x) * (y @ y))


@pytest.mark.parametrize("loss", ["mse", "pearson"])
def test_correlations_by_hand(loss):
    task, model, examples = regression()
    samples = batches(task, examples, (3, 4))
    *_, values = evaluate(task, model, samples, regression_loss=loss)
    items = [item for sample in samples for item in sample["items"]]
    said = [scores_of(model, item.rows[0].tokens)[0] for item in items]
    right = [item.target for item in items]
    assert values["pearson"] == pytest.approx(100 * correlation(said, right), abs=1e-3)
    expected = correlation(ranks(said), ranks(right))
    assert values["spearman"] == pytest.approx(100 * expected, abs=1e-3)
    squares = np.mean([(s - r) ** 2 for s, r in zip(said, right, strict=True)])
    assert values["mse"] == pytest.approx(squares, abs=1e-3)


def test_negative_pearson_is_of_a_batch():
    """Its loss is that of each batch, times its size."""
    task, model, examples = regression()
    losses, sizes, _, values = evaluate(
        task, model, batches(task, examples, (3, 4)), regression_loss="pearson"
    )
    expected = []
    for sample in batches(task, examples, (3, 4)):
        said = [scores_of(model, item.rows[0].tokens)[0] for item in sample["items"]]
        expected.append(-correlation(said, sample["target"].tolist()) * len(said))
    assert losses == pytest.approx(expected, abs=1e-5) and sizes == [3, 4]
    assert values["loss"] == pytest.approx(sum(expected) / 7, abs=6e-4)


def test_negative_pearson_and_its_gradient():
    torch.manual_seed(2)
    p, r = torch.randn(2, 6, dtype=torch.float64)
    assert negative_pearson(p, r).item() == pytest.approx(-correlation(p, r), abs=1e-12)
    assert torch.autograd.gradcheck(negative_pearson, (p.requires_grad_(), r))
    assert negative_pearson(3 * p + 1, p).item() == pytest.approx(-1)
    assert negative_pearson(-p, p).item() == pytest.approx(1)


@pytest.mark.parametrize("right", [[1.0, 2.0, 4.0], [3.0, 3.0, 3.0], [2.0]])
def test_constants_have_no_correlation_and_no_gradient(right):
    p = torch.full((len(right),), 0.7, requires_grad=True)
    loss = negative_pearson(p, torch.tensor(right))
    loss.backward()
    assert loss.item() == 0 and not p.grad.any()


def test_constants_have_metrics_that_are_numbers():
    task, _, examples = regression()
    *_, values = evaluate(task, constant(task, 1), batches(task, examples))
    assert values["pearson"] == values["spearman"] == 0 and values["mse"] > 0
    for example in examples:
        example["label"] = 2
    *_, values = evaluate(task, regression()[1], batches(task, examples))
    assert values["pearson"] == values["spearman"] == 0


def test_a_broken_model_is_not_the_best_one():
    predicted, right = np.array([np.nan, 1.0]), np.array([0.0, 1.0])
    meters = {"_predicted": Namespace(tensor=torch.tensor(predicted))}
    meters["_right"] = Namespace(tensor=torch.tensor(right))
    assert math.isnan(compute_metric(lambda p, r: ((p - r) ** 2).mean(), meters))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_right_numbers_are_not_rounded(half):
    """fairseq gives a model in 16 bits a batch in 16 bits."""
    task, _, examples = regression()
    for example, year in zip(examples, (1991, 1993, 70003), strict=False):
        example["label"] = year
    [sample] = batches(task, examples[:3])
    converted = apply_to_sample(lambda t: t.to(half) if t.dtype is torch.float32 else t, sample)
    assert sorted(converted["target"].tolist()) == [1991, 1993, 70003]


def test_a_single_example_has_metrics_that_are_numbers():
    task, model, examples = regression()
    *_, values = evaluate(task, model, batches(task, examples[:1]))
    assert values["pearson"] == values["spearman"] == 0
    assert values["mse"] == pytest.approx(values["loss"], abs=1e-3)


# Tags. Words are named as what the model says of them.

SAID = ["O", "B-x", "I-x", "B-y", "I-y"]


def tagged(*pairs, scheme="iob2", sizes=()):
    """Metrics where the model says one and the other is right."""
    task = task_of(SequenceTaggingTask, SAID, SAID, tag_scheme=scheme)
    table = torch.zeros(len(task.source_dictionary), len(SAID))
    for place, tag in enumerate(SAID):
        table[task.source_dictionary.index(tag), place] = 5.0
    examples = [{"words": said.split(), "tags": right.split()} for said, right in pairs]
    *_, values = evaluate(task, Model(table), batches(task, examples, sizes))
    return {name: values[name] for name in ("accuracy", "precision", "recall", "f1", "token_f1")}


def scores(*numbers):
    names = ("accuracy", "precision", "recall", "f1", "token_f1")
    return pytest.approx(dict(zip(names, numbers, strict=True)), abs=6e-3)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        # both entities are found
        ([("B-x I-x O B-y", "B-x I-x O B-y")], (100, 100, 100, 100, 100)),
        # an end is wrong: neither found nor a hit; of tokens 1 of 1 said and of 2 that are right
        ([("B-x O O", "B-x I-x O")], (200 / 3, 0, 0, 0, 200 / 3)),
        # the kind is wrong
        ([("B-y O", "B-x O")], (50, 0, 0, 0, 0)),
        # one of two is found, and one too many is said
        ([("B-x O B-y", "B-x B-y O")], (100 / 3, 50, 50, 50, 50)),
        # two that touch, said as one
        ([("B-x I-x", "B-x B-x")], (50, 0, 0, 0, 50)),
        # nothing is said
        ([("O O O", "B-x O B-y")], (100 / 3, 0, 0, 0, 0)),
        # nothing is to be said, and something is
        ([("O B-x", "O O")], (50, 0, 0, 0, 0)),
        # nothing at all
        ([("O O", "O O")], (100, 0, 0, 0, 0)),
        # what begins with I- is an entity too
        ([("I-x I-x", "B-x I-x")], (50, 100, 100, 100, 50)),
        # over sentences: 3 said, 2 to be said, 1 hit
        (
            [("B-x O", "B-x O"), ("B-y B-x O", "O O B-y")],
            (40, 100 / 3, 50, 40, 40),
        ),
    ],
)
def test_entities_and_tokens_by_hand(pairs, expected):
    assert tagged(*pairs) == scores(*expected)
    assert tagged(*pairs, sizes=(1,) * len(pairs)) == scores(*expected)


def test_entities_of_one_sentence_are_not_those_of_another():
    """Nor do entities at a sentence's end go on in the next."""
    pairs = [("B-x O", "O B-x"), ("O I-x", "B-x O")]
    assert tagged(*pairs) == scores(0, 0, 0, 0, 0)


def test_words_that_do_not_fit_count_as_not_found():
    task, model, _ = tagging()
    task.room = 5
    examples = [{"words": list("abcdefgh"), "tags": ["O"] * 7 + ["B-x"]}]
    (sample,) = batches(task, examples)
    assert sample["target"].ne(IGNORED).sum() == 3
    _, (size,), (log,), values = evaluate(task, constant(task, 4, per_row=False), [sample])
    assert size == 3 and len(log["right"]) == 8
    assert values["accuracy"] == 87.5 and values["recall"] == values["f1"] == 0


def test_tags_without_entities_have_an_accuracy_alone():
    task = task_of(SequenceTaggingTask, "ab", ["DT", "NN"], tag_scheme="none")
    task.room = 4
    examples = [
        {"words": list("ab"), "tags": ["DT", "NN"]},
        {"words": ["b"] * 4, "tags": ["DT"] * 4},
    ]
    *_, values = evaluate(task, constant(task, 2, per_row=False), batches(task, examples))
    found = {"accuracy", "precision", "recall", "f1", "token_f1"} & values.keys()
    # the first class is said of the first two words of each; the other words do not fit
    assert found == {"accuracy"} and values["accuracy"] == 50


def test_a_batch_without_a_tag_has_no_loss():
    task, model, _ = tagging()
    (sample,) = batches(task, [{"words": ["a"], "tags": ["B-x"]}])
    sample["target"].fill_(IGNORED)
    losses, *_, values = evaluate(task, model, [sample])
    assert losses == [0] and values["loss"] == 0


# Spans. The model says from the word with "(" to that with ")", and nothing if asked "none".

TEXT = "In 2016 the (Denver Broncos) defeated the Carolina Panthers"


def asked(*questions, labels=("answered", "unanswered"), sizes=()):
    """Exact match and F1 of questions, each with its answers that are right."""
    examples = []
    for question, text, right in questions:
        answers = [{"text": said, "start": text.index(said)} for said in right]
        examples.append({"text": text, "question": question, "answers": answers})
    words = sorted({word for e in examples for word in (e["text"] + " " + e["question"]).split()})
    cfg = {"stride": 4, "longest_question": 4, "longest_answer": 5}
    task = task_of(SpanExtractionTask, words, labels, **cfg)
    table = torch.zeros(len(task.source_dictionary), 3)
    for word in words:
        shown = [10.0 * ("(" in word), 10.0 * (")" in word), -5.0 if word == "none" else 5.0]
        table[task.source_dictionary.index(word)] = torch.tensor(shown)
    *_, values = evaluate(task, Asking(table), batches(task, examples, sizes))
    return values["exact_match"], values["f1"]


class Asking(Model):
    """There is an answer if the first word of the question says so."""

    def forward(self, src_tokens, task_head):
        x, extra = super().forward(src_tokens, task_head)
        return torch.cat([x[:, 1:2], x[:, 1:]], 1), extra


@pytest.mark.parametrize(
    ("question", "right", "expected"),
    [
        ("who", ["Denver Broncos"], (100, 100)),
        ("who", ["the (Denver Broncos)"], (100, 100)),  # articles and punctuation do not count
        ("who", ["Broncos"], (0, 66.67)),  # 1 of 2 words, 1 of 1
        ("who", ["Carolina", "Denver"], (0, 66.67)),  # the best of them
        ("who", ["Carolina Panthers"], (0, 0)),
        ("who", ["2016", "Denver Broncos"], (100, 100)),
        (
            "who",
            ["Broncos) defeated the Carolina"],
            (0, 40),
        ),  # 1 of 2, 1 of 3: the article is left out
        ("none", [], (100, 100)),
        ("who", [], (0, 0)),
        ("none", ["Denver"], (0, 0)),
    ],
)
def test_answers_by_hand(question, right, expected):
    assert asked((question, TEXT, right)) == pytest.approx(expected, abs=0.01)


def test_answers_of_several_questions():
    questions = [
        ("who", TEXT, ["Denver Broncos"]),
        ("who", TEXT, ["Broncos"]),
        ("none", TEXT, []),
        ("none", TEXT, ["2016"]),
    ]
    for sizes in ((4,), (1, 3), (1, 1, 2)):
        assert asked(*questions, sizes=sizes) == pytest.approx((50, 66.67), abs=0.01)


def test_all_questions_are_answered_if_those_of_training_were():
    assert asked(("none", TEXT, ["Denver Broncos"]), labels=["answered"]) == (100, 100)
