"""Loading of checkpoints for analysis: the model with its parameters, its task and settings."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairseq.checkpoint_utils import load_checkpoint_to_cpu, load_model_ensemble_and_task
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel as StockRoberta
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer.transformer_legacy import TransformerModel as LegacyTransformer
from fairseq.tasks import TASK_REGISTRY

from fairseq_ext.errors import UsageError
from fairseq_ext.models.roberta import RobertaModel
from fairseq_ext.models.transformer import TransformerModel
from fairseq_ext.tasks.labelled_task import LabelledTask
from fairseq_ext.training_logs import REPETITION

STOCK = {
    TransformerModelBase: "transformer_una",
    LegacyTransformer: "transformer_una",
    StockRoberta: "roberta_una_12",
}
"""Classes of fairseq, and the architecture of ours that reads their checkpoints.

Sizes are the checkpoint's."""


def short_name(checkpoint: Path) -> str:
    """Return a name such as VARIANT/seed-1/checkpoint_last, without parts that it has not."""
    run = checkpoint.resolve().parent
    parts = [run.parent.name, run.name] if REPETITION.fullmatch(run.name) else [run.name]
    return "/".join([*parts, checkpoint.stem])


def describe_sizes(name: str, cfg: Any) -> str:
    """Return an architecture's name, with the number of layers if the name says another one."""
    size, layers = name.rpartition("_")[2], getattr(cfg, "encoder_layers", None)
    other = layers is not None and size.isdecimal() and int(size) != layers
    return f"{name} with {layers} layers" if other else name


def check_there(checkpoints: Iterable[Path]) -> None:
    """Raise UsageError unless all of these are files."""
    for checkpoint in checkpoints:
        if not checkpoint.is_file():
            problem = "is a folder" if checkpoint.is_dir() else "is not there"
            raise UsageError(f"{checkpoint} {problem}; give the path of a checkpoint")


def load(checkpoint: Path, data: Path | None) -> tuple[str, Any, Any, Any]:
    """Return the architecture, the model in evaluation mode, its task and its configuration.

    Args:
        data: the folder to read data from; by default the one that the checkpoint names.

    Raises:
        UsageError: there is no such file, it holds no model that can be analysed, or the folder of
            data lacks what the model needs.
    """
    check_there([checkpoint])
    state = load_checkpoint_to_cpu(str(checkpoint))
    if state.get("args") is not None:  # from before fairseq 0.11
        state |= {"cfg": convert_namespace_to_omegaconf(state["args"]), "args": None}
    name, ours = _architecture(state["cfg"].model, checkpoint)
    _set(state["cfg"].model, {"_name": ours, "arch": ours})
    if data is not None:
        _check_data(data, state["cfg"].task)
        _set(state["cfg"].task, {"data": str(data)})
    (model,), cfg, task = load_model_ensemble_and_task([str(checkpoint)], state=state)
    return name, model.eval(), task, cfg


def _architecture(cfg: Any, checkpoint: Path) -> tuple[str, str]:
    """Return the architecture's name in a checkpoint, and the name of ours that reads it."""
    name = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    kind = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    if kind is not None and issubclass(kind, TransformerModel | RobertaModel):
        return name, name
    if kind in STOCK:
        return name, STOCK[kind]
    raise UsageError(
        f"{checkpoint} is a {name}, whose maps cannot be had; give a translation or RoBERTa-style "
        "model of this plugin, or fairseq's own transformer or roberta"
    )


def _check_data(data: Path, cfg: Any) -> None:
    binarised = any([*data.glob("dict*.txt"), *data.glob("*/dict.txt")])
    labelled = any(data.glob("*.jsonl"))
    if not binarised and not labelled:
        raise UsageError(
            f"{data} has neither dictionaries nor examples; give a folder made by "
            "fairseq-preprocess or scripts/prepare_task.sh"
        )
    task = getattr(cfg, "_name", None) or cfg.task
    if not binarised and not issubclass(TASK_REGISTRY.get(task, LabelledTask), LabelledTask):
        raise UsageError(
            f"{data} has labelled examples, which --task {task} does not read; give a folder made "
            "by fairseq-preprocess with its dictionary, or a checkpoint fine-tuned on the examples"
        )


def _set(cfg: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if hasattr(cfg, name):
            setattr(cfg, name, value)
