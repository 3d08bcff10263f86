"""Checkpoints and configurations, as checks of trainings read them."""

from dataclasses import fields
from types import SimpleNamespace

from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_ext import safe_loading
from fairseq_ext.models.config import to_dict
from fairseq_ext.training import resuming_checks


def check(path, model, reset_optimizer: bool) -> None:
    """Check whether a training of `model` can go on from a file."""
    state = safe_loading.load_checkpoint(str(path), map_location="cpu")
    resuming_checks.check_attention(str(path), state, model, reset_optimizer)


def configure_training(name: str, criterion: str, **options) -> SimpleNamespace:
    """Return what `check_training` reads of a configuration; `name` is that of an architecture."""
    model = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[name])
    model.update({"_name": name, **options})
    lengths = {"tokens_per_sample": 8, "max_target_positions": 8}
    model = OmegaConf.create({"model": model, "task": lengths}).model  # which refers to the task
    parts = {"criterion": SimpleNamespace(_name=criterion), "task": None, "common": None}
    return SimpleNamespace(model=model, optimization=SimpleNamespace(clip_norm=0.0), **parts)


def make_options(arch: str, **given: object) -> dict:
    """Return all options of an architecture, by default or as given."""
    config = MODEL_DATACLASS_REGISTRY[arch]
    values = {"_name": arch, **{field.name: field.default for field in fields(config)}, **given}
    return to_dict(OmegaConf.create(values))
