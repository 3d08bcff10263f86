"""Former names of `ModelInspector` and `LayerAttention`, kept for one version."""

import warnings
from typing import Any

from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.recording import LayerAttention

RENAMED = {"Subject": ModelInspector, "Heard": LayerAttention}


def __getattr__(name: str) -> Any:
    if name not in RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = RENAMED[name]
    message = f"{__name__}.{name} is now {new.__module__}.{new.__name__}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return new
