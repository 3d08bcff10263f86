"""hydra's nodes of what we register, made when they are asked for.

fairseq stores one for every dataclass, which for all our architectures takes a fifth of its start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf


class Later:
    """Becomes a node when hydra copies it, which it does before every use."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def __deepcopy__(self, memo: dict[int, Any]) -> DictConfig:
        return OmegaConf.structured(self.settings)


@contextmanager
def made_later() -> Iterator[None]:
    """What is registered within is stored as `Later`."""
    store = ConfigStore.store

    def store_later(
        self: ConfigStore, name: str, node: Any, group: str, provider: str | None = None
    ) -> None:
        store(self, name, {}, group, provider=provider)
        self.repo[group][f"{name}.yaml"].node = Later(node)

    ConfigStore.store = store_later
    try:
        yield
    finally:
        ConfigStore.store = store
