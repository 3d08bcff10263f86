"""Parameters in folders of Hugging Face."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fairseq_ext import safe_loading
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import hf_deberta
from fairseq_ext.interchange import hf_format as hf

WEIGHTS: dict[str, Callable[[str], Any]] = {
    "model.safetensors": load_file,
    "pytorch_model.bin": partial(safe_loading.load, map_location="cpu"),
}

OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

POOLER = "pooler."
UNUSED = (POOLER, "cls.seq_relationship", "embeddings.position_ids", "embeddings.token_type_ids")


def read_tensors(
    path: Path, kind: str, pooler: bool = False, heads: Sequence[str] = ()
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the parameters, named as in `hf.list_parameters`, and the names of unused ones.

    Raises:
        UsageError: there are none, no pooler or head that is named, or a file cannot be read.
    """
    tensors = {modernise_name(name, kind): value for name, value in _read_files(path)}
    if pooler and not any(name.startswith(POOLER) for name in tensors):
        raise UsageError(f"{path} has no pooler, which --pooler pretrained keeps; leave that out")
    if absent := [each for each in heads if not any(name.startswith(each) for name in tensors)]:
        raise UsageError(f"{path} has no {absent[0]}, which --leave-out names; do not name it")
    further = hf_deberta.UNUSED if kind in hf_deberta.KINDS else ()
    unwanted = [start for start in (*UNUSED, *heads, *further) if not (pooler and start == POOLER)]
    unused = [name for name in tensors if name.startswith(tuple(unwanted))]
    return {name: tensors[name] for name in tensors.keys() - unused}, unused


def _read_files(path: Path) -> Iterator[tuple[str, Tensor]]:
    name = next((name for name in WEIGHTS if hf.find_shards(path / name)), None)
    if name is None:
        raise UsageError(f"{path} has no {' and no '.join(WEIGHTS)}; give a folder that has one")
    for file in hf.find_shards(path / name):
        try:
            content = WEIGHTS[name](str(file))
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{file} cannot be read ({error}); copy it again") from None
        if not (isinstance(content, dict) and all(map(torch.is_tensor, content.values()))):
            raise UsageError(f"{file} holds more than parameters; give what save_pretrained wrote")
        yield from content.items()


def take_parameter(
    tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], path: Path, whole: str
) -> Tensor:
    """Remove a parameter and return it in 32 bits; raise UsageError if it is not of this shape.

    Args:
        whole: what has all parameters.
    """
    value = tensors.pop(name, None)
    if value is None or value.shape != shape or not value.is_floating_point():
        present = "missing" if value is None else f"{value.dtype} {[*value.shape]}"
        raise UsageError(
            f"{path}: {name} is {present}, where config.json asks for floating-point numbers "
            f"{[*shape]}; give a whole {whole}"
        )
    return value.float()


def modernise_name(name: str, kind: str) -> str:
    """Return a parameter's name without the model's prefix, as newer files write it."""
    name = name.removeprefix(f"{hf_deberta.PREFIX if kind in hf_deberta.KINDS else kind}.")
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    return name
