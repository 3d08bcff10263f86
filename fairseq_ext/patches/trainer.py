"""Changes to fairseq's trainer: what it checks before a training, saves and restores.

The checks and what they know of models are imported when a training begins (see `patches`).
"""

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fairseq_ext.patches.messages import refusing
from fairseq_ext.patches.processes import check_precision, check_processes
from fairseq_ext.wrapping import wrap

TRAINER = "fairseq.trainer:Trainer"

MISFIT = (
    "{given} does not fit this model ({reason} ...); give the --arch and sizes it was saved with, "
    "or another --save-dir"
)

State = dict[str, Any]


def check_before_training() -> None:
    """Check the machine, then model and criterion, when the trainer is built."""

    def start(original: Callable, trainer: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        check_precision(cfg)
        check_processes(cfg)  # fairseq-hydra-train imports the user dir after its call_main
        original(trainer, cfg, *args, **kwargs)
        from fairseq_ext import training_checks

        training_checks.check_training(trainer.get_model(), trainer.get_criterion(), cfg)

    wrap(TRAINER, "__init__", start)


def save_all() -> None:
    """Save a fingerprint of the dictionary, and options that the model decided by itself."""

    def state_dict(original: Callable, trainer: Any) -> State:
        from fairseq_ext import training_checks
        from fairseq_ext.data.vocabulary import digest
        from fairseq_ext.models.pretrained import DIGEST

        state = original(trainer)
        if words := getattr(trainer.task, "source_dictionary", None):
            state["extra_state"][DIGEST] = digest(words.symbols)
        if decided := training_checks.decided_options(trainer.get_model()):
            state["cfg"]["model"] = {**state["cfg"]["model"], **decided}
        return state

    wrap(TRAINER, "state_dict", state_dict)


def restore_all() -> None:
    """Check a checkpoint before it is restored; give task and metrics what it keeps for them."""

    def load(
        original: Callable,
        trainer: Any,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        optimizer_overrides: Any = None,
        reset_meters: bool = False,
    ) -> Any:
        from fairseq_ext import safe_loading, training_checks
        from fairseq_ext.attention.model_report import report_of

        task_state: State = {}

        def examine(state: State) -> None:
            training_checks.check_restored(filename, state, trainer, reset_optimizer)
            task_state.update(state.get("task_state") or {})

        pretrained = trainer.cfg.checkpoint.finetune_from_model
        report_of(trainer.task).new_task_head = filename == pretrained
        if trainer.data_parallel_rank > 0 and zipfile.is_zipfile(filename):
            # the first process sends the others what it has read
            examine(safe_loading.load_checkpoint(filename, map_location="cpu", mmap=True))
        with (
            _examining(examine if trainer.data_parallel_rank == 0 else None),
            refusing("Cannot load model parameters", MISFIT, filename),
        ):
            extra = original(
                trainer,
                filename,
                reset_optimizer,
                reset_lr_scheduler,
                optimizer_overrides,
                reset_meters=reset_meters,
            )
        if extra is not None and not reset_optimizer:
            trainer.task.load_state_dict(task_state)
        _restore_metrics(trainer, extra or {}, reset_meters)
        return extra

    wrap(TRAINER, "load_checkpoint", load)
    wrap("fairseq.checkpoint_utils", "load_checkpoint_to_cpu", _read)


_examiners: list[Callable[[State], None]] = []


@contextmanager
def _examining(examine: Callable[[State], None] | None) -> Iterator[None]:
    """Call `examine` with the checkpoint that fairseq reads within."""
    _examiners.extend([examine] if examine else [])
    try:
        yield
    finally:
        _examiners.clear()


def _read(original: Callable, *args: Any, **kwargs: Any) -> State:
    state = original(*args, **kwargs)
    for examine in _examiners:
        examine(state)
    return state


def _restore_metrics(trainer: Any, extra: State, reset_meters: bool) -> None:
    """Restore what the "default" metrics have added up over a run.

    fairseq does not read it at the start of an epoch, and otherwise reads it to where nothing is
    added any more; and a training that begins from the parameters of another counts its time.
    """
    from fairseq.logging import metrics

    if reset_meters:
        trainer._previous_training_time = 0
    saved = extra.get("metrics", {})
    if "default" in saved and not reset_meters:
        metrics.load_state_dict({"default": saved["default"]})
        metrics._active_aggregators["default"] = metrics._aggregators["default"]


def register_lamb() -> None:
    """Register LAMB in plain torch in the place of fairseq's."""
    import_module("fairseq_ext.patches.lamb")
