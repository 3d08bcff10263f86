"""What is checked before a training begins, when criterion and model first meet."""

from collections.abc import Callable
from typing import Any

from fairseq_ext.criterions.composite import Composite
from fairseq_ext.criterions.terms import unwrapped
from fairseq_ext.errors import UsageError
from fairseq_ext.models import adversaries
from fairseq_ext.models.monitoring import Monitored
from fairseq_ext.patching import around
from fairseq_ext.roles import Symbols


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
        check_roles(model, getattr(part, "empty_rows", "unmasked"))
    adversaries.check(model, criterion, name, clip_norm)


def check_roles(model: Any, empty_rows: str) -> None:
    """Raises UsageError if a second pass would look past the masks of roles."""
    if empty_rows != "unmasked" and any(isinstance(part, Symbols) for part in model.modules()):
        raise UsageError(
            f"--asa-empty-rows {empty_rows} looks at all positions and --encoder-roles at some of "
            "them; leave one of both out"
        )


def install() -> None:
    """Check before every training."""

    def start(original: Callable, trainer: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        original(trainer, cfg, *args, **kwargs)  # which checks the machine first
        name, clip_norm = str(cfg.criterion._name), cfg.optimization.clip_norm
        check(trainer.get_model(), trainer.get_criterion(), name, clip_norm)

    around("fairseq.trainer:Trainer", "__init__", start)
