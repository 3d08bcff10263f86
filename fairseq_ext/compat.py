"""Every remedy for the versions that fairseq has to live with, and when each can go.

Written against fairseq-fixed 0.12.3.1 (and upstream fairseq), torch 2.6 to 2.15 and numpy
1.26 to 2.5. Nothing happens on import; `apply` does it all.
"""

import functools
import importlib
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import UsageError


@functools.cache
def apply() -> None:
    """Put every remedy in place, once per process; called before fairseq does any work."""
    for remedy in REMEDIES:
        remedy()


def _replace(modules: list[str], name: str, value: Any) -> None:
    """Give each of fairseq's `modules` its own `name`: a module's globals beat the builtins."""
    for module in modules:
        setattr(importlib.import_module(module), name, value)


def _holder(owner: str) -> Any:
    """The module, or with "module:Class" the class."""
    module, _, cls = owner.partition(":")
    holder = importlib.import_module(module)
    return getattr(holder, cls) if cls else holder


def around(owner: str, name: str, wrapper: Callable) -> None:
    """Replace `owner.name` by a function that calls `wrapper(original, ...)`."""
    holder = _holder(owner)
    original = getattr(holder, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(holder, name, wrapped)


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
    _replace([f"fairseq.data.{user}" for user in users], "get_buckets", get_buckets)


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


def safe_checkpoints() -> None:
    """A checkpoint is a pickle. Goes when fairseq loads with weights_only and a list of types."""
    from fairseq_ext import safe_loading

    for module, loader in safe_loading.LOADERS.items():
        _replace([module], "torch", safe_loading.SafeTorch(loader))


def safe_settings() -> None:
    """Models `eval` settings saved in a checkpoint. Goes when fairseq reads them as literals."""
    import fairseq  # noqa: F401  (imports every model, task and criterion)

    from fairseq_ext.safe_loading import literal

    _replace([name for name in sys.modules if name.startswith("fairseq.")], "eval", literal)


def safe_archives() -> None:
    """`from_pretrained` unpacks an archive wherever its paths lead. Goes when fairseq filters."""
    import tarfile

    def inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        if member.name.startswith("/"):  # fairseq would then move the named file itself
            raise tarfile.AbsolutePathError(member)
        return tarfile.data_filter(member, folder)

    class SafeTar(tarfile.TarFile):
        extraction_filter = staticmethod(inside)

    _replace(["fairseq.file_utils"], "tarfile", types.SimpleNamespace(open=SafeTar.open))


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
            reason = " ".join(str(cause).split())[:200]
            given = next((a for a in args if isinstance(a, str | list)), "")
            raise UsageError(sentence.format(given=given, reason=reason)) from error

    return wrapped


def plain_refusals() -> None:
    """Tracebacks for what a user can mend. Goes when fairseq says these in a sentence."""
    misfit = (
        "{given} does not fit this model ({reason} ...); give the --arch and sizes it was saved "
        "with, or another checkpoint"
    )
    unwritable = "cannot write checkpoints to {given} ({reason}); choose another --save-dir"
    for owner, name, start, sentence in (
        ("fairseq.trainer:Trainer", "load_checkpoint", "Cannot load model parameters", misfit),
        ("fairseq.checkpoint_utils", "load_model_ensemble_and_task", "Error(s) in loading", misfit),
        ("fairseq.checkpoint_utils", "verify_checkpoint_directory", "[Errno", unwritable),
    ):
        holder = _holder(owner)
        setattr(holder, name, _refusing(getattr(holder, name), start, sentence))


def bf16_without_tpu(cfg: Any) -> None:
    """--bf16 implies --tpu on the command line. Goes when fairseq's options no longer do that."""
    from fairseq.distributed import utils

    if cfg.common.bf16 and utils.xm is None:
        cfg.common.tpu = False


LAUNCHER = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}  # what fairseq looks for
SLURM = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}
CPU_DDP = ("legacy_ddp", "no_c10d")
CPU_FLAGS = "--distributed-backend gloo --ddp-backend legacy_ddp"


def check_processes(cfg: Any) -> None:
    """Raise UsageError for flags with which several processes train nothing, or each the whole.

    Goes when fairseq starts processes on CPUs and takes their number from torchrun.
    """
    import torch

    if cfg.common.tpu:
        return
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    launched = os.environ.keys() >= LAUNCHER
    if launched and "LOCAL_RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        _check_torchrun(cfg.distributed_training, on_cpu)
    if on_cpu and cfg.distributed_training.distributed_world_size > 1:
        slurm = not SLURM.isdisjoint(os.environ)
        _check_cpu(cfg, started=launched or slurm or torch.cuda.device_count() > 0)


def _check_torchrun(flags: Any, on_cpu: bool) -> None:
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if flags.distributed_world_size == 1:
        needed = f"--distributed-world-size {world}" + (f" {CPU_FLAGS}" if on_cpu else "")
        raise UsageError(
            f"torchrun started {world} processes but --distributed-world-size is 1, so each would "
            f"train alone into the same folder; add {needed}"
        )
    by_hand = flags.distributed_no_spawn and flags.distributed_rank == rank
    if flags.distributed_init_method and not by_hand:
        raise UsageError(
            f"torchrun started this process as rank {rank} of {world}, which fairseq ignores with "
            f"--distributed-init-method {flags.distributed_init_method}; leave that flag out, or "
            f"give this process --distributed-no-spawn --distributed-rank {rank} too"
        )


def _check_cpu(cfg: Any, started: bool) -> None:
    flags, world = cfg.distributed_training, cfg.distributed_training.distributed_world_size
    if not started and not (flags.distributed_no_spawn and flags.distributed_init_method):
        raise UsageError(
            f"without a GPU fairseq starts no process for --distributed-world-size {world}; use "
            f"torchrun --no-python --nproc_per_node {world} fairseq-train ... "
            f"--distributed-world-size {world} {CPU_FLAGS}"
        )
    given = f"--distributed-backend {flags.distributed_backend} --ddp-backend {flags.ddp_backend}"
    trains = cfg.optimizer is not None
    if flags.distributed_backend == "nccl" or trains and flags.ddp_backend not in CPU_DDP:
        raise UsageError(
            f"{world} processes on CPUs do not work with {given}; give {CPU_FLAGS}, or "
            "--distributed-world-size 1"
        )


def process_flags() -> None:
    """`bf16_without_tpu` and `check_processes` for every command that may start processes."""

    def call_main(original: Callable, cfg: Any, main: Callable, **kwargs: Any) -> Any:
        bf16_without_tpu(cfg)
        check_processes(cfg)
        return original(cfg, main, **kwargs)

    def start(original: Callable, trainer: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        check_processes(cfg)  # fairseq-hydra-train imports the user dir after its call_main
        original(trainer, cfg, *args, **kwargs)

    around("fairseq.distributed.utils", "call_main", call_main)
    around("fairseq.trainer:Trainer", "__init__", start)


def torchrun_on_cpu() -> None:
    """fairseq divides the rank by the number of GPUs. Goes when it accepts that there is none."""
    import torch

    def infer(original: Callable, flags: Any) -> None:
        if torch.cuda.device_count():
            return original(flags)
        flags.distributed_init_method, flags.distributed_no_spawn = "env://", True
        flags.distributed_world_size = int(os.environ["WORLD_SIZE"])
        flags.distributed_rank, flags.device_id = int(os.environ["RANK"]), 0
        return None

    around("fairseq.distributed.utils", "_infer_torch_distributed_launch_init", infer)


def plain_errors() -> None:
    """Show a UsageError that nobody caught as one line. Goes when fairseq's commands do."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if issubclass(kind, UsageError):
            print(f"error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else hydra prints a traceback of its own


REMEDIES = (
    stock_warnings,
    numpy_compat,
    length_buckets,
    whole_data_sets,
    safe_checkpoints,
    safe_settings,
    safe_archives,
    plain_refusals,
    process_flags,
    torchrun_on_cpu,
    plain_errors,
)
