"""What is checked before a training begins, when criterion and model first meet."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from fairseq.models import MODEL_DATACLASS_REGISTRY

from fairseq_ext.attention import Attention, Heads
from fairseq_ext.attention.blockers import USUAL
from fairseq_ext.criterions.composite import Composite
from fairseq_ext.criterions.terms import unwrapped
from fairseq_ext.errors import UsageError
from fairseq_ext.models import adversaries
from fairseq_ext.models.config import check_used
from fairseq_ext.models.monitoring import Monitored
from fairseq_ext.models.options import DEFAULTS, USERS
from fairseq_ext.patching import around


def check(model: Any, criterion: Any, name: str, clip_norm: float) -> None:
    """Raises UsageError if they do not suit each other.

    Args:
        name: of the criterion.
    """
    model = unwrapped(model)
    if isinstance(criterion, Composite) and not isinstance(model, Monitored):
        raise UsageError(
            f"--criterion {name} needs an architecture of ours; give an --arch like roberta_una or "
            "transformer_una"
        )
    for part in criterion.parts if isinstance(criterion, Composite) else ():
        part.begin()
        check_empty_rows(model, getattr(part, "empty_rows", "unmasked"))
    if "ag" in getattr(criterion, "terms", ()) and not any(
        parameter.requires_grad
        for module in model.encoder.modules()  # the only one that is ever frozen
        if isinstance(module, Attention)
        for parameter in module.parameters()
    ):
        raise UsageError(
            f"--criterion {name} guides attention, and that of a frozen encoder does not learn; "
            "leave out --freeze-encoder, or the _ag of the criterion"
        )
    adversaries.check(model, criterion, name, clip_norm)


def check_all(model: Any, criterion: Any, cfg: Any) -> None:
    """Raises UsageError if a training with this configuration has to be refused."""
    check(model, criterion, str(cfg.criterion._name), cfg.optimization.clip_norm)
    if isinstance(unwrapped(model), Monitored):
        config = MODEL_DATACLASS_REGISTRY[cfg.model._name]
        preset = {field.name: field.default for field in fields(config)}
        check_used(cfg.model, preset, DEFAULTS, USERS)


def check_empty_rows(model: Any, empty_rows: str) -> None:
    """Raises UsageError for rows of the released code where no row can be like that."""
    if empty_rows == "unmasked":
        return
    encoder = [m for m in model.modules() if isinstance(m, Attention) and m.site == "encoder"]
    groups = [group for attention in encoder for group in attention.groups]
    for other, stands_against in OTHER_ROWS.items():
        if any(stands_against(group) for group in groups):
            raise UsageError(
                f"--asa-empty-rows {empty_rows} looks at all positions by softmax, and {other}; "
                "leave one of both out"
            )


OTHER_ROWS: dict[str, Callable[[Heads], bool]] = {
    "--encoder-roles at some of them": lambda group: group.blockers != USUAL,
    "--encoder-gaussian-heads is not normalised": lambda group: not group.learned,
    "--encoder-normaliser is another one": lambda group: group.normaliser.across_queries,
}
"""Heads whose rows are no softmax over all positions."""


def install() -> None:
    """Check before every training."""

    def start(original: Callable, trainer: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        original(trainer, cfg, *args, **kwargs)  # which checks the machine first
        check_all(trainer.get_model(), trainer.get_criterion(), cfg)

    around("fairseq.trainer:Trainer", "__init__", start)
