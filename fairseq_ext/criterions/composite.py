"""Composite criterions `<objective>[_<regulariser>...]`, registered from one table.

A composite criterion holds the criterion of the objective and gives it the model with a tap: the
terms' arguments are added to the call, and the output is kept for the terms. One forward pass
serves all. In evaluation the objective is alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from fairseq import criterions
from torch import Tensor, nn
from torch.func import functional_call

from fairseq_ext.attention.parts import check_name
from fairseq_ext.criterions.adversarial.adversarial_attention import AdversarialSelfAttention
from fairseq_ext.criterions.attention_guidance import AttentionGuidance
from fairseq_ext.criterions.closing_heads import OpenHeads
from fairseq_ext.criterions.logging_outputs import Log, Sample
from fairseq_ext.criterions.objectives import OBJECTIVES, Objective
from fairseq_ext.criterions.rdrop import RDrop
from fairseq_ext.criterions.sentence_pairs import NextSentence, SentenceOrder
from fairseq_ext.criterions.terms import Term, TrainingStep, unwrap
from fairseq_ext.criterions.two_copies import double_inputs, halve
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import check_requirements, default_options, joined_config


@dataclass(eq=False)
class TappedModel:
    """The model as the criterion of an objective sees it.

    It is in training mode even where a model with the mean of earlier parameters is not.

    Args:
        keywords: the terms' arguments.
        training: whether it is in training mode.
        parameters: these are taken in the place of its own, if there are any.

    Attributes:
        output: the output of the last call.
    """

    model: Any
    keywords: dict[str, Any]
    training: bool
    parameters: dict[str, Tensor] | None = None
    output: Any = None

    def __call__(self, **inputs: Any) -> Any:
        """Call the model with the terms' arguments, and with other parameters if there are any."""
        inputs = {**inputs, **self.keywords}
        if self.parameters is None:
            self.output = self.model(**inputs)
        else:
            model = unwrap(self.model)
            places = name_every_place(model, self.parameters)
            self.output = functional_call(model, places, (), inputs, tie_weights=False)
        return self.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


@dataclass(eq=False)
class DoublyTappedModel(TappedModel):
    """The model that reads a batch twice at once, and answers for one copy after the other."""

    other: Any = None

    def __call__(self, **inputs: Any) -> Any:
        """Return the output for the first copy, and when called again that for the second one."""
        if self.other is None:
            self.output, self.other = halve(super().__call__(**double_inputs(inputs)))
        else:
            self.output, self.other = self.other, None
        return self.output


def name_every_place(model: nn.Module, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters under a name for each place of a model that has them, each place once.

    torch's `functional_call` ties shared parameters by all of their names: two names of one place,
    as of an embedding that is shared as a module, would leave the new tensor in the model.
    """
    new = {id(p): parameters[name] for name, p in model.named_parameters() if name in parameters}
    return {
        f"{path}.{name}" if path else name: new[id(parameter)]
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in new
    }


REGULARISERS: dict[str, type[Term]] = {
    "ag": AttentionGuidance,
    "asa": AdversarialSelfAttention,
    "rdrop": RDrop,
    "l0": OpenHeads,
}
"""Terms that any objective can have; see `fairseq_ext.registry.register_regulariser`."""

TERMS: dict[str, type[Term]] = {"nsp": NextSentence, "sop": SentenceOrder, **REGULARISERS}


class CompositeCriterion(criterions.FairseqCriterion):
    """The base class of all composite criterions.

    Attributes:
        objective: the row of OBJECTIVES.
        terms: the names of the terms.
        base: the criterion of the objective.
        parts: the terms.
    """

    objective: Objective
    terms: tuple[str, ...]

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(task)
        self.base = criterions.CRITERION_REGISTRY[self.objective.base].build_criterion(cfg, task)
        self.parts = [TERMS[term].build(cfg, task) for term in self.terms]
        self.uses_adversaries = any(part.uses_adversaries for part in self.parts)

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Any, Any, Log]:
        """Return loss, sample size and logging output. The logged "loss" is without the terms."""
        parts = [part for part in self.parts if part.in_evaluation or model.training]
        for part in parts:
            sample = part.prepare(sample)
        updates = model.num_updates
        keywords = {k: v for part in parts for k, v in part.keywords(updates).items()}
        tap = DoublyTappedModel if any(part.doubles for part in parts) else TappedModel
        tapped = tap(model, keywords, model.training)
        loss, size, log = self.base(tapped, sample, reduce)
        if not parts:
            return loss, size, log

        def rerun(parameters: dict[str, Tensor] | None = None, **more: Any) -> tuple[Tensor, Any]:
            unrecorded = {name: value for name, value in keywords.items() if name != "recorder"}
            again = TappedModel(model, {**unrecorded, **more}, True, parameters)
            return self.base(again, sample, reduce)[0], again.output

        def compute_copy() -> tuple[Tensor, Any]:
            return self.base(tapped, sample, reduce)[0], tapped.output

        step = TrainingStep(
            sample=sample,
            model=model,
            output=tapped.output,
            loss=loss,
            weights=self.objective.weigh_rows(self.base, sample),
            sample_size=size,
            updates=updates,
            select_predictions=partial(self.objective.select_predictions, self.base, sample),
            rerun=rerun,
            compute_copy=compute_copy,
            task_terms=[part for part in parts if part.in_evaluation],
        )
        for part in parts:
            term_loss, term_log = part.loss(step)
            loss, log = loss + term_loss, log | term_log
        return loss, size, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Log]) -> None:
        """Log the metrics of the objective and of the terms."""
        criterions.CRITERION_REGISTRY[cls.objective.base].reduce_metrics(logging_outputs)
        for term in cls.terms:
            TERMS[term].reduce_metrics(logging_outputs)

    @classmethod
    def logging_outputs_can_be_summed(cls) -> bool:
        """Return whether the objective's logging outputs hold nothing but numbers."""
        return criterions.CRITERION_REGISTRY[cls.objective.base].logging_outputs_can_be_summed()


ALIASES = {
    "sentence_prediction": ("sentence_classification", "sentence_regression"),
    "sentence_ranking": ("multiple_choice",),
}
"""fairseq's name of an objective -> our names, of which the task decides."""


class AliasCriterion(CompositeCriterion):
    """A criterion under fairseq's name, built as the criterion of the task.

    Attributes:
        choices: name of a task -> name of its criterion.
    """

    choices: dict[str, str]

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> criterions.FairseqCriterion:
        """Build the task's criterion; raise UsageError for options that it does not have."""
        kind = task.cfg._name
        if kind not in cls.choices:
            raise UsageError(
                f"--criterion {cfg._name} is for --task {' and '.join(cls.choices)}, and not for "
                f"{kind}; give both"
            )
        registry = criterions.CRITERION_DATACLASS_REGISTRY
        defaults = default_options(registry[cfg._name])
        values = {"task": kind, **{name: getattr(cfg, name) for name in defaults}}
        known = {each: default_options(registry[name]) for each, name in cls.choices.items()}
        requirements = {
            name: (["task"], [each for each in known if name in known[each]]) for name in defaults
        }
        check_requirements(values, defaults, {}, requirements)
        return criterions.CRITERION_REGISTRY[cls.choices[kind]].build_criterion(cfg, task)


def _register(name: str, kind: type, configs: Sequence[type], **members: Any) -> None:
    """Register a criterion whose options are those of several dataclasses, the last one's first."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    config = joined_config(class_name + "Config", configs)
    criterions.register_criterion(name, dataclass=config)(type(class_name, (kind,), members))


def _register_composites(combination: Sequence[str]) -> None:
    """Register every objective with a combination of regularisers, and fairseq's names of them."""
    for name, objective in OBJECTIVES.items():
        if terms := (*objective.terms, *combination):
            configs = [*filter(None, (TERMS[term].config for term in reversed(terms)))]
            configs.append(criterions.CRITERION_DATACLASS_REGISTRY[objective.base])
            full = "_".join((name, *combination))
            _register(full, CompositeCriterion, configs, objective=objective, terms=terms)
    for name, tasks in ALIASES.items() if combination else ():
        choices = {task: "_".join((task, *combination)) for task in tasks}
        configs = [criterions.CRITERION_DATACLASS_REGISTRY[each] for each in choices.values()]
        _register("_".join((name, *combination)), AliasCriterion, configs, choices=choices)


def _combine(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every combination of regularisers of which at most one makes a second pass."""
    chosen = (c for n in range(len(names) + 1) for c in combinations(names, n))
    return [c for c in chosen if sum(REGULARISERS[name].second_pass for name in c) <= 1]


def add_regulariser(name: str, term: type[Term]) -> None:
    """Register a regulariser, and the criterions `<objective>_…_<name>` with it.

    Raises:
        UsageError: the name is taken or none, or `term` is no subclass of Term.
    """
    check_name("regulariser", name, TERMS)
    if not (isinstance(term, type) and issubclass(term, Term)):
        raise UsageError(
            f"the regulariser {name!r} is {term!r}; register a subclass of "
            "fairseq_ext.criterions.terms.Term"
        )
    REGULARISERS[name] = TERMS[name] = term
    for combination in _combine([*REGULARISERS]):
        if name in combination:
            _register_composites(combination)


for _combination in _combine([*REGULARISERS]):
    _register_composites(_combination)
