"""Masking rates that adversaries learned in an earlier training, read from its log."""

from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.training_logs import MASKED_SHARE, read_log


def read_masking_rates(path: str | None) -> tuple[list[int], list[float]]:
    """Return the logged updates of a training with adversaries and the share masked at each.

    The rates are those logged during epochs (`train_inner`), or at the ends of epochs if there are
    more of them.

    Args:
        path: folder of the training, with a train.log, or the log itself.

    Raises:
        UsageError: there is no such log, or no adversary in it.
    """
    if not path:
        raise UsageError(
            "--asa-baseline scheduled takes its rates from a training with adversaries; give "
            "--asa-log, its --save-dir with a train.log, or the log itself"
        )
    kinds: dict[str, dict[int, float]] = {"train_inner": {}, "train": {}}
    for kind, update, values in read_log(Path(path)):
        if kind in kinds and any(name.startswith(f"{MASKED_SHARE}_") for name in values):
            kinds[kind][update] = values[MASKED_SHARE]
    rates = max(kinds.values(), key=len)
    if not rates:
        raise UsageError(
            f"--asa-log {path} names no {MASKED_SHARE}_0; give that of a training with adversaries"
        )
    return list(rates), list(rates.values())
