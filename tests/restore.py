"""The check of a checkpoint that is read from a file."""

from fairseq_ext import safe_loading, training_checks


def check(path, model, reset_optimizer: bool) -> None:
    """Check whether a training of `model` can go on from a file."""
    state = safe_loading.load_checkpoint(str(path), map_location="cpu")
    training_checks.check_attention(str(path), state, model, reset_optimizer)
