"""Every change that this package makes to fairseq, in one ordered list.

The list is written against fairseq-fixed 0.12.3.1 (and upstream fairseq), torch 2.6 to 2.15 and
numpy 1.26 to 2.5. Importing this module changes nothing; `apply` makes all changes. docs/patches.md
has the same list, printed by `docs/print_patches.py`. They touch modules
of fairseq alone; what a command needs of its process is in `commands`.
"""

from fairseq_ext.patches import (
    batches,
    checkpoints,
    kept_checkpoints,
    libraries,
    processes,
    resuming,
    searching,
    sharding,
    speed,
    task_files,
    trainer,
    updates,
    waits,
)
from fairseq_ext.wrapping import apply_once

PATCHES = (
    libraries.restore_numpy_compat,
    libraries.make_nodes_lazily,
    batches.keep_last_batch,
    batches.repeat_batches,
    batches.refresh_cached_items,
    batches.use_whole_parts,
    batches.shuffle_after_curriculum,
    batches.restart_workers,
    batches.stop_reading_ahead,
    checkpoints.copy_whole,
    checkpoints.save_whole,
    checkpoints.try_folder_safely,
    kept_checkpoints.find_scores_below_zero,
    kept_checkpoints.save_what_is_kept,
    checkpoints.load_safely,
    checkpoints.parse_settings,
    checkpoints.unpack_safely,
    checkpoints.override_model_name,
    checkpoints.check_models,
    task_files.keep_overwriting_symbols,
    task_files.read_all_vectors,
    task_files.complete_pretrained_bart,
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
    updates.count_targets_after_prefix,
    resuming.end_when_done,
    resuming.restore_plateau,
    searching.find_overlaps_by_row,
    sharding.share_parameters,
    sharding.average_gradients_on_cpus,
    speed.smooth_in_one_pass,
    speed.update_in_one_kernel,
    speed.copy_in_one_operation,
    speed.activate_in_one_kernel,
    waits.know_batches,
    waits.select_masked_tokens,
    waits.read_logs_together,
)
"""Functions that each make one change; their docstrings say why, since when and until when."""


NUMBERS = {
    *(batches.keep_last_batch, batches.repeat_batches, batches.refresh_cached_items),
    *(batches.use_whole_parts, batches.shuffle_after_curriculum, batches.restart_workers),
    *(trainer.average_last_norms, trainer.average_shared_once, trainer.unscale_once),
    *(updates.count_targets_after_prefix, searching.find_overlaps_by_row),
    *(updates.count_real_batches, speed.smooth_in_one_pass, speed.update_in_one_kernel),
    *(speed.copy_in_one_operation, speed.activate_in_one_kernel),
    *(waits.know_batches, waits.select_masked_tokens, waits.read_logs_together),
}
"""Patches that change the numbers, or the speed, of fairseq's own models."""


def apply() -> None:
    """Make every change that has not been made in this process."""
    apply_once(PATCHES, NUMBERS)
