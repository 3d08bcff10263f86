"""Ids of the tokens of a byte-level BPE that are a period, for `--ag-period`.

python -m fairseq_ext.tools.period_ids DATA/bpe/encoder.json
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

PERIODS = (".", "\u0120.")  # after a letter, after a space


def read_period_ids(encoder: Path) -> list[int]:
    """Return the ids of the periods that encoder.json has, at most two."""
    ids = json.loads(encoder.read_text("utf-8"))
    return [ids[period] for period in PERIODS if period in ids]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Print the ids of periods, separated by a space")
    parser.add_argument("encoder", type=Path, metavar="ENCODER.JSON")
    print(*read_period_ids(parser.parse_args(arguments).encoder))


if __name__ == "__main__":
    main()
