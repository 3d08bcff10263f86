"""Patches of how a training is resumed: it continues exactly where it was, or not at all."""

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fairseq_ext.wrapping import wrap, wrapper_of

logger = logging.getLogger(__name__)

EARLY_STOP = "early_stop"  # in the extra state of a checkpoint: what `early_stop` returns
NOT_SAVED = ("num_bad_epochs", "cooldown_counter")


@wrapper_of("fairseq.checkpoint_utils", "load_checkpoint")
def end_when_done(original: Callable, cfg: Any, trainer: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Train nothing when the training that is resumed had come to its end.

    Fault: A training that reached --max-update, --stop-time-hours, --stop-min-lr or --patience goes
        on when its command is run again.
    Asked: who runs a command again; silent, trains on; none.
    Since: always.
    Until: fairseq_cli.train compares them first.
    """
    from fairseq.trainer import Trainer

    extra_state, batches = original(cfg, trainer, **kwargs)
    resumed = isinstance(trainer, Trainer) and trainer.get_num_updates()
    if not resumed:  # it begins, maybe from parameters of another training
        return extra_state, batches
    if not cfg.reset_meters:
        for function in _early_stops():
            function.__dict__.update(extra_state.get(EARLY_STOP, {}))
    validated = extra_state.get("val_loss") is not None
    if validated and batches.iterations_in_epoch == 0 and not cfg.reset_lr_scheduler:
        trainer.lr_step(batches.epoch, extra_state["val_loss"])  # it followed the save
    if end := find_end(trainer):
        logger.info("the training is done already, and nothing is changed: %s", end)
        trainer.cfg.optimization.max_epoch = -1  # main begins no epoch after it
    return extra_state, batches


def find_end(trainer: Any) -> str:
    """Return why a restored training has come to its end, or an empty text."""
    cfg, updates, worse = trainer.cfg, trainer.get_num_updates(), early_stop().get("num_runs", 0)
    most, longest = cfg.optimization.max_update, cfg.optimization.stop_time_hours
    hours, patience = trainer.cumulative_training_time() / 3600, cfg.checkpoint.patience
    if 0 < most <= updates:
        return f"it has {updates} updates, and --max-update is {most}"
    if 0 < longest < hours:
        return f"it took {hours:.2f} hours, and --stop-time-hours is {longest:g}"
    if 0 < patience <= worse:
        return f"{worse} validations in a row were not better, and --patience is {patience}"
    return ""


def early_stop() -> dict[str, float]:
    """Return the best validation loss and how many validations since then were not better."""
    states = (vars(function) for function in _early_stops())
    return next(({"best": s["best"], "num_runs": s["num_runs"]} for s in states if "best" in s), {})


def _early_stops() -> Iterator[Any]:
    """Yield the function that keeps them, which `python -m fairseq_cli.train` defines twice."""
    for module in ("__main__", "fairseq_cli.train"):
        if function := getattr(sys.modules.get(module), "should_stop_early", None):
            yield function


def restore_plateau() -> None:
    """Save and restore how long the learning rate has waited for a better validation.

    Fault: A training with --lr-scheduler reduce_lr_on_plateau waits anew before the rate falls.
    Asked: who resumes; silent, another learning rate; none.
    Since: fairseq 0.6.
    Until: ReduceLROnPlateauLRSchedule.state_dict has them.
    """

    def save(original: Callable, schedule: Any) -> dict[str, Any]:
        plateau = schedule.lr_scheduler
        return original(schedule) | {name: getattr(plateau, name) for name in NOT_SAVED}

    def load(original: Callable, schedule: Any, state: dict[str, Any]) -> None:
        original(schedule, state)
        for name in NOT_SAVED:
            setattr(schedule.lr_scheduler, name, state.get(name, 0))

    owner = "fairseq.optim.lr_scheduler.reduce_lr_on_plateau:ReduceLROnPlateauLRSchedule"
    wrap(owner, "state_dict", save)
    wrap(owner, "load_state_dict", load)
