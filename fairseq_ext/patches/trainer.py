"""Patches of fairseq's trainer: it checks, saves and restores more.

The modules that they need are imported when they are called: models must be registered after the
patch that makes hydra's nodes lazily.
"""

import inspect
import zipfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairseq_ext.patches.best_metric import check_metric
from fairseq_ext.patches.checkpoints import examining
from fairseq_ext.patches.resuming import EARLY_STOP, early_stop
from fairseq_ext.training.machine_checks import before_training, check_precision, check_processes
from fairseq_ext.wrapping import TRAINER, as_usage_error, wrap, wrapper_of

MISFIT = (
    "{argument} does not fit this model ({reason} ...); give the --arch and sizes it was saved "
    "with, or another --save-dir"
)

State = dict[str, Any]


@wrapper_of(TRAINER, "__init__")
def check_before_training(
    original: Callable, trainer: Any, cfg: Any, *args: Any, **kwargs: Any
) -> None:
    """Check the machine, then model and criterion, when the trainer is built.

    Fault: Flags that do not go together are found late, or never.
    Asked: who trains; partly silent; a refusal.
    Since: always.
    Until: fairseq refuses them before it reads data.
    """
    from fairseq_ext.training import training_checks

    check_precision(cfg)
    check_processes(cfg)  # fairseq-hydra-train imports the user dir after its call_main
    for check in before_training:
        check(cfg)
    original(trainer, cfg, *args, **kwargs)
    training_checks.check_training(trainer.get_model(), trainer.get_criterion(), cfg)
    check_metric(trainer)


@wrapper_of(TRAINER, "state_dict")
def save_all(original: Callable, trainer: Any) -> State:
    """Save fingerprints of the text, early stopping, adopted options, and others' packages.

    Fault: Checkpoints know neither dictionary, nor whose parts they use, nor validations since the
        best.
    Asked: who resumes; silent, another training; none.
    Since: always.
    Until: Trainer.state_dict has all three.
    """
    from fairseq_ext.data.fingerprints import FINGERPRINTS, take_fingerprints
    from fairseq_ext.data.vocabulary import digest
    from fairseq_ext.models.config import to_dict
    from fairseq_ext.models.origins import KEY, find_origins
    from fairseq_ext.models.pretrained import DIGEST
    from fairseq_ext.training import resuming_checks

    state = original(trainer)
    if words := getattr(trainer.task, "source_dictionary", None):
        state["extra_state"][DIGEST] = digest(words.symbols)
    fingerprints = take_fingerprints(trainer.task)
    state["extra_state"] |= {FINGERPRINTS: fingerprints, EARLY_STOP: early_stop()}
    if origins := find_origins(to_dict(trainer.cfg.model)):
        state["extra_state"][KEY] = origins
    if options := resuming_checks.adopted_options(trainer.get_model()):
        state["cfg"]["model"] = {**state["cfg"]["model"], **options}
    return state


@wrapper_of(TRAINER, "load_checkpoint")
def restore_all(original: Callable, trainer: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Check a checkpoint before it is restored; restore the states of task and metrics too.

    Fault: A resumed training loses the state of task and metrics, and takes another mechanism's
        parameters. With --store-ema a checkpoint without an average ends in a traceback.
    Asked: who resumes; silent, another training; none.
    Since: fairseq 0.12.
    Until: Trainer.load_checkpoint restores all.
    """
    from fairseq_ext import safe_loading
    from fairseq_ext.data.fingerprints import check_fingerprints
    from fairseq_ext.models.config import to_dict
    from fairseq_ext.models.model_report import get_model_report
    from fairseq_ext.training import resuming_checks

    given = inspect.signature(original).bind(trainer, filename, *args, **kwargs).arguments
    reset_optimizer = given.get("reset_optimizer", False)
    task_state: State = {}

    def examine(filename: str, state: State) -> None:
        check_fingerprints(filename, state.get("extra_state"), trainer.task)
        resuming_checks.check_restored(filename, state, trainer, reset_optimizer)
        if trainer.cfg.ema.store_ema:  # fairseq would look for what it has deleted
            state["extra_state"].setdefault("ema", state["model"])
        task_state.update(state.get("task_state") or {})
        if hasattr(trainer.task, "check_state") and not reset_optimizer:
            trainer.task.check_state(task_state)  # before parameters are found not to fit
            trainer.task.check_settings(to_dict((state.get("cfg") or {}).get("task") or {}))

    pretrained = trainer.cfg.checkpoint.finetune_from_model
    report = get_model_report(trainer.task)
    report.new_task_head = filename == pretrained
    all_read = trainer.cfg.checkpoint.load_checkpoint_on_all_dp_ranks
    if trainer.data_parallel_rank > 0 and not all_read and zipfile.is_zipfile(filename):
        # the first process sends the checkpoint to the others, and each has to refuse it
        state = safe_loading.load_checkpoint(filename, map_location="cpu", mmap=True)
        examine(filename, state)
    with examining(examine), as_usage_error("Cannot load model parameters", MISFIT, filename):
        extra = original(trainer, filename, *args, **kwargs)
    report.new_task_head = False  # a moving average loads its parameters at each step
    if trainer.cfg.ema.store_ema and extra is not None:
        passed = trainer.get_num_updates() % max(trainer.cfg.ema.ema_update_freq, 1)
        trainer.ema.update_freq_counter = passed
    if extra is not None and not reset_optimizer:
        trainer.task.load_state_dict(task_state)
    _restore_metrics(trainer, extra or {}, given.get("reset_meters", False))
    return extra


@wrapper_of(TRAINER, "begin_valid_epoch")
def forget_validations(original: Callable, trainer: Any, epoch: int) -> None:
    """Begin each validation without the meters of those before.

    Fault: Checkpoints keep what validations log, predictions included.
    Asked: who validates; silent, checkpoints grow; none.
    Since: fairseq 0.9.
    Until: Trainer.begin_valid_epoch resets their meters.
    """
    from fairseq.logging import metrics

    metrics.reset_meters("valid")
    original(trainer, epoch)


def _restore_metrics(trainer: Any, extra: State, reset_meters: bool) -> None:
    """Restore the sums of the "default" metrics over a training.

    At the start of an epoch fairseq does not restore them; within one it restores them to an object
    that is no longer added to. It also counts the time of another training, if a training begins
    from the other's parameters.
    """
    from fairseq.logging import metrics

    if reset_meters:
        trainer._previous_training_time = 0
    saved = extra.get("metrics", {})
    if "default" in saved and not reset_meters:
        metrics.load_state_dict({"default": saved["default"]})
        metrics._active_aggregators["default"] = metrics._aggregators["default"]


@wrapper_of("fairseq.models.ema.ema:EMA", "restore")
def average_last_norms(
    original: Callable, average: Any, state: State, *args: Any, **how: Any
) -> None:
    """Keep the last layer norms of encoder and decoder in the moving average.

    Fault: With --encoder-normalize-before or --decoder-normalize-before the average loses the last
        layer norms.
    Asked: who gives --store-ema; silent, loses parameters; none.
    Since: fairseq 0.12.
    Until: EMA.restore keeps both versions.
    """
    own = average.model.state_dict().items()
    versions = {name: value for name, value in own if "version" in name}
    original(average, versions | state, *args, **how)


@wrapper_of("fairseq.models.ema.ema:EMA", "_step_internal")
def average_shared_once(original: Callable, average: Any, model: Any, *args: Any) -> None:
    """Move the average of shared parameters once in an update.

    Fault: Shared parameters are averaged once for each name: their decay is a power of --ema-decay.
    Asked: who gives --store-ema; silent, another decay; none.
    Since: fairseq 0.12.
    Until: EMA.step keeps no tensor twice.
    """
    in_float32 = average.config.ema_fp32
    tensors = average.fp32_params if in_float32 else average.model.state_dict()
    first = {_place(tensors[name]) or name: name for name in reversed(tensors)}
    again = tensors.keys() - first.values()
    kept = {name: x for name, x in model.state_dict().items() if name not in again}
    original(average, SimpleNamespace(state_dict=lambda: kept), *args)


def _place(value: Any) -> tuple[int, ...]:
    """Return where a tensor is in memory, and its shape; nothing of others, or without elements."""
    return (value.data_ptr(), *value.shape) if hasattr(value, "numel") and value.numel() else ()


def register_lamb() -> None:
    """Register LAMB in plain torch instead of fairseq's.

    Fault: --optimizer lamb needs apex.
    Asked: who repeats the paper on DNA; loud; none.
    Since: fairseq 0.10.
    Until: fairseq's FusedLAMB works in plain torch.
    """
    from fairseq_ext.patches import lamb  # noqa: F401


def unscale_once() -> None:
    """Step the optimizer whose gradients were unscaled, and use --amp's own flags.

    Fault: Gradients are divided by the loss scale twice, and --amp-init-scale is the window.
    Asked: who gives --amp; silent, another step; none.
    Since: fairseq 0.12.
    Until: AMPOptimizer.step steps `self.optimizer`.
    """

    def build(original: Callable, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        original(self, cfg, *args, **kwargs)
        scaler, common = self.scaler, cfg.common
        if scaler.is_enabled():
            scaler.load_state_dict(scaler.state_dict() | {"scale": float(common.amp_init_scale)})
            if common.amp_scale_window is not None:
                scaler.set_growth_interval(common.amp_scale_window)

    def step(original: Callable, self: Any) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    wrap("fairseq.optim.amp_optimizer:AMPOptimizer", "__init__", build)
    wrap("fairseq.optim.amp_optimizer:AMPOptimizer", "step", step)
