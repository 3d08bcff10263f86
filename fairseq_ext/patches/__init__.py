"""Every change that this package makes to fairseq, in one ordered list.

The list is written against fairseq-fixed 0.12.3.1 (and upstream fairseq), torch 2.6 to 2.15 and
numpy 1.26 to 2.5. Importing this module changes nothing; `apply` makes all changes. docs/patches.md
has the same list as a table, printed by `python -m fairseq_ext.patches`. Patches import torch,
fairseq and our own rooms when they are applied: the first ones silence warnings of these imports.
"""

from collections.abc import Callable
from typing import NamedTuple

from fairseq_ext.errors import plain_errors
from fairseq_ext.patches import (
    batches,
    checkpoints,
    hydra_nodes,
    libraries,
    messages,
    processes,
    trainer,
)


class Patch(NamedTuple):
    """A change to fairseq.

    Attributes:
        apply: the function that makes the change.
        fault: what fairseq does wrong.
        since: the first version with the fault.
        until: the condition under which the patch can go.
    """

    apply: Callable[[], None]
    fault: str
    since: str
    until: str


AFTER = "fairseq after 0.12.3 (d871f616), as fairseq-fixed"

PATCHES = (
    Patch(
        libraries.silence_stock_warnings,
        "It causes some thirty lines of warnings in every run.",
        "torch 2, hydra 1.1",
        "a row of the list goes when fairseq stops causing it",
    ),
    Patch(
        libraries.restore_numpy_compat,
        "It casts to np.compat.long, which is gone.",
        "numpy 2.0",
        "fairseq writes int",
    ),
    Patch(
        libraries.fix_length_buckets,
        "With --num-batch-buckets it calls np.percentile(interpolation=), which is gone.",
        "numpy 2.4",
        "fairseq passes method",
    ),
    Patch(
        hydra_nodes.make_nodes_lazily,
        "It makes hydra's node of every configuration when it is registered, which for all of our "
        "architectures takes a fifth of the start.",
        "fairseq 0.12",
        "fairseq stores the class instead of an instance",
    ),
    Patch(
        batches.keep_last_batch,
        "The last batch is dropped, without a word, if its size is no multiple of "
        "--required-batch-size-multiple (8): sentences are missing from training, validation and "
        "the output of fairseq-generate.",
        "fairseq 0.12",
        "batch_by_size returns every index",
    ),
    Patch(
        batches.repeat_batches,
        "Batches are made once, from a seed plus the epoch: a training resumed in a later epoch "
        "has other batches, sees some sentences twice in that epoch and some never.",
        AFTER,
        "make_batches in FairseqTask.get_batch_iterator seeds without the epoch",
    ),
    Patch(
        batches.refresh_cached_items,
        "Data sets that cache their last items return them, as masked before, in a new epoch.",
        "fairseq 0.8",
        "LRUCacheDataset.set_epoch empties its cache",
    ),
    Patch(
        batches.restart_workers,
        "Processes that load data (--num-workers) live on and are not told of a new epoch: what "
        "is sampled in each epoch, such as masks, stays as in the first.",
        "fairseq 0.12.2; not 0.12.3; again after it (d871f616), as fairseq-fixed",
        "EpochBatchIterator tells its workers",
    ),
    Patch(
        checkpoints.copy_whole,
        "checkpoint_last.pt is copied under its final name: a kill leaves one cut short, from "
        "which no training resumes.",
        "fairseq 0.7",
        "fairseq copies to a temporary name first",
    ),
    Patch(
        checkpoints.load_safely,
        "A checkpoint is a pickle, which can run code.",
        "always",
        "fairseq loads with weights_only and a list of types",
    ),
    Patch(
        checkpoints.parse_settings,
        "Models eval settings that are saved in a checkpoint.",
        "always",
        "fairseq reads them as literals",
    ),
    Patch(
        checkpoints.unpack_safely,
        "from_pretrained unpacks an archive wherever its paths lead.",
        "always",
        "fairseq filters the members",
    ),
    Patch(
        checkpoints.override_model_name,
        "An override of _name is given to the task too.",
        "fairseq 0.12",
        "overwrite_args_by_name sets it in the model alone",
    ),
    Patch(
        messages.refuse_plainly,
        "Errors that a user can mend end in a traceback.",
        "always",
        "fairseq prints a sentence for them",
    ),
    Patch(
        processes.check_every_start,
        "On CPUs several processes train nothing, or each the whole; --bf16 implies --tpu.",
        "fairseq 0.10",
        "fairseq starts processes on CPUs, takes their number from torchrun and leaves --tpu alone",
    ),
    Patch(
        processes.gather_objects,
        "Lists that criterions log are gathered through a CUDA buffer of 16 kB: that fails on "
        "CPUs, and in evaluation.",
        "fairseq 0.6",
        "fairseq uses torch's all_gather_object",
    ),
    Patch(
        processes.run_torchrun_on_cpu,
        "Under torchrun it divides the rank by the number of GPUs, also if there is none.",
        AFTER,
        "fairseq accepts that there is none",
    ),
    Patch(
        trainer.check_before_training,
        "Flags that do not go together are found late, by a traceback, or never.",
        "always",
        "fairseq refuses them before it reads data",
    ),
    Patch(
        trainer.restore_all,
        "A resumed training loses what the task keeps and what metrics add up over a run, and "
        "takes parameters of another mechanism for its own.",
        "fairseq 0.12",
        "Trainer.load_checkpoint calls task.load_state_dict and restores the default metrics",
    ),
    Patch(
        trainer.save_all,
        "Checkpoints do not say which dictionary they were trained with.",
        "always",
        "Trainer.state_dict has a fingerprint of the dictionary",
    ),
    Patch(
        trainer.register_lamb,
        "--optimizer lamb needs apex.",
        "fairseq 0.10",
        "fairseq's FusedLAMB works in plain torch",
    ),
    Patch(
        plain_errors,
        "A UsageError prints a traceback.",
        "always",
        "fairseq's commands have a way to print a sentence",
    ),
)


_applied: set[Patch] = set()


def apply() -> None:
    """Make every change that has not been made in this process.

    An inner call is harmless: a patch may be the first to import fairseq, which registers
    everything (see `deferred`) and so calls this again.
    """
    for patch in PATCHES:
        if patch not in _applied:
            _applied.add(patch)
            patch.apply()


def as_markdown() -> str:
    """Return the table of all patches, one row for each."""
    rows = [("patch", "what fairseq does", "since", "goes when"), ("---",) * 4]
    for patch in PATCHES:
        module, name = patch.apply.__module__.removeprefix("fairseq_ext."), patch.apply.__name__
        rows.append((f"`{module}.{name}`", *patch[1:]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
