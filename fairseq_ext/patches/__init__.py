"""Every change that this package makes to fairseq, in one ordered list.

The list is written against fairseq-fixed 0.12.3.1 (and upstream fairseq), torch 2.6 to 2.15 and
numpy 1.26 to 2.5. Importing this module changes nothing; `apply` makes all changes. docs/patches.md
has the same list as a table, printed by `python -m fairseq_ext.patches`. Patches import torch,
fairseq and our own rooms when they are applied: the first ones silence warnings of these imports.
"""

import inspect
import re
from collections.abc import Callable

from fairseq_ext.errors import plain_errors
from fairseq_ext.patches import (
    batches,
    checkpoints,
    flags,
    input_files,
    libraries,
    messages,
    outputs,
    processes,
    resuming,
    speed,
    trainer,
    updates,
)

PATCHES = (
    libraries.silence_stock_warnings,
    libraries.restore_numpy_compat,
    libraries.fix_length_buckets,
    libraries.avoid_cudnn_attention,
    libraries.make_nodes_lazily,
    libraries.share_configurations,
    batches.keep_last_batch,
    batches.repeat_batches,
    batches.refresh_cached_items,
    batches.use_whole_parts,
    batches.shuffle_after_curriculum,
    batches.restart_workers,
    batches.stop_reading_ahead,
    checkpoints.copy_whole,
    checkpoints.save_whole,
    checkpoints.find_scores_below_zero,
    checkpoints.load_safely,
    checkpoints.parse_settings,
    checkpoints.unpack_safely,
    checkpoints.override_model_name,
    checkpoints.check_models,
    input_files.check_user_dir,
    input_files.check_data,
    input_files.check_dictionaries,
    input_files.check_raw_text,
    input_files.check_binarised_text,
    messages.refuse_plainly,
    outputs.write_results_whole,
    outputs.write_data_whole,
    outputs.say_once_that_a_log_is_cut,
    flags.check_ranges,
    processes.run_processes,
    processes.gather_objects,
    processes.run_torchrun_on_cpu,
    trainer.check_before_training,
    trainer.restore_all,
    trainer.save_all,
    trainer.forget_validations,
    trainer.average_last_norms,
    trainer.average_shared_once,
    trainer.register_lamb,
    trainer.unscale_once,
    updates.count_real_batches,
    updates.stop_when_not_finite,
    resuming.end_when_done,
    resuming.restore_plateau,
    speed.smooth_in_one_pass,
    speed.update_in_one_kernel,
    plain_errors,
)
"""Functions that each make one change; their docstrings say why, since when and until when."""

_applied: set[Callable[[], None]] = set()


def apply() -> None:
    """Make every change that has not been made in this process.

    An inner call is harmless: a patch may be the first to import fairseq, which registers
    everything (see `deferred`) and so calls this again.
    """
    for patch in PATCHES:
        if patch not in _applied:
            _applied.add(patch)
            patch()


def read_facts(patch: Callable[[], None]) -> list[str]:
    """Return what the docstring of a patch says under Fault, Since and Until."""
    text = " ".join((inspect.getdoc(patch) or "").split())
    facts = re.search(r"Fault: (.+) Since: (.+)\. Until: (.+)\.$", text)
    assert facts, f"{patch.__name__} does not say its fault, since when and until when"
    return list(facts.groups())


def as_markdown() -> str:
    """Return the table of all patches, one row for each."""
    rows = [["patch", "what fairseq does", "since", "goes when"], ["---"] * 4]
    for patch in PATCHES:
        name = f"{patch.__module__.removeprefix('fairseq_ext.')}.{patch.__name__}"
        rows.append([f"`{name}`", *read_facts(patch)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
