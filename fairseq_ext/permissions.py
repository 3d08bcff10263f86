"""Flags that let a command do what it refuses by itself, and the flag that compiles models.

They hold for the whole process and the processes that it starts, through the environment:
`FAIRSEQ_EXT_ALLOW_NAN=1` is the same as `--allow-nan`. fairseq-hydra-train has no other way.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any

PERMISSIONS = {
    "--allow-nan": "read checkpoints with parameters that are not finite",
    "--other-dictionary": "read data whose dictionary or tokeniser is not the checkpoint's",
}

COMPILATION = {
    "--compile": "compile the layers of our models by torch.compile; the first batches wait"
}


def add_permissions(
    parser: argparse._ActionsContainer, flags: Mapping[str, str] = PERMISSIONS
) -> None:
    """Add flags to a parser; what they say is known as soon as they are parsed."""
    for flag, text in flags.items():
        parser.add_argument(flag, nargs=0, action=_Permit, default=argparse.SUPPRESS, help=text)


def is_given(flag: str) -> bool:
    """Return whether a flag was given."""
    return os.environ.get(_variable(flag), "") not in ("", "0")


class _Permit(argparse.Action):
    """Action that permits what its flag says."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        os.environ[_variable(self.option_strings[0])] = "1"


def _variable(flag: str) -> str:
    return "FAIRSEQ_EXT_" + flag.removeprefix("--").replace("-", "_").upper()
