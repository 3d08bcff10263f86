"""Every remedy for the versions that fairseq has to live with, and when each can go.

Written against fairseq-fixed 0.12.3.1 (and upstream fairseq), torch 2.6 to 2.15 and numpy
1.26 to 2.5. Nothing happens on import; `apply` does it all.
"""

import functools
import logging
import sys
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError, plain_errors
from fairseq_ext.patching import around, holder, replace
from fairseq_ext.precision import precision_flags
from fairseq_ext.processes import gathered_objects, process_flags, torchrun_on_cpu


@functools.cache
def apply() -> None:
    """Put every remedy in place, once per process; called before fairseq does any work."""
    for remedy in REMEDIES:
        remedy()


# What stock fairseq sets off: start of the message, category, module that warns ("": any).
STOCK_WARNINGS = [
    (r"hydra\.experimental\.\w+\(\) is no longer experimental", UserWarning, ""),
    (r"\nThe version_base parameter is not specified", UserWarning, ""),
    (r"In '.*': Usage of deprecated keyword in package header", UserWarning, ""),
    (r"\n'.*' is validated against ConfigStore schema with the same name", UserWarning, ""),
    (r"\nThe strict flag in the compose API is deprecated", UserWarning, ""),
    (r"'pin_memory' argument is set as true but no accelerator is found", UserWarning, ""),
    (r"Support for mismatched key_padding_mask and attn_mask is deprecated", UserWarning, ""),
    (r"`torch\.jit\.script` is deprecated", Warning, ""),
    (r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated", FutureWarning, r"fairseq\."),
]


def stock_warnings() -> None:
    """Some thirty lines on the screen for every run. A row goes when fairseq stops causing it."""
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # on import
    for message, category, module in STOCK_WARNINGS:
        warnings.filterwarnings("ignore", message, category, module)


def numpy_compat() -> None:
    """fairseq casts to np.compat.long, gone from numpy 2. Goes when fairseq writes `int`."""
    import numpy as np

    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)  # noqa: NPY201


def length_buckets() -> None:
    """--num-batch-buckets calls np.percentile(interpolation=), gone from numpy 2.4.

    Goes when fairseq passes `method`.
    """
    import numpy as np

    def get_buckets(sizes: np.ndarray, num_buckets: int) -> np.ndarray:
        shares = np.linspace(0, 100, num_buckets + 1)
        return np.unique(np.percentile(sizes, shares, method="lower")[1:])

    users = ["data_utils", "bucket_pad_length_dataset", "audio.raw_audio_dataset"]
    replace([f"fairseq.data.{user}" for user in users], "get_buckets", get_buckets)


def whole_data_sets() -> None:
    """The last batch is dropped, without a word, if its size is not a multiple of 8.

    That is --required-batch-size-multiple; sentences are missing from training, validation and
    the output of fairseq-generate. Goes when `batch_by_size` returns every index.
    """

    def batch_by_size(original: Callable, indices: Any, *args: Any, **kwargs: Any) -> list:
        batches = original(indices, *args, **kwargs)
        kept = sum(map(len, batches))
        if kwargs.get("fixed_shapes") is None and kept < len(indices):
            batches = [*batches, indices[kept:]]
        return batches

    around("fairseq.data.data_utils", "batch_by_size", batch_by_size)


def whole_copies() -> None:
    """checkpoint_last.pt is copied under its final name: a kill then leaves one cut short, which no
    training goes on from. Goes when fairseq copies to a temporary name first.
    """

    def copy(original: Callable, source: str, target: str, overwrite: bool = False) -> Any:
        from fairseq.file_io import PathManager

        if PathManager.path_requires_pathmanager(target):
            return original(source, target, overwrite)
        copied = original(source, f"{target}.tmp", True)
        Path(f"{target}.tmp").replace(target)
        return copied

    around("fairseq.file_io:PathManager", "copy", copy)


def task_states() -> None:
    """What a task keeps in checkpoints is not given back to it when a training goes on.

    Goes when `Trainer.load_checkpoint` calls `task.load_state_dict`.
    """

    from fairseq_ext.safe_loading import load_checkpoint

    def load(original: Callable, trainer: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        extra = original(trainer, filename, *args, **kwargs)
        reset = args[0] if args else kwargs.get("reset_optimizer", False)
        if extra is not None and not reset and zipfile.is_zipfile(filename):
            state = load_checkpoint(filename, map_location="cpu", mmap=True)
            trainer.task.load_state_dict(state.get("task_state") or {})
        return extra

    around("fairseq.trainer:Trainer", "load_checkpoint", load)


def same_batches() -> None:
    """Batches are made once, from a seed plus the epoch: a training that goes on in a later epoch
    has others, and sees some sentences twice in that epoch and some never.

    Goes when `make_batches` in `FairseqTask.get_batch_iterator` seeds without the epoch.
    """

    def get(original: Callable, task: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        epoch = kwargs.get("epoch", 1)
        remade = getattr(task.cfg, "rebuild_batches", False) or not task.can_reuse_epoch_itr(
            dataset
        )
        if remade or dataset in task.dataset_to_epoch_iter:
            return original(task, dataset, *args, **kwargs)
        iterator = original(task, dataset, *args, **kwargs | {"epoch": 1})
        iterator.epoch = epoch
        dataset.set_epoch(epoch)
        return iterator

    around("fairseq.tasks.fairseq_task:FairseqTask", "get_batch_iterator", get)


def fresh_items() -> None:
    """Data sets that cache their last items give them again, as masked before, in a new epoch.

    Goes when `LRUCacheDataset.set_epoch` empties its cache.
    """
    from fairseq.data import BaseWrapperDataset, LRUCacheDataset

    def set_epoch(self: LRUCacheDataset, epoch: int) -> None:
        LRUCacheDataset.__getitem__.cache_clear()
        BaseWrapperDataset.set_epoch(self, epoch)

    LRUCacheDataset.set_epoch = set_epoch


def fresh_workers() -> None:
    """Processes that load data (--num-workers) live on, and are told of no new epoch: what is drawn
    in each, like masks, stays as in the first. Goes when `EpochBatchIterator` tells them.
    """

    def start(original: Callable, iterator: Any, *args: Any, **kwargs: Any) -> None:
        original(iterator, *args, **kwargs)
        iterator.persistent_workers = False

    around("fairseq.data.iterators:EpochBatchIterator", "__init__", start)


def run_metrics() -> None:
    """What the "default" metrics add up over a run is lost when it goes on: at the start of an
    epoch it is not read, and otherwise read to where nothing is added any more. And a training
    that begins from the parameters of another counts the time of that.

    Goes when fairseq does both, and not the last.
    """
    from fairseq.logging import metrics

    def load(
        original: Callable, trainer: Any, *args: Any, reset_meters: bool = False, **kwargs: Any
    ) -> Any:
        extra = original(trainer, *args, reset_meters=reset_meters, **kwargs)
        if reset_meters:
            trainer._previous_training_time = 0
        saved = (extra or {}).get("metrics", {})
        if "default" in saved and not reset_meters:
            metrics.load_state_dict({"default": saved["default"]})
            metrics._active_aggregators["default"] = metrics._aggregators["default"]
        return extra

    around("fairseq.trainer:Trainer", "load_checkpoint", load)


def safe_checkpoints() -> None:
    """A checkpoint is a pickle. Goes when fairseq loads with weights_only and a list of types."""
    from fairseq_ext import safe_loading

    for module, loader in safe_loading.LOADERS.items():
        replace([module], "torch", safe_loading.SafeTorch(loader))


def overridden_names() -> None:
    """An override of `_name` is the model's. Goes when fairseq does not give it to the task too."""
    from omegaconf import open_dict

    def overwrite(original: Callable, cfg: Any, overrides: dict[str, Any]) -> None:
        original(cfg, {key: value for key, value in overrides.items() if key != "_name"})
        if "_name" in overrides:
            with open_dict(cfg):
                cfg.model._name = overrides["_name"]

    around("fairseq.checkpoint_utils", "overwrite_args_by_name", overwrite)


def safe_settings() -> None:
    """Models `eval` settings saved in a checkpoint. Goes when fairseq reads them as literals."""
    import fairseq  # noqa: F401  (imports every model, task and criterion)

    from fairseq_ext.safe_loading import literal

    replace([name for name in sys.modules if name.startswith("fairseq.")], "eval", literal)


def safe_archives() -> None:
    """`from_pretrained` unpacks an archive wherever its paths lead. Goes when fairseq filters."""
    import tarfile

    def inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        if member.name.startswith("/"):  # fairseq would then move the named file itself
            raise tarfile.AbsolutePathError(member)
        return tarfile.data_filter(member, folder)

    class SafeTar(tarfile.TarFile):
        extraction_filter = staticmethod(inside)

        def extractall(self, *args: Any, **kwargs: Any) -> None:
            if not hasattr(tarfile, "data_filter"):  # there the filter would not be used
                raise UsageError(
                    f"{self.name} is an archive, and this Python unpacks them wherever paths "
                    "lead; use Python 3.11.4 or newer, or unpack it and give the folder"
                )
            super().extractall(*args, **kwargs)

    replace(["fairseq.file_utils"], "tarfile", types.SimpleNamespace(open=SafeTar.open))


FULL_KEY = "\n    full_key:"  # where a message of omegaconf begins to repeat itself


def _refusing(original: Callable, start: str, sentence: str) -> Callable:
    """`original` whose exceptions that begin with `start` become a UsageError."""

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            if not str(error).startswith(start):
                raise
            cause = error.__context__ or error
            reason = " ".join(str(cause).split(FULL_KEY)[0].split())[:200]
            given = next((a for a in args if isinstance(a, str | list)), "")
            raise UsageError(sentence.format(given=given, reason=reason)) from error

    return wrapped


def plain_refusals() -> None:
    """Tracebacks for what a user can mend. Goes when fairseq says these in a sentence."""
    misfit = (
        "{given} does not fit this model ({reason} ...); give the --arch and sizes it was saved "
        "with, or another --save-dir"
    )
    unlike = (
        "{given} does not fit the model that its options and this data make ({reason} ...); give "
        "the data that it was trained on, with its dictionary, and leave out --model-overrides"
    )
    too_long = "{reason}, or break the text into shorter samples"
    unknown = "{reason}; correct that key of the configuration, or leave it out"
    unwritable = "cannot write checkpoints to {given} ({reason}); choose another --save-dir"
    unquantised = (
        "--quant-noise-scalar quantises plain linear maps, embeddings and convolutions, and this "
        "model has {reason}; leave it out"
    )
    task = "fairseq.tasks.fairseq_task:FairseqTask"
    for owner, name, start, sentence in (
        ("fairseq.trainer:Trainer", "load_checkpoint", "Cannot load model parameters", misfit),
        ("fairseq.checkpoint_utils", "load_model_ensemble_and_task", "Error(s) in loading", unlike),
        ("fairseq.checkpoint_utils", "verify_checkpoint_directory", "[Errno", unwritable),
        ("fairseq.quantization_utils", "quantize_model_scalar", "<class", unquantised),
        ("fairseq.dataclass.utils", "merge_with_parent", "Key '", unknown),
        (task, "filter_indices_by_size", "Size of sample", too_long),
    ):
        place = holder(owner)
        setattr(place, name, _refusing(getattr(place, name), start, sentence))


REMEDIES = (
    stock_warnings,
    numpy_compat,
    length_buckets,
    whole_data_sets,
    whole_copies,
    task_states,
    same_batches,
    fresh_items,
    fresh_workers,
    run_metrics,
    safe_checkpoints,
    overridden_names,
    safe_settings,
    safe_archives,
    plain_refusals,
    process_flags,
    gathered_objects,
    torchrun_on_cpu,
    precision_flags,
    plain_errors,
)
