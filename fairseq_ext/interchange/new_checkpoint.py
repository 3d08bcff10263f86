"""Checkpoints that were not saved by a training."""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.files import rename_when_complete

CRITERIONS = {"masked_lm": "masked_lm", "language_modeling": "cross_entropy"}


def make_checkpoint(
    model: dict[str, Any], state: dict[str, Tensor], data: Path, task: str = "masked_lm"
) -> dict[str, Any]:
    """Return a checkpoint as `fairseq-train` saves it, before any update of a task."""
    longest = model.get("max_positions") or model["max_target_positions"]
    settings = {"_name": task, "data": str(data), "tokens_per_sample": longest}
    criterion = CRITERIONS[task]
    parts = {
        "model": (MODEL_DATACLASS_REGISTRY[model["_name"]], model),
        "task": (TASK_DATACLASS_REGISTRY[task], settings),
        "criterion": (CRITERION_DATACLASS_REGISTRY[criterion], {"_name": criterion}),
    }
    config: Any = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig)))
    for part, (dataclass, values) in parts.items():
        config[part] = OmegaConf.merge(OmegaConf.structured(dataclass), values)
    return {
        "args": None,
        "cfg": OmegaConf.to_container(config, resolve=True, enum_to_str=True),
        "model": state,
        "optimizer_history": [{"num_updates": 0, "optimizer_name": "", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "task_state": {},
    }


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a verb that makes one checkpoint of another."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    add("output", type=Path, metavar="OUT")
    add("--force", action="store_true", help="replace OUT if it exists")


def check_output(output: Path, force: bool) -> None:
    """Raise UsageError if a checkpoint cannot be written there, or would replace another one."""
    folder = output.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} is not a folder to write to; make it or give another output")
    if output.is_dir() or output.exists() and not force:
        raise UsageError(f"{output} exists already; choose another output, or add --force")


def write_checkpoint(state: dict, output: Path) -> None:
    """Save a checkpoint under its name only when it is complete."""
    with rename_when_complete(output) as part, part.open("wb") as file:
        torch.save(state, file)
