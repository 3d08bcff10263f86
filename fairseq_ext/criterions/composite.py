"""The table of criterions: `<base>_<term>[_<term>]`, each registered with its own dataclass.

A composite holds the base criterion and gives it a tap: the model, with what the terms need added
to its arguments and its output kept. One forward pass serves all. In evaluation the base is alone.
"""

from collections.abc import Callable
from dataclasses import make_dataclass
from itertools import combinations
from typing import Any

from fairseq.criterions import (
    CRITERION_DATACLASS_REGISTRY,
    CRITERION_REGISTRY,
    FairseqCriterion,
    register_criterion,
)
from torch import Tensor

from fairseq_ext.criterions.attention_guidance import AttentionGuidance
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


BASES: dict[str, Callable[[Any, Sample], Tensor]] = {
    "cross_entropy": target_tokens,
    "label_smoothed_cross_entropy": target_tokens,
}
"""Name of a base criterion -> what each sentence of a batch adds to its sample size, [B]."""

TERMS: dict[str, type[Term]] = {"ag": AttentionGuidance}


class Composite(FairseqCriterion):
    """The common base of our criterions; `base_name` and `terms` are set in the table."""

    base_name: str
    terms: tuple[str, ...]

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(task)
        self.base = CRITERION_REGISTRY[self.base_name].build_criterion(cfg, task)
        self.parts = [TERMS[term](cfg, task) for term in self.terms]

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Any, Any, Log]:
        """As in fairseq. What the base logs is its own loss, without the terms."""
        if not model.training:
            return self.base(model, sample, reduce)
        updates = model.num_updates
        keywords = {k: v for part in self.parts for k, v in part.keywords(updates).items()}
        tap = Tap(model, keywords)
        loss, size, log = self.base(tap, sample, reduce)
        weights = BASES[self.base_name](self.base, sample)
        step = Step(sample, tap.output, loss, weights, size, updates)
        for part in self.parts:
            more, logged = part.loss(step)
            loss, log = loss + more, log | logged
        return loss, size, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Log]) -> None:
        CRITERION_REGISTRY[cls.base_name].reduce_metrics(logging_outputs)
        for term in cls.terms:
            TERMS[term].reduce_metrics(logging_outputs)

    @classmethod
    def logging_outputs_can_be_summed(cls) -> bool:
        return CRITERION_REGISTRY[cls.base_name].logging_outputs_can_be_summed()


def _register(base: str, terms: tuple[str, ...]) -> None:
    name = "_".join((base, *terms))
    class_name = "".join(part.capitalize() for part in name.split("_"))
    options = [option for term in terms for option in TERMS[term].options]
    config = make_dataclass(
        class_name + "Config", options, bases=(CRITERION_DATACLASS_REGISTRY[base],)
    )
    members = {"base_name": base, "terms": terms}
    register_criterion(name, dataclass=config)(type(class_name, (Composite,), members))


for _base in BASES:
    for _many in range(1, len(TERMS) + 1):
        for _terms in combinations(TERMS, _many):
            _register(_base, _terms)
