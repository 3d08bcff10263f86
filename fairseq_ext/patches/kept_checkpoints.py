"""Patches of which checkpoints are kept."""

import types
from collections.abc import Callable
from typing import Any

from fairseq_ext.wrapping import wrapper_of

SCORE = r"(\d+\.?\d*)"  # in the names of the best checkpoints
_saving: list[tuple[Any, str]] = []  # settings and suffix of a checkpoint that is being saved


@wrapper_of("fairseq.checkpoint_utils", "checkpoint_paths")
def find_scores_below_zero(original: Callable, *args: Any, **how: Any) -> Any:
    """Find the best checkpoints by their scores also where these are below 0.

    Fault: --keep-best-checkpoints deletes none whose score is below 0, and keeps others than the
        best.
    Asked: who maximises a correlation; loses the best checkpoints; none.
    Since: fairseq 0.10.
    Until: save_checkpoint looks for a minus sign too.
    """
    scored = SCORE in how.get("pattern", "")
    if scored:
        how["pattern"] = how["pattern"].replace(SCORE, SCORE.replace("(", "(-?"))
    paths = original(*args, **how)
    return _pretend_worst(paths, *_saving[-1]) if scored and _saving else paths


def _pretend_worst(paths: list[str], cfg: Any, suffix: str) -> list[str]:
    """Return the best checkpoints, which fairseq has sorted, and the worst of all if some lack."""
    if len(paths) >= cfg.keep_best_checkpoints:
        return paths
    if cfg.maximize_best_checkpoint_metric:
        return [*paths, f"_-inf{suffix}.pt"]
    return [f"_inf{suffix}.pt", *paths]


@wrapper_of("fairseq.checkpoint_utils", "save_checkpoint")
def save_what_is_kept(
    original: Callable, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any
) -> Any:
    """Save the checkpoints that --save-interval-updates and --keep-best-checkpoints promise.

    Fault: An update of --save-interval-updates that ends an epoch is not saved with
        --no-epoch-checkpoints or --save-interval, nor one of fewer than --keep-best-checkpoints
        that is worse than the others.
    Asked: who gives these flags; loses checkpoints; none.
    Since: fairseq 0.9.
    Until: save_checkpoint looks for both.
    """
    every = cfg.save_interval_updates
    if (
        every > 0
        and trainer.get_num_updates() % every == 0
        and (cfg.no_epoch_checkpoints or epoch_itr.epoch % cfg.save_interval)
    ):
        epoch_itr = types.SimpleNamespace(
            epoch=epoch_itr.epoch, state_dict=epoch_itr.state_dict, end_of_epoch=lambda: False
        )
    _saving.append((cfg, trainer.checkpoint_suffix))
    try:
        return original(cfg, trainer, epoch_itr, val_loss)
    finally:
        _saving.pop()
