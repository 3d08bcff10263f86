"""Which heads of an encoder are guided by which roles, from the words of the options."""

from collections.abc import Mapping
from typing import Any

from fairseq.data import Dictionary

from fairseq_ext.attention import Heads
from fairseq_ext.attention.masks import DEFAULT_MASKS
from fairseq_ext.errors import UsageError
from fairseq_ext.roles import NO_ROLE, PARSED, ROLES, Roles, Symbols, check_symbols

FLAG = "--encoder-roles"


def roles_of_layers(text: str, layers: int) -> list[tuple[str, ...]]:
    """ "rare,relative" for all layers or "rare/relative" for each: the roles of the first heads.

    Raises:
        UsageError: a role is not known, or there are parts for another number of layers.
    """
    parts = [tuple(name.strip() for name in part.split(",")) for part in text.split("/")]
    unknown = [name for part in parts for name in part if name not in ROLES]
    if unknown:
        raise UsageError(f"{FLAG} has '{unknown[0]}'; give some of {', '.join(ROLES)}")
    if len(parts) not in (1, layers):
        raise UsageError(
            f"{FLAG} has roles for {len(parts)} layers, and the encoder has {layers}; give one "
            "list for all of them, or with / between them one for each"
        )
    parts *= layers if len(parts) == 1 else 1
    return [part if set(part) != {NO_ROLE} else () for part in parts]


def role_heads(
    layer: int, heads: int, layers: int, normaliser: Any, options: dict[str, Any]
) -> list[Heads]:
    """The group of heads with roles in an encoder layer, or none.

    Args:
        heads: how many can have one.
        normaliser: makes that of so many heads.
    """
    names = roles_of_layers(options["encoder_roles"], layers)[layer]
    if len(names) > heads:
        raise UsageError(
            f"{FLAG} has {len(names)} roles for layer {layer}, and {heads} of its heads can have "
            "one, which hard-coded heads cannot; give fewer roles, fewer --encoder-gaussian-heads, "
            "or more --encoder-attention-heads"
        )
    if not names:
        return []
    roles = Roles(names, str(options["role_definitions"]))
    return [Heads(len(names), normaliser=normaliser(len(names)), masks=(*DEFAULT_MASKS, roles))]


def build_symbols(cfg: Any, dictionary: Dictionary) -> Symbols | None:
    """What an encoder with roles needs to know of its dictionary; None without roles.

    Raises:
        UsageError: the dictionary does not say what its roles need.
    """
    used = used_roles(cfg.encoder_roles, cfg.encoder.layers)
    if not used:
        return None
    check_symbols(dictionary, used, str(cfg.role_definitions))
    return Symbols(dictionary, str(cfg.role_definitions))


def used_roles(text: str, layers: int) -> set[str]:
    return {name for part in roles_of_layers(text, layers) for name in part} - {NO_ROLE}


def roles_with_parses(options: Mapping[str, Any]) -> list[str]:
    """Those of a model with these options that need parses; none if it cannot have roles."""
    text = options.get("encoder_roles", NO_ROLE)
    return sorted(used_roles(text, options.get("encoder_layers", 1)) & set(PARSED))


def check_annotated(roles: str, layers: int, task: Any) -> None:
    """Raises UsageError if roles need parses that the task does not have."""
    parsed = roles_with_parses({"encoder_roles": roles, "encoder_layers": layers})
    if parsed and not getattr(task, "annotated", False):
        raise UsageError(
            f"{FLAG} has {' and '.join(parsed)}, for which the text has to be parsed; annotate it "
            "with 'fairseq-ext annotate' and give --task translation_roles (labelled text needs no "
            f"other task), or leave {' and '.join(parsed)} out"
        )
