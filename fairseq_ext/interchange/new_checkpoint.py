"""A checkpoint of an encoder that was not trained here."""

from pathlib import Path
from typing import Any

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor


def make_checkpoint(model: dict[str, Any], state: dict[str, Tensor], data: Path) -> dict[str, Any]:
    """Return a checkpoint as `fairseq-train` saves it, before any update."""
    task = {"data": str(data), "tokens_per_sample": model["max_positions"]}
    architecture = MODEL_DATACLASS_REGISTRY[model["_name"]]
    parts = {
        "model": (architecture, model),
        "task": (TASK_DATACLASS_REGISTRY["masked_lm"], {"_name": "masked_lm", **task}),
        "criterion": (CRITERION_DATACLASS_REGISTRY["masked_lm"], {"_name": "masked_lm"}),
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
