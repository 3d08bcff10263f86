"""Checks of what trains attention: patterns of guidance, and regularisers of criterions."""

from typing import Any

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.tasks.fairseq_task import StatefulContainer
from torch import Tensor

from fairseq_ext.criterions.composite import REGULARISERS
from fairseq_ext.mechanisms.guidance.patterns import PATTERNS, View
from fairseq_ext.models.mixins import report_model
from fairseq_ext.models.model_report import get_model_report
from fairseq_ext.testing import invariants
from fairseq_ext.testing.mechanisms import build_tiny_model

OBJECTIVE = "label_smoothed_cross_entropy"


def check_pattern(name: str, marks: tuple[int, ...] = (6, 11)) -> None:
    """Check a registered pattern: its shape, its rows, and that padding changes nothing.

    Args:
        name: as given to `register_pattern`.
        marks: ids of tokens that stand for its symbols.
    """
    assert name in PATTERNS, f"no pattern {name!r} is registered"
    alone = [_rows(name, [each], "right", 0, marks)[0] for each in invariants.SENTENCES]
    for side in ("left", "right"):
        for row, own in zip(_rows(name, invariants.SENTENCES, side, 2, marks), alone, strict=True):
            torch.testing.assert_close(row, own)
            ahead = bool(row.triu(1).any())
            assert PATTERNS[name].looks_ahead or not ahead, f"{name} looks ahead; declare it"


def _rows(name: str, sentences: Any, side: str, extra: int, marks: Any) -> list[Tensor]:
    """Return the rows P [T, S] of each sentence, without padding; uniform ones are all 0."""
    tokens = invariants.batch(sentences, side, extra)
    real = tokens.ne(invariants.PAD)
    rows = PATTERNS[name].rows(View(tokens, real, real, marks=marks))
    if rows.dtype == torch.long:
        rows = (
            torch.nn.functional.one_hot(rows.clamp(min=0), tokens.size(1)) * (rows >= 0)[..., None]
        )
    elif rows.dtype == torch.bool:
        rows = rows[:, None].expand(-1, tokens.size(1), -1)
    return [p[keep][:, keep].float() for p, keep in zip(rows, real, strict=True)]


class _Task:
    """A task that is as much as criterions ask for."""

    def __init__(self, words: Any) -> None:
        self.source_dictionary = self.target_dictionary = words
        self.cfg, self.state = None, StatefulContainer()


def check_regulariser(name: str, **options: Any) -> None:
    """Check a registered regulariser beside label-smoothed cross-entropy.

    The loss of a batch is the sum over its sentences, with finite gradients; in evaluation it is
    the objective's own.

    Args:
        name: as given to `register_regulariser`.
        options: of the criterion, where they are not to be the default ones.
    """
    assert name in REGULARISERS, f"no regulariser {name!r} is registered"
    model = build_tiny_model("transformer_una_tiny").train()
    task = _Task(model.encoder.dictionary)
    report_model(model, task)
    assert get_model_report(task).guidable
    made = {each: _build(each, task, options) for each in (OBJECTIVE, f"{OBJECTIVE}_{name}")}
    plain, criterion = made.values()
    everything = range(len(invariants.SENTENCES))
    total = criterion(model, _sample(everything))[0]
    parts = [criterion(model, _sample([row]))[0] for row in everything]
    torch.testing.assert_close(total, torch.stack(parts).sum(), rtol=1e-4, atol=1e-4)
    total.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    model.eval()
    pair = (each(model, _sample(everything))[0] for each in (criterion, plain))
    torch.testing.assert_close(*pair)


def _build(name: str, task: Any, options: dict[str, Any]) -> Any:
    config = CRITERION_DATACLASS_REGISTRY[name]()
    for option, value in ({"max_update": 100} | options).items():
        if hasattr(config, option):
            setattr(config, option, value)
    config.sentence_avg, config.label_smoothing, config._name = False, 0.1, name
    criterion = CRITERION_REGISTRY[name].build_criterion(config, task)
    for part in getattr(criterion, "parts", ()):
        part.begin()
    return criterion


def _sample(rows: Any) -> dict[str, Any]:
    """Return a batch of some of the sentences, as fairseq's translation task makes it."""
    sources, targets = (
        [sentences[row] for row in rows] for sentences in (invariants.SENTENCES, invariants.TARGETS)
    )
    shifted = [target[1:] + [invariants.EOS] for target in targets]
    source = invariants.batch(sources, "left")
    inputs = {
        "src_tokens": source,
        "src_lengths": source.ne(invariants.PAD).sum(1),
        "prev_output_tokens": invariants.batch(targets),
    }
    count = sum(map(len, targets))
    return {
        "net_input": inputs,
        "target": invariants.batch(shifted),
        "ntokens": count,
        "nsentences": len(targets),
    }
