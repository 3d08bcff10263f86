"""Role-guided masks (Wang et al. 2020): what a head may look at, by its linguistic role."""

from fairseq_ext.roles.role_masks import (
    DEFINITIONS,
    NO_ROLE,
    PARSED,
    ROLES,
    Roles,
    Sentences,
    allowed,
)
from fairseq_ext.roles.symbols import Symbols, check_symbols

__all__ = [
    "DEFINITIONS",
    "NO_ROLE",
    "PARSED",
    "ROLES",
    "Roles",
    "Sentences",
    "Symbols",
    "allowed",
    "check_symbols",
]
