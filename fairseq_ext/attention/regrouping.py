"""Parameters of a checkpoint whose heads are grouped in another way than the model's."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError


def regroup(saved: dict[str, Tensor], own: Mapping[str, Tensor], prefix: str) -> None:
    """Part saved parameters of a layer's heads as the groups of `own` are parted.

    Groups differ where heads have gained or lost their role. A parameter that all heads share is
    copied; one of another form, or of another number of heads, stays as it is.

    Args:
        saved, own: name -> parameter; in both, names of a group's are PREFIX, its number, a dot and
            the name that they have in every group.
    """
    names = {key.removeprefix(prefix).partition(".")[2] for key in own if key.startswith(prefix)}
    for name in names:
        here, there = (_find_groups(parameters, prefix, name) for parameters in (own, saved))
        shapes = [tuple(x.shape) for x in (*here.values(), *there.values())]
        if not there or [x.shape for x in here.values()] == [x.shape for x in there.values()]:
            continue
        if len(set(shapes)) == 1:
            saved |= {key: next(iter(there.values())).clone() for key in here}
            continue
        for axis in range(min(map(len, shapes))):
            parts, before = ([x.size(axis) for x in each.values()] for each in (here, there))
            alike = len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1
            if alike and sum(parts) == sum(before):
                values = torch.cat([*there.values()], axis).split(parts, axis)
                saved |= {key: x.clone() for key, x in zip(here, values, strict=True)}


def _find_groups(parameters: Mapping[str, Tensor], prefix: str, name: str) -> dict[str, Tensor]:
    """Return the parameters of a name in all groups, in the order of these."""
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)\.{re.escape(name)}")
    keys = {int(match[1]): key for key in parameters if (match := pattern.fullmatch(key))}
    return {keys[number]: parameters[keys[number]] for number in sorted(keys)}


def check_shape(key: str, saved: Sequence[int], shape: Sequence[int], heads: set[int]) -> None:
    """Raise UsageError if shapes differ in anything but a number of heads."""
    differing = (size for old, size in zip(saved, shape, strict=False) if old != size)
    if len(saved) != len(shape) or not heads.issuperset(differing):
        raise UsageError(
            f"{key} is {list(saved)} in the checkpoint and {list(shape)} here; give the options "
            "that the checkpoint was trained with"
        )
