"""Patch of registration: hydra's nodes are made when they are asked for."""

from typing import Any

from fairseq_ext.wrapping import wrap

GROUPS = ("model", "criterion")


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
        original: Any,
        self: Any,
        name: str,
        node: Any,
        group: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if group not in GROUPS:
            return original(self, name, node, group, *args, **kwargs)
        original(self, name, {}, group, *args, **kwargs)
        self.repo[group][f"{name}.yaml"].node = LazyNode(node)
        return None

    wrap("hydra.core.config_store:ConfigStore", "store", store)
