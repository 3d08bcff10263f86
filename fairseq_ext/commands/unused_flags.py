"""The flags that a command of fairseq accepts and does not read, in one table."""

import sys
from argparse import Namespace
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from fairseq_ext.errors import UsageError

TRAINING = (
    "train_subset curriculum validate_interval validate_interval_updates validate_after_updates "
    "fixed_validation_seed disable_validation combine_valid_subsets ignore_unused_valid_subsets "
    "max_valid_steps grouped_shuffling no_early_stop "
)
UNUSED = {
    "buffer_size": (
        "fairseq-interactive",
        "prefix_size num_shards shard_id lm_path lm_weight results_path",
        TRAINING + "valid_subset gen_subset quiet sacrebleu dataset_impl",
    ),
    "beam": ("fairseq-generate", "valid_subset", TRAINING),
    "context_window": ("fairseq-eval-lm", "valid_subset results_path", TRAINING + "quiet"),
    "path": (
        "fairseq-validate",
        "gen_subset num_shards shard_id max_valid_steps results_path post_process",
        TRAINING + "quiet",
    ),
}
"""Setting that a command alone has, or the first of them with it -> its name, flags without which
the result is not the one asked for, and other flags; --save-dir and its kin are never read."""

READ = {"checkpoint_suffix", "checkpoint_shard_count", "model_parallel_size"}  # of a checkpoint


def check_unused(args: Namespace) -> None:
    """Raise UsageError, or warn, if flags of a command are given that it does not read."""
    from fairseq.dataclass.configs import CheckpointConfig

    kind = next((setting for setting in UNUSED if setting in args), None)
    if kind is None:
        return
    command, refused, warned = UNUSED[kind]
    ignored = {*warned.split(), *(field.name for field in fields(CheckpointConfig))} - READ
    for name, value in vars(args).items():
        flag = f"--{name.replace('_', '-')}"
        if value == _read_defaults().get(name, value):
            continue
        if name in refused.split():
            raise UsageError(f"{command} does not read {flag}; leave it out")
        if name in ignored:
            _warn(f"{command} does not read {flag}, which has no effect")


@cache
def _warn(sentence: str) -> None:
    """Print a warning, once, though fairseq-validate reads its flags twice."""
    print(f"warning: {sentence}", file=sys.stderr)


@cache
def _read_defaults() -> dict[str, Any]:
    from fairseq.dataclass.configs import FairseqConfig

    sections = [field.default for field in fields(FairseqConfig)]
    settings = [each for config in sections if isinstance(config, type) for each in fields(config)]
    return {each.name: each.default for each in settings if each.default is not MISSING}
