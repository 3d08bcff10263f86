"""Files of a corpus by their names, plain or .gz, in a folder and all folders below it."""

from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError


def _near(path: Path) -> tuple[int, Path]:
    return len(path.parts), path


def files_below(folder: Path, pattern: str) -> list[Path]:
    """The nearest first; none of a recipe's work."""
    found = (path.relative_to(folder) for path in folder.rglob(pattern) if path.is_file())
    kept = (path for path in found if not any(p.endswith(".partial") for p in path.parts[:-1]))
    return [folder / path for path in sorted(kept, key=_near)]


def find(patterns: Sequence[str], folders: Sequence[Path]) -> list[Path]:
    """Files that belong together, such as the languages of a text: all of one folder.

    Args:
        patterns: of each file A|B|...: all As are taken if they are there, else all Bs.
        folders: looked through one after the other; in each the nearest folder that has all wins.

    Raises:
        UsageError: they are not there, or in different folders; a pattern is no name.
    """
    alternatives = [pattern.split("|") for pattern in patterns]
    for pattern, names in zip(patterns, alternatives, strict=True):
        if not all(name and "/" not in name for name in names):
            raise UsageError(f"'{pattern}' is no name of a file; give names without folders")
    for names in zip(*alternatives, strict=True):
        for folder in folders:
            if found := _together(names, folder):
                return found
    raise UsageError(_missing(alternatives, folders))


def _together(names: Sequence[str], folder: Path) -> list[Path]:
    # reversed: of several in a folder the first stays
    each = [{path.parent: path for path in reversed(_named(name, folder))} for name in names]
    common = set(each[0]).intersection(*each[1:])
    return [files[min(common, key=_near)] for files in each] if common else []


def _named(name: str, folder: Path) -> list[Path]:
    """In a folder with both, the plain file first."""
    return [*files_below(folder, name), *files_below(folder, f"{name}.gz")]


def _missing(alternatives: Sequence[Sequence[str]], folders: Sequence[Path]) -> str:
    nearest = []
    for names in alternatives:
        there = [path for name in names for each in folders for path in _named(name, each)]
        if not there:
            return (
                f"{folders[0]} has no {' and no '.join(names)} (plain, .gz or in an archive); give "
                "the folder that has it"
            )
        nearest.append(str(there[0]))
    return (
        f"{' and '.join(nearest)} are in different folders or have different names; put files that "
        "belong together in one folder"
    )
