"""Small models with adversaries and the criterions of every objective; naive divergences."""

from collections.abc import Callable
from typing import Any, NamedTuple

import letter_tasks
import pytest
import torch
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.models import build_model
from fairseq.tasks.fairseq_task import StatefulContainer
from omegaconf import OmegaConf
from torch import nn

from fairseq_ext.data.rows import IGNORED

PAD, EOS = 1, 2
SOURCES = [[0, 5, 6, 7, 8, 9, EOS], [0, 10, 11, EOS], [0, 12, 5, 7, EOS], [0, 6, 5, 7, 9, 8, EOS]]
TARGETS = [[20, 21, 22, EOS], [23, EOS], [24, 25, 26, 27, EOS], [28, 21, EOS]]
MASKED = [[1, 4], [2], [1, 2, 3], []]  # in the last sentence nothing
PLACES = range(4)

SIZES = {f"encoder_{k}": v for k, v in {"embed_dim": 16, "ffn_embed_dim": 24}.items()}
SIZES |= {"encoder_layers": 3, "encoder_attention_heads": 4, "dropout": 0.0}
SIZES |= {"attention_dropout": 0.0}


class Case(NamedTuple):
    """A model in training and its criterion; `sample` makes a batch of examples by their numbers.

    Attributes:
        name: of the objective.
    """

    name: str
    model: Any
    criterion: Any
    sample: Callable[[Any], dict[str, Any]]
    task: Any

    def outputs(self, sample):
        """Return the loss, the log and all outputs of the model, with the keywords of each."""
        seen = []
        hook = self.model.register_forward_hook(
            lambda model, args, given, output: seen.append((given, output)), with_kwargs=True
        )
        loss, _, log = self.criterion(self.model, sample)
        hook.remove()
        return loss, log, seen


class Task:
    """Has what criterions and models ask of a task on text."""

    def __init__(self):
        self.source_dictionary = self.target_dictionary = Dictionary()
        for i in range(40):
            self.source_dictionary.add_symbol(f"w{i}")
        self.state, self.cfg = StatefulContainer(), OmegaConf.create({"_name": "text"})
        self.max_positions = lambda: 16


def padded(rows):
    return nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), True, PAD)


def masked_text(rows):
    tokens = padded([SOURCES[b] for b in rows])
    target = torch.full_like(tokens, PAD)
    for row, b in enumerate(rows):
        target[row, MASKED[b]] = tokens[row, MASKED[b]] + 1
    counts = {"ntokens": int(tokens.ne(PAD).sum()), "nsentences": len(rows)}
    return {"net_input": {"src_tokens": tokens, "src_lengths": None}, "target": target, **counts}


def translated(rows):
    target, written = (
        padded([[*first, *TARGETS[b]][: len(TARGETS[b])] for b in rows]) for first in ([], [EOS])
    )
    inputs = {"src_tokens": padded([SOURCES[b] for b in rows]), "src_lengths": None}
    inputs["prev_output_tokens"] = written
    counts = {"ntokens": int(target.ne(PAD).sum()), "nsentences": len(rows)}
    return {"net_input": inputs, "target": target, **counts}


LABELLED = {
    "sentence_classification": letter_tasks.classification,
    "sentence_regression": letter_tasks.regression,
    "multiple_choice": letter_tasks.choice,
    "sequence_tagging": letter_tasks.tagging,
}
TEXT = {
    "masked_lm": (masked_text, {"tpu": False}),
    "label_smoothed_cross_entropy": (translated, {"label_smoothing": 0.1, "sentence_avg": False}),
}
NAMES = [*TEXT, *LABELLED]
EVERY = pytest.mark.parametrize("name", NAMES)


def task_of(name):
    """Return a task, and what makes batches of it."""
    if name in TEXT:
        return Task(), TEXT[name][0]
    task, _, examples = LABELLED[name]()
    vars(task.cfg).update(freeze_encoder=False, word_vectors=None, pooling="first", output="mlp")
    return task, lambda rows: letter_tasks.batches(task, [examples[b] for b in rows])[0]


def build(name, criterion=None, model=None, segments=0, room=None, **options):
    """Build the objective with _asa, of a small model with adversaries, or as the options say."""
    task, sample = task_of(name)
    if room:
        task.room = room
    if segments:  # as BERT
        task.segments, task.separators = segments, 1
    arch = "transformer" if name == "label_smoothed_cross_entropy" else "roberta"
    config = {"_name": f"{arch}_asa_tiny", **SIZES}
    if arch == "transformer":
        config |= {"decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24, "decoder_layers": 1}
    made = OmegaConf.create(config | ({"segments": segments} if segments else {}) | (model or {}))
    torch.manual_seed(1)
    built = task.build_model(made) if name in LABELLED else build_model(made, task)
    for parameter in built.parameters():  # so that masks matter
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.5)
    usual = {"_name": f"{name}_asa", **TEXT.get(name, (None, {}))[1]}
    given = OmegaConf.create(usual | ({"_name": criterion} if criterion else {}) | options)
    built.train()
    built.set_num_updates(0)
    return Case(name, built, build_criterion(given, task), sample, task)


def kl(clean, other):
    p, q = clean.double().softmax(-1), other.double().softmax(-1)
    return (p * (p / q).log()).sum()


def targets(name, sample):
    """Count in each row of the source what is predicted."""
    if name in LABELLED and name != "sequence_tagging":
        rows = len(sample["net_input"]["src_tokens"])
        return torch.full((rows,), sample["nsentences"] / rows)
    return sample["target"].ne(PAD if name in TEXT else IGNORED).sum(1)


def compared(name, sample, clean, other):
    """Yield weight and both predictions of all that is compared."""
    if name == "masked_lm":
        for n in range(sum(targets(name, sample))):
            yield 1, clean[0][n], other[0][n]
        states = (output[1]["features"][:, 0] for output in (clean, other))
        yield from zip(targets(name, sample), *states, strict=True)
    elif name == "multiple_choice":
        yield from (
            (1, *pair) for pair in zip(clean[0].view(-1, 3), other[0].view(-1, 3), strict=True)
        )
    elif name.startswith("sentence"):
        yield from ((1, *pair) for pair in zip(clean[0], other[0], strict=True))
    else:
        for b, i in sample["target"].ne(PAD if name in TEXT else IGNORED).nonzero():
            yield 1, clean[0][b, i], other[0][b, i]


def divergence(name, sample, clean, other, distance):
    if name == "sentence_regression":
        distance = lambda clean, other: (clean - other).square().sum()  # noqa: E731
    return sum(w * distance(c, o) for w, c, o in compared(name, sample, clean, other))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(ours, theirs, tolerance=1e-4):
    """Compare gradients, of which some are 10^4 times as large as others."""
    assert ours.keys() == theirs.keys() and ours
    for n, gradient in ours.items():
        assert (gradient - theirs[n]).norm() <= tolerance * theirs[n].norm() + 2e-4, n
