"""The table of criterions: `<objective>[_<regulariser>]`, each registered with its own dataclass.

A composite holds the base criterion and gives it a tap: the model, with what the terms need added
to its arguments and its output kept. One forward pass serves all. In evaluation the base is alone.
"""

from dataclasses import fields, make_dataclass
from functools import partial
from itertools import combinations
from typing import Any

from fairseq.criterions import (
    CRITERION_DATACLASS_REGISTRY,
    CRITERION_REGISTRY,
    FairseqCriterion,
    register_criterion,
)
from torch import Tensor
from torch.func import functional_call

from fairseq_ext.criterions.adversarial.term import AdversarialSelfAttention
from fairseq_ext.criterions.attention_guidance import AttentionGuidance
from fairseq_ext.criterions.objectives import OBJECTIVES, Objective
from fairseq_ext.criterions.sentence_pairs import NextSentence, SentenceOrder
from fairseq_ext.criterions.terms import Log, Sample, Step, Term, unwrapped
from fairseq_ext.errors import UsageError


class Tap:
    """The model as the base criterion sees it; in training, even where one with the mean of earlier
    parameters is not."""

    def __init__(
        self,
        model: Any,
        keywords: dict[str, Any],
        training: bool,
        parameters: dict[str, Tensor] | None = None,
    ) -> None:
        self.model, self.keywords, self.parameters = model, keywords, parameters
        self.training, self.output = training, None

    def __call__(self, **inputs: Any) -> Any:
        given = {**inputs, **self.keywords}
        if self.parameters is None:
            self.output = self.model(**given)
        else:
            self.output = functional_call(unwrapped(self.model), self.parameters, (), given)
        return self.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


REGULARISERS: dict[str, type[Term]] = {"ag": AttentionGuidance, "asa": AdversarialSelfAttention}
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
        self.uses_adversaries = any(part.uses_adversaries for part in self.parts)

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Any, Any, Log]:
        """As in fairseq. What the base logs is its own loss, without the terms."""
        parts = [part for part in self.parts if part.evaluated or model.training]
        updates = model.num_updates
        keywords = {k: v for part in parts for k, v in part.keywords(updates).items()}
        tap = Tap(model, keywords, model.training)
        loss, size, log = self.base(tap, sample, reduce)
        if not parts:
            return loss, size, log

        def again(parameters: dict[str, Tensor] | None = None, **more: Any) -> tuple[Tensor, Any]:
            heard = {name: value for name, value in keywords.items() if name != "recorder"}
            other = Tap(model, {**heard, **more}, True, parameters)
            return self.base(other, sample, reduce)[0], other.output

        step = Step(
            sample=sample,
            model=model,
            output=tap.output,
            loss=loss,
            weights=self.objective.weights(self.base, sample),
            size=size,
            updates=updates,
            compared=partial(self.objective.compared, self.base, sample),
            again=again,
        )
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


ALIASES = {
    "sentence_prediction": ("sentence_classification", "sentence_regression"),
    "sentence_ranking": ("multiple_choice",),
}
"""fairseq's names of objectives -> ours; which one, the task says."""


class Alias(Composite):
    """A criterion under fairseq's name: it is built as that of the task."""

    choices: dict[str, str]

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> FairseqCriterion:
        kind = task.cfg._name
        if kind not in cls.choices:
            raise UsageError(
                f"--criterion {cfg._name} is for --task {' and '.join(cls.choices)}, and not for "
                f"{kind}; give both"
            )
        check_known(cfg, cls.choices[kind], kind)
        return CRITERION_REGISTRY[cls.choices[kind]].build_criterion(cfg, task)


def check_known(cfg: Any, name: str, task: str) -> None:
    """Raises UsageError for an option that the criterion of this name does not have."""
    known = {field.name for field in fields(CRITERION_DATACLASS_REGISTRY[name])}
    for field in fields(CRITERION_DATACLASS_REGISTRY[cfg._name]):
        value = getattr(cfg, field.name)
        if field.name not in known and str(value) != str(field.default):
            flag = "--" + field.name.replace("_", "-")
            raise UsageError(f"{flag} is {value}, without effect in --task {task}; leave it out")


def _register_alias(name: str, kinds: tuple[str, ...], more: tuple[str, ...]) -> None:
    full = "_".join((name, *more))
    choices = {kind: "_".join((kind, *more)) for kind in kinds}
    class_name = "".join(part.capitalize() for part in full.split("_"))
    bases = tuple(CRITERION_DATACLASS_REGISTRY[choice] for choice in choices.values())
    config = make_dataclass(class_name + "Config", [], bases=bases)
    register_criterion(full, dataclass=config)(type(class_name, (Alias,), {"choices": choices}))


for _many in range(1, len(REGULARISERS) + 1):
    for _more in combinations(REGULARISERS, _many):
        for _alias, _kinds in ALIASES.items():
            _register_alias(_alias, _kinds, _more)
