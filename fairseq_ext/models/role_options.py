"""Roles of heads (Wang et al. 2020), read from options."""

from collections.abc import Mapping
from typing import Any

from fairseq.data import Dictionary

from fairseq_ext.data.symbols import SymbolTable, check_symbols
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.roles.role_masks import DEFINITIONS, NO_ROLE, PARSED_ROLES, ROLES
from fairseq_ext.models import config

ROLES_FLAG = "--encoder-roles"


def scale_queries(roles: list[tuple[str, ...]], options: Mapping[str, Any], heads: int) -> float:
    """Return a factor of queries: sqrt(D / C) if the roles' definitions scale by C, else 1.

    The released code of Wang et al. 2020 divides all scores of an encoder with roles by sqrt(C).
    """
    rule = DEFINITIONS[str(options["role_definitions"])]
    scaled = rule.scaled_by_width and any(roles) and options["encoder_scorer"] == "dot"
    return heads**-0.5 if scaled else 1.0


def check_role_heads(roles: int, layer: int, heads: int) -> None:
    """Raise UsageError if a layer has more roles than heads that can have one."""
    if roles > heads:
        raise UsageError(
            f"{ROLES_FLAG} has {roles} roles for layer {layer}, and {heads} of its heads can have "
            "one, which hard-coded heads cannot; give fewer roles, fewer "
            "--encoder-gaussian-heads, or more --encoder-attention-heads"
        )


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
        raise UsageError(f"{ROLES_FLAG} has '{unknown[0]}'; give some of {', '.join(ROLES)}")
    if len(lists) not in (1, layers):
        raise UsageError(
            f"{ROLES_FLAG} has roles for {len(lists)} layers, and the encoder has {layers}; give "
            "one list for all of them, or with / between them one for each"
        )
    lists *= layers if len(lists) == 1 else 1
    return [names if set(names) != {NO_ROLE} else () for names in lists]


def _all_roles(text: str, layers: int) -> set[str]:
    return {name for names in parse_roles(text, layers) for name in names} - {NO_ROLE}


def build_symbols(cfg: Any, dictionary: Dictionary) -> SymbolTable | None:
    """Return the facts of a dictionary that an encoder with roles needs; None without roles.

    Raises:
        UsageError: the dictionary does not say what the roles need.
    """
    names = _all_roles(cfg.encoder_roles, cfg.encoder.layers)
    if not names:
        return None
    least = cfg.role_rare_min_count
    if least and "rare" not in names:
        raise UsageError(
            f"--role-rare-min-count is {least}, and {ROLES_FLAG} has no rare; give rare there, or "
            "leave the count out"
        )
    check_symbols(dictionary, names, str(cfg.role_definitions))
    return SymbolTable(dictionary, str(cfg.role_definitions), least)


def roles_with_parses(options: Mapping[str, Any]) -> list[str]:
    """Return the roles that need parses, of a model with these options, if it can have roles."""
    text = options.get("encoder_roles", NO_ROLE)
    return sorted(_all_roles(text, options.get("encoder_layers", 1)) & set(PARSED_ROLES))


def check_annotated(roles: str, layers: int, task: Any) -> None:
    """Raise UsageError if roles need parses and the task is not `annotated`."""
    names = sorted(_all_roles(roles, layers) & set(PARSED_ROLES))
    if names and not config.TaskFacts.read(task).annotated:
        listed = " and ".join(names)
        raise UsageError(
            f"{ROLES_FLAG} has {listed}, for which the text has to be parsed; annotate it with "
            "'fairseq-ext annotate' and give --task translation_roles (labelled text needs no "
            f"other task), or leave {listed} out"
        )
