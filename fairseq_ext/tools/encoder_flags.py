"""Flags of a fine-tuning that keeps the attention of its pre-trained encoder.

    python -m fairseq_ext.tools.encoder_flags CHECKPOINT

One flag a line, with its value after "="; the last two lines are --arch and an architecture without
a size. Adversaries are left out: a fine-tuning has its own or none.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError, plain_errors
from fairseq_ext.tools.quiet import without_logging

KEPT = (
    *("encoder_normaliser", "sinkhorn_sweeps", "encoder_gaussian_heads"),
    *("encoder_gaussian_offsets", "gaussian_sigma", "encoder_roles", "role_definitions"),
    "head_gate",
)


@without_logging()
def read_encoder_flags(checkpoint: Path) -> list[str]:
    """Return the flags that differ from the presets of the architecture, and the architecture.

    Raises:
        UsageError: there is no such checkpoint, or it cannot be read.
    """
    from fairseq_ext.models.architectures import MECHANISMS
    from fairseq_ext.models.options import DEFAULTS
    from fairseq_ext.models.pretrained import read_model_options

    options = read_model_options(str(checkpoint))
    if not options:
        raise UsageError(f"there is no checkpoint {checkpoint}; give the path of an encoder")
    family, *words = (options.get("_name") or options.get("arch") or "").split("_")
    mechanism = words[0] if family == "roberta" and words[:1] in (["dna"], ["hna"]) else "una"
    preset = DEFAULTS | MECHANISMS[mechanism]
    flags = []
    for name in KEPT:
        value, flag = options.get(name, preset[name]), "--" + name.replace("_", "-")
        if str(value) != str(preset[name]):
            flags.append(flag if value is True else f"{flag}={value}")
    return [*flags, "--arch", f"roberta_{mechanism}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; see the module's docstring."""
    plain_errors()
    parser = argparse.ArgumentParser(description="Print the flags that keep an encoder's attention")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    print("\n".join(read_encoder_flags(parser.parse_args(arguments).checkpoint)))


if __name__ == "__main__":
    main()
