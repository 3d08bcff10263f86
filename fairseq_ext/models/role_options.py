"""Needs of the roles of heads (Wang et al. 2020): facts of a dictionary, and parses."""

from collections.abc import Mapping
from typing import Any

from fairseq.data import Dictionary

from fairseq_ext.data.symbols import SymbolTable, check_symbols
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.roles.role_heads import FLAG, parse_roles
from fairseq_ext.mechanisms.roles.role_masks import NO_ROLE, PARSED_ROLES
from fairseq_ext.models import config


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
    check_symbols(dictionary, names, str(cfg.role_definitions))
    return SymbolTable(dictionary, str(cfg.role_definitions), cfg.role_rare_min_count)


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
            f"{FLAG} has {listed}, for which the text has to be parsed; annotate it with "
            "'fairseq-ext annotate' and give --task translation_roles (labelled text needs no "
            f"other task), or leave {listed} out"
        )
