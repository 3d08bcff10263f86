"""The table of criterions: `<objective>[_<regulariser>]`, each registered with its own dataclass.

A composite holds the base criterion and gives it a tap: the model, with what the terms need added
to its arguments and its output kept. One forward pass serves all. In evaluation the base is alone.
"""

from collections.abc import Callable
from dataclasses import make_dataclass
from itertools import combinations
from typing import Any, NamedTuple

from fairseq.criterions import (
    CRITERION_DATACLASS_REGISTRY,
    CRITERION_REGISTRY,
    FairseqCriterion,
    register_criterion,
)
from torch import Tensor

from fairseq_ext.criterions import replaced_tokens  # noqa: F401 (a base)
from fairseq_ext.criterions.attention_guidance import AttentionGuidance
from fairseq_ext.criterions.sentence_pairs import NextSentence, SentenceOrder
from fairseq_ext.criterions.terms import Log, Sample, Step, Term


class Tap:
    """The model as the base criterion sees it."""

    def __init__(self, model: Any, keywords: dict[str, Any]) -> None:
        self.model, self.keywords, self.output = model, keywords, None

    def __call__(self, **inputs: Any) -> Any:
        self.output = self.model(**inputs, **self.keywords)
        return self.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def target_tokens(base: FairseqCriterion, sample: Sample) -> Tensor:
    """[B] tokens of each target, or 1 with --sentence-avg."""
    real = sample["target"].ne(base.padding_idx).sum(1)
    return real.clamp(max=1) if base.sentence_avg else real


def masked_tokens(base: FairseqCriterion, sample: Sample) -> Tensor:
    """[B] masked tokens of each sentence."""
    return sample["target"].ne(base.padding_idx).sum(1)


def real_tokens(base: FairseqCriterion, sample: Sample) -> Tensor:
    """[B] tokens of each sentence."""
    return sample["net_input"]["src_tokens"].ne(base.padding_idx).sum(1)


class Objective(NamedTuple):
    """What is learned.

    Attributes:
        base: the criterion that computes its main loss.
        weights: what each sentence of a batch adds to the sample size, [B].
        terms: further losses that belong to it.
    """

    base: str
    weights: Callable[[Any, Sample], Tensor]
    terms: tuple[str, ...] = ()


OBJECTIVES = {
    "cross_entropy": Objective("cross_entropy", target_tokens),
    "label_smoothed_cross_entropy": Objective("label_smoothed_cross_entropy", target_tokens),
    "masked_lm": Objective("masked_lm", masked_tokens),
    "masked_lm_nsp": Objective("masked_lm", masked_tokens, ("nsp",)),
    "masked_lm_sop": Objective("masked_lm", masked_tokens, ("sop",)),
    "replaced_token_detection": Objective("replaced_token_detection", real_tokens),
}

REGULARISERS: dict[str, type[Term]] = {"ag": AttentionGuidance}
"""Terms that any objective can have, in every combination."""

TERMS: dict[str, type[Term]] = {"nsp": NextSentence, "sop": SentenceOrder, **REGULARISERS}


class Composite(FairseqCriterion):
    """The common base of our criterions; `objective` and `terms` are those of the table."""

    objective: Objective
    terms: tuple[str, ...]

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(task)
        self.base = CRITERION_REGISTRY[self.objective.base].build_criterion(cfg, task)
        self.parts = [TERMS[term](cfg, task) for term in self.terms]

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Any, Any, Log]:
        """As in fairseq. What the base logs is its own loss, without the terms."""
        parts = [part for part in self.parts if part.evaluated or model.training]
        updates = model.num_updates
        keywords = {k: v for part in parts for k, v in part.keywords(updates).items()}
        tap = Tap(model, keywords)
        loss, size, log = self.base(tap, sample, reduce)
        if not parts:
            return loss, size, log
        weights = self.objective.weights(self.base, sample)
        step = Step(sample, tap.output, loss, weights, size, updates)
        for part in parts:
            more, logged = part.loss(step)
            loss, log = loss + more, log | logged
        return loss, size, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Log]) -> None:
        CRITERION_REGISTRY[cls.objective.base].reduce_metrics(logging_outputs)
        for term in cls.terms:
            TERMS[term].reduce_metrics(logging_outputs)

    @classmethod
    def logging_outputs_can_be_summed(cls) -> bool:
        return CRITERION_REGISTRY[cls.objective.base].logging_outputs_can_be_summed()


def _register(name: str, objective: Objective, more: tuple[str, ...]) -> None:
    terms, name = (*objective.terms, *more), "_".join((name, *more))
    class_name = "".join(part.capitalize() for part in name.split("_"))
    options = [option for term in terms for option in TERMS[term].options]
    config = make_dataclass(
        class_name + "Config", options, bases=(CRITERION_DATACLASS_REGISTRY[objective.base],)
    )
    members = {"objective": objective, "terms": terms}
    register_criterion(name, dataclass=config)(type(class_name, (Composite,), members))


for _name, _objective in OBJECTIVES.items():
    for _many in range(not _objective.terms, len(REGULARISERS) + 1):
        for _more in combinations(REGULARISERS, _many):
            _register(_name, _objective, _more)
