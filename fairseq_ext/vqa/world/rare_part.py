"""Make a part "rare" of prepared data: the questions of "valid" about rare kinds of things.

It gets questions of its own, rare.jsonl, and links to the features of "valid".
"""

import json
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, remove, write_lines
from fairseq_ext.prepare.step import step_parser

PART, RARE = "valid", "rare"


def select_rare(folder: Path) -> int:
    """Write the part, and return the number of its questions.

    Args:
        folder: that `scripts/prepare_vqa.sh` made of a generated world.

    Raises:
        UsageError: it has no such questions.
    """
    lines = [
        line
        for line in read_lines(folder / f"{PART}.jsonl")
        if str(json.loads(line).get("question_type", "")).startswith(f"{RARE} ")
    ]
    if not lines:
        raise UsageError(f"{folder}/{PART}.jsonl has no question about rare kinds; generate more")
    for features in sorted(folder.glob(f"{PART}.*.npy")):
        link = features.with_name(RARE + features.name.removeprefix(PART))
        remove(link)
        link.symlink_to(features.name)
    write_lines(folder / f"{RARE}.jsonl", lines)
    return len(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the part of a folder, and print its size."""
    parser = step_parser("rare_part", __doc__, "fairseq_ext.vqa.world")
    parser.add_argument("folder", type=Path, metavar="DATA", help="with valid.jsonl")
    count = select_rare(parser.parse_args(arguments).folder)
    print(f"{RARE}: {count:,} questions")


if __name__ == "__main__":
    main()
