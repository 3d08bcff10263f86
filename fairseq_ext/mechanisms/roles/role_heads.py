"""Heads with roles (Wang et al. 2020), read from options."""

import re
from dataclasses import dataclass
from typing import Literal

from fairseq_ext.attention.building import HeadKind, LayerHeads, register_heads
from fairseq_ext.attention.options import Rule, option, whole
from fairseq_ext.attention.presets import preset
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.roles.role_masks import DEFINITIONS, NO_ROLE, ROLES, RoleMask

FLAG = "--encoder-roles"


def _lack_rare(roles: str) -> bool:
    names = {name.strip() for name in re.split("[,/]", roles)}
    return "rare" not in names and names != {NO_ROLE}


@dataclass
class RoleOptions:
    """Options of heads with roles.

    Attributes:
        encoder_roles: roles of the first heads of each encoder layer (Wang et al. 2020), as in
            rare,relative: rare, separator, dependency, major, relative, none (an ordinary head); /
            separates layers
        role_definitions: definitions of the roles: those of the paper, or of its released code
        role_rare_min_count: words that dict.txt counts less often are never rare; 0: all may be
    """

    encoder_roles: str = NO_ROLE
    role_definitions: Literal["paper", "code"] = option("paper", needs=("encoder_roles",))
    role_rare_min_count: int = option(
        0,
        whole("[0, 1000000000]", "how often a word is counted at least"),
        needs=("encoder_roles",),
        alike=True,
        excludes=Rule(
            "encoder_roles",
            "{one} has no effect, since {other} has no rare; give rare there, or leave the "
            "count out",
            lambda count, roles: count and _lack_rare(roles),
        ),
    )


@register_heads
class RoleHeads(HeadKind):
    """Heads with roles, which come first among learned ones."""

    name, off, options = "roles", NO_ROLE, RoleOptions

    def build(self, layer: LayerHeads) -> None:
        """Add the group of heads with roles, if the layer has any."""
        roles = parse_roles(layer.options["encoder_roles"], layer.layers)
        definitions = str(layer.options["role_definitions"])
        scaled = DEFINITIONS[definitions].scaled_by_width
        if any(roles) and scaled and layer.read("scorer") == "dot":
            # scores of all heads are divided by sqrt(C), as in the released code
            layer.query_factor = layer.unpruned**-0.5
        if not (names := roles[layer.layer]):
            return
        if len(names) > layer.free:
            raise UsageError(
                f"{FLAG} has {len(names)} roles for layer {layer.layer}, and {layer.free} of its "
                "heads can have one, which hard-coded heads cannot; give fewer roles, fewer "
                "--encoder-gaussian-heads, or more --encoder-attention-heads"
            )
        layer.add_learned(len(names), RoleMask(names, definitions), made_by=FLAG)


def parse_roles(text: str, layers: int) -> list[tuple[str, ...]]:
    """Return the roles of the first heads, in each layer.

    Args:
        text: "rare,relative" for all layers, or "rare/relative" for two.
        layers: the number of encoder layers.

    Raises:
        UsageError: a role is not known, or there are lists for another number of layers.
    """
    lists = [tuple(name.strip() for name in part.split(",")) for part in text.split("/")]
    unknown = [name for names in lists for name in names if name not in ROLES]
    if unknown:
        raise UsageError(f"{FLAG} has '{unknown[0]}'; give some of {', '.join(ROLES)}")
    if len(lists) not in (1, layers):
        raise UsageError(
            f"{FLAG} has roles for {len(lists)} layers, and the encoder has {layers}; give "
            "one list for all of them, or with / between them one for each"
        )
    lists *= layers if len(lists) == 1 else 1
    return [names if set(names) != {NO_ROLE} else () for names in lists]


preset("roles", "transformer roberta deberta", 9, encoder_roles="rare,separator,relative")
