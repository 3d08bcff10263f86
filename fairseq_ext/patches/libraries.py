"""Patches of how fairseq uses numpy and hydra: current versions, and a quicker start."""

import types
from typing import Any

from fairseq_ext.wrapping import replace


def restore_numpy_compat() -> None:
    """Give two modules a numpy that has the `compat.long` which they cast to.

    Fault: Two modules cast to np.compat.long, which is gone.
    Asked: all users; loud, nothing trains; none.
    Since: numpy 2.0.
    Until: fairseq writes int.
    """
    import numpy as np

    older = types.ModuleType("numpy")
    vars(older).update(vars(np), compat=types.SimpleNamespace(long=int))
    modules = ["token_block_dataset", "language_pair_dataset"]
    replace([f"fairseq.data.{module}" for module in modules], "np", older)


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


class LazyStore:
    """hydra's store of configurations, which gets a LazyNode of each model and criterion."""

    instance = classmethod(lambda cls: cls())

    def store(self, name: str, node: Any, group: str = "", **kwargs: Any) -> None:
        """Store a configuration, an instance of a dataclass."""
        from hydra.core.config_store import ConfigStore

        store, lazy = ConfigStore.instance(), group in ("model", "criterion")
        store.store(name, {} if lazy else node, group or None, **kwargs)
        if lazy:
            store.repo[group][f"{name}.yaml"].node = LazyNode(node)


def make_nodes_lazily() -> None:
    """Let models and criterions be registered in a LazyStore.

    Fault: hydra's nodes of all configurations are made at once: a fifth of the start.
    Asked: all users; silent, a slow start; none.
    Since: fairseq 0.12.
    Until: fairseq stores classes.
    """
    replace(["fairseq.models", "fairseq.registry"], "ConfigStore", LazyStore)
