"""Make a folder of labelled text from a part of another's training examples.

With --take, N examples alone stay, at even distances, since files are often sorted by source or
label. With --every, each N-th of those that stay leaves train.jsonl, and they become valid.jsonl.
All other files are copied. A folder that holds this very part already is left as it is.
"""

import filecmp
import shutil
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.data.examples import Field, read
from fairseq_ext.errors import UsageError
from fairseq_ext.files import list_files, new_folder, read_lines, write_lines
from fairseq_ext.prepare.step import number_from, step_parser

TRAIN, VALID = "train.jsonl", "valid.jsonl"
FIELDS = dict.fromkeys(("text", "label"), Field("a value", lambda value: True, needed=False))
"""Keys of labelled text, which errors name; each task checks its own."""


def take_part(data: Path, out: Path, take: int | None = None, every: int | None = None) -> None:
    """Write a folder with a part of the training examples.

    Args:
        data: folder with train.jsonl.
        out: the folder to make.
        take: how many training examples are taken, at even distances.
        every: of how many one is held out, the last one of each group of so many.

    Raises:
        UsageError: there are fewer examples, other files depend on their number, or the folder
            exists and holds something else.
    """
    if annotated := sorted(data.glob("*.annotations")):
        raise UsageError(f"{annotated[0]} is of all examples; annotate the part when it is made")
    read(data / TRAIN, FIELDS)
    lines = list(read_lines(data / TRAIN))
    count = len(lines)
    taken = min(take or count, count)
    least = max(take or 0, every + 1 if every else 0)
    if taken < least:
        taking = f", of which {taken} are taken" if taken < count else ""
        raise UsageError(f"{data / TRAIN} has {count} examples{taking}, and {least} are needed")
    parts = {TRAIN: [lines[place * count // taken] for place in range(taken)]}
    if every:
        parts[VALID] = parts[TRAIN][every - 1 :: every]
        del parts[TRAIN][every - 1 :: every]
    if out.exists():
        _check_same(data, out, parts)
        return
    with new_folder(out) as work:
        for file in list_files(data):
            shutil.copy(file, work)
        for name, part in parts.items():
            write_lines(work / name, part)
            print(f"{out / name}: {len(part)} examples")


def _check_same(data: Path, out: Path, parts: dict[str, list[str]]) -> None:
    """Raise UsageError unless a folder holds these parts, and else copies of the files in data."""
    same = all((out / name).is_file() for name in parts)
    for file in list_files(out) if same else ():
        if file.name in parts:
            same = same and list(read_lines(file)) == parts[file.name]
        elif (source := data / file.name).is_file():
            same = same and filecmp.cmp(source, file, shallow=False)
    if not same:
        raise UsageError(
            f"{out} is there already, with other examples; delete it and what was trained on it, "
            "or give another folder"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the step."""
    parser = step_parser("hold_out", __doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with train.jsonl")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    few, each = "take N examples alone, at even distances", "hold out each N-th of them"
    parser.add_argument("--take", type=number_from(1), metavar="N", help=few)
    parser.add_argument("--every", type=number_from(2), metavar="N", help=each)
    args = parser.parse_args(arguments)
    take_part(args.data, args.out, args.take, args.every)


if __name__ == "__main__":
    main()
