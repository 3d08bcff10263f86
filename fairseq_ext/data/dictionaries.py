"""Dictionaries of `fairseq-preprocess`: why one of them cannot be read."""

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairseq_ext.bounds import check_regular, iterate_lines
from fairseq_ext.errors import UsageError

AGAIN = "give the one that fairseq-preprocess wrote"
OVERWRITE = " #fairseq:overwrite"


def check_file(path: Path) -> None:
    """Raise UsageError unless there is a dictionary to read, with lines of text."""
    check_regular(path)
    if path.is_file():
        with path.open("rb") as file:
            deque(iterate_lines(file, str(path)), 0)
        return
    if path.exists():
        raise UsageError(f"{path} is a folder, and a dictionary belongs there; {AGAIN}")
    others = sorted(file.name for file in path.parent.glob("dict*.txt"))
    there = f"{path.parent} has {', '.join(others) or 'no dictionary'}"
    raise UsageError(
        f"{path} is missing: {there if path.parent.is_dir() else f'there is no {path.parent}'}; "
        "give a folder (DATA, or --data of fairseq-ext) that fairseq-preprocess made for this "
        "--task and these languages"
    )


def explain(path: Path, error: Exception, special: Iterable[str]) -> UsageError:
    """Return the error that a user sees for fairseq's: the first line that cannot be read.

    Args:
        special: symbols that no line may have, since every dictionary begins with them.
    """
    seen = {*special}
    try:
        with path.open(encoding="utf-8") as file:  # whose lines are fairseq's
            for number, line in enumerate(file, 1):
                problem = _find_problem(line.rstrip(), seen)
                if problem:
                    return UsageError(f"{path}, line {number}: {problem}; {AGAIN}")
    except UnicodeDecodeError:
        return UsageError(f"{path} is not UTF-8, and so no dictionary; {AGAIN}")
    return UsageError(f"{path} cannot be read ({error}); {AGAIN}")


def _find_problem(line: str, seen: set[str]) -> str:
    overwrites = line.endswith(OVERWRITE)
    symbol, _, count = line.removesuffix(OVERWRITE).rpartition(" ")
    if not symbol or not count.removeprefix("-").isdecimal():
        return f"{line[:60]!r} is not a symbol and its count"
    if symbol in seen and not overwrites:
        return f"{symbol[:60]!r} is there for the second time"
    seen.add(symbol)
    return ""


def check_symbols(path: Path, symbols: Sequence[str], special: int) -> None:
    """Raise UsageError for a dictionary without symbols, or with a byte order mark.

    Args:
        special: the number of symbols that are not in the file.
    """
    if len(symbols) <= special:
        raise UsageError(f"{path} has no symbols; {AGAIN}")
    if symbols[special].startswith("\ufeff"):
        raise UsageError(f"{path} begins with a byte order mark, which is no symbol; remove it")
