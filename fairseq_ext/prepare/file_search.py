"""A search for files of a corpus by name, plain or .gz, in a folder and all folders below it."""

from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError


def _depth(path: Path) -> tuple[int, Path]:
    return len(path.parts), path


def files_below(folder: Path, pattern: str) -> list[Path]:
    """Return the files whose names match, the nearest first; leave out unfinished data recipes."""
    paths = (path.relative_to(folder) for path in folder.rglob(pattern) if path.is_file())
    kept = (path for path in paths if not any(p.endswith(".partial") for p in path.parts[:-1]))
    return [folder / path for path in sorted(kept, key=_depth)]


def find(patterns: Sequence[str], folders: Sequence[Path]) -> list[Path]:
    """Return files that belong together, such as the languages of a text, from one folder.

    Args:
        patterns: one for each file, of the form A|B|...: if there is an A for all files, these are
            taken, else the Bs.
        folders: searched one after the other; in each, the nearest folder that has all files wins.

    Raises:
        UsageError: a file is missing, the files are in different folders, or a pattern has a slash
            or an empty name.
    """
    alternatives = [pattern.split("|") for pattern in patterns]
    for pattern, names in zip(patterns, alternatives, strict=True):
        if not all(name and "/" not in name for name in names):
            raise UsageError(f"'{pattern}' is no name of a file; give names without folders")
    for together in zip(*alternatives, strict=True):
        for folder in folders:
            if paths := _find_together(together, folder):
                return paths
    raise UsageError(_explain_missing(alternatives, folders))


def _find_together(names: Sequence[str], folder: Path) -> list[Path]:
    # reversed: the first of several files in a folder stays
    each = [{path.parent: path for path in reversed(_find_name(name, folder))} for name in names]
    common = set(each[0]).intersection(*each[1:])
    return [files[min(common, key=_depth)] for files in each] if common else []


def _find_name(name: str, folder: Path) -> list[Path]:
    """Return plain files, then compressed ones."""
    return [*files_below(folder, name), *files_below(folder, f"{name}.gz")]


def _explain_missing(alternatives: Sequence[Sequence[str]], folders: Sequence[Path]) -> str:
    nearest = []
    for names in alternatives:
        paths = [path for name in names for folder in folders for path in _find_name(name, folder)]
        if not paths:
            return (
                f"{folders[0]} has no {' and no '.join(names)} (plain, .gz or in an archive); give "
                "the folder that has it"
            )
        nearest.append(str(paths[0]))
    return (
        f"{' and '.join(nearest)} are in different folders or have different names; put files that "
        "belong together in one folder"
    )
