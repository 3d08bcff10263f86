"""Small checkpoints, as `fairseq-train` would write them."""

from pathlib import Path

import torch


def make_state(options: dict, parameters: dict | None = None, **parts: object) -> dict:
    """A checkpoint of a model with these options, after no update; `parts` take others' place."""
    name = options.get("_name") or "roberta_una_12"
    return {
        "args": None,
        "cfg": {"model": {**options, "_name": name}, "task": {"_name": "masked_lm"}},
        "model": parameters or {"w": torch.ones(1)},
        "optimizer_history": [{"num_updates": 0, "optimizer_name": "", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        **parts,
    }


def save_state(path: Path, options: dict, parameters: dict | None = None, **parts: object) -> str:
    """Save `make_state`, and return the path as text."""
    torch.save(make_state(options, parameters, **parts), path)
    return str(path)
