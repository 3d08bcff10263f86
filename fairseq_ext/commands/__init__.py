"""Changes that a command makes to its process, in one list: checks, messages, outputs, settings.

fairseq's commands and ours set it up when they import the plugin, and so do the processes that they
start. A program that imports the plugin does not, unless it calls `set_up`. docs/patches.md has the
same list.
"""

from fairseq_ext.commands import (
    flags,
    generation,
    input_files,
    launching,
    lengths,
    messages,
    outputs,
    process_wide,
    raw_text,
)
from fairseq_ext.errors import plain_errors
from fairseq_ext.wrapping import apply_once

CHANGES = (
    plain_errors,
    process_wide.silence_stock_warnings,
    process_wide.hide_details,
    process_wide.avoid_cudnn_attention,
    process_wide.share_configurations,
    input_files.check_user_dir,
    input_files.check_data,
    input_files.check_dictionaries,
    raw_text.check_raw_text,
    raw_text.read_input_by_lines,
    raw_text.forget_translated_lines,
    input_files.check_binarised_text,
    messages.refuse_plainly,
    outputs.write_results_whole,
    outputs.train_alone,
    generation.shard_sentences,
    generation.replace_unknown_words,
    lengths.name_long_sentences,
    lengths.evaluate_whole_text,
    outputs.write_data_whole,
    outputs.say_once_that_a_log_is_cut,
    flags.check_ranges,
    launching.run_processes,
    launching.notice_killed_workers,
)
"""Functions that each make one change; their docstrings say why, since when and until when."""

NUMBERS = {process_wide.avoid_cudnn_attention}
"""Changes that have an effect on the numbers, or the speed, of fairseq's own models."""


def set_up() -> None:
    """Let this process read flags and files, report errors and compute as fairseq's commands do."""
    apply_once(CHANGES, NUMBERS)
