"""Roles as a blocker of attention: what each head of a group may not look at."""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.inputs import Frame
from fairseq_ext.roles.masks import allowed


class Roles(NamedTuple):
    """The roles of a group's heads, one each; of DEFINITIONS whose they are.

    A mask is made once a forward pass, for all heads and layers with its role.
    """

    names: tuple[str, ...]
    definitions: str = "paper"

    def __call__(self, frame: Frame) -> Tensor:
        """[B, h, S, S]."""
        return torch.stack([self._mask(name, frame) for name in self.names], 1)

    def _mask(self, name: str, frame: Frame) -> Tensor:
        inputs, definitions = frame.inputs, self.definitions
        return inputs.once(
            ("role", name, definitions), lambda: ~allowed(name, inputs.sentences, definitions)
        )
