"""Patches of how numpy, torch and hydra are used: their current versions, and a quicker start."""

import types
import warnings
from typing import Any

from fairseq_ext.wrapping import find_owner, replace, wrap

STOCK_WARNINGS = [
    (r"hydra\.experimental\.\w+\(\) is no longer experimental", UserWarning, ""),
    (r"\nThe version_base parameter is not specified", UserWarning, ""),
    (r"In '.*': Usage of deprecated keyword in package header", UserWarning, ""),
    (r"\n'.*' is validated against ConfigStore schema with the same name", UserWarning, ""),
    (r"\nThe strict flag in the compose API is deprecated", UserWarning, ""),
    (r"'pin_memory' argument is set as true but no accelerator is found", UserWarning, ""),
    (r"Support for mismatched key_padding_mask and attn_mask is deprecated", UserWarning, ""),
    (r"`torch\.jit\.script` is deprecated", Warning, ""),
    (r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated", FutureWarning, r"fairseq\."),
]
"""Start of a message that stock fairseq causes, its category, the module that warns ("": any)."""


def silence_stock_warnings() -> None:
    """Ignore the warnings of `STOCK_WARNINGS`.

    Fault: It causes some thirty lines of warnings in every run.
    Since: torch 2, hydra 1.1.
    Until: a row of the list goes when fairseq stops causing it.
    """
    for message, category, module in STOCK_WARNINGS:
        warnings.filterwarnings("ignore", message, category, module)


def restore_numpy_compat() -> None:
    """Give numpy 2 the `compat.long` that fairseq casts to.

    Fault: It casts to np.compat.long, which is gone.
    Since: numpy 2.0.
    Until: fairseq writes int.
    """
    import numpy as np

    if not hasattr(np, "compat"):
        replace(["numpy"], "compat", types.SimpleNamespace(long=int))


def fix_length_buckets() -> None:
    """Compute length buckets with the `method` argument of np.percentile.

    Fault: With --num-batch-buckets it calls np.percentile(interpolation=), which is gone.
    Since: numpy 2.4.
    Until: fairseq passes method.
    """
    import numpy as np

    def get_buckets(sizes: Any, num_buckets: int) -> Any:
        shares = np.linspace(0, 100, num_buckets + 1)
        return np.unique(np.percentile(sizes, shares, method="lower")[1:])

    modules = ["data_utils", "bucket_pad_length_dataset", "audio.raw_audio_dataset"]
    replace([f"fairseq.data.{module}" for module in modules], "get_buckets", get_buckets)


class LazyNode:
    """A dataclass that becomes a node when hydra copies it.

    hydra deep-copies a stored configuration before every use and changes only the copy. The copy is
    the one place where the node is needed, so `__deepcopy__` makes it.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from omegaconf import OmegaConf

        return OmegaConf.structured(self.settings)


def make_nodes_lazily() -> None:
    """Store a LazyNode for every configuration of a model or criterion.

    Fault: It makes hydra's node of every configuration when it is registered, which for all of our
        architectures takes a fifth of the start.
    Since: fairseq 0.12.
    Until: fairseq stores the class instead of an instance.
    """

    def store(
        original: Any, self: Any, name: str, node: Any, group: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        lazy = group in ("model", "criterion")
        original(self, name, {} if lazy else node, group, *args, **kwargs)
        if lazy:
            self.repo[group][f"{name}.yaml"].node = LazyNode(node)

    wrap("hydra.core.config_store:ConfigStore", "store", store)


def share_configurations() -> None:
    """Let hydra read its store of configurations in place.

    Fault: hydra copies every stored configuration before it composes one, and then the few that it
        uses once more; with fairseq's and ours that takes half a second of every command.
    Since: hydra 1.1.
    Until: hydra copies its list of sources alone, which is all that it changes.
    """
    find_owner("hydra.core.config_store:ConfigStore").__deepcopy__ = lambda self, memo: self


def avoid_cudnn_attention() -> None:
    """Let torch run attention by its flash or memory-efficient kernels, not by cuDNN's.

    Fault: On Hopper and Blackwell it runs attention by cuDNN, which takes up to a second to plan
        each new shape of a batch, and whose gradients can be NaN (pytorch#196678).
    Since: torch 2.11.
    Until: cuDNN keeps one plan for all lengths and its gradients are right.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
