"""Role-guided masks (Wang et al. 2020): what a head may look at, by its linguistic role."""

from fairseq_ext.roles.role_masks import (
    DEFINITIONS,
    NO_ROLE,
    PARSED_ROLES,
    ROLES,
    RoleMask,
    TokenFeatures,
    allowed_keys,
)
from fairseq_ext.roles.symbols import SymbolTable, check_symbols

__all__ = [
    "DEFINITIONS",
    "NO_ROLE",
    "PARSED_ROLES",
    "ROLES",
    "RoleMask",
    "TokenFeatures",
    "SymbolTable",
    "allowed_keys",
    "check_symbols",
]
