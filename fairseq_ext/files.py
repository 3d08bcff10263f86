"""Files that get their names when they are complete."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from fairseq_ext.errors import Unfinished


@contextmanager
def completed(path: Path) -> Iterator[TextIO]:
    """A text file to write, UTF-8 with line feeds as they are; named ``path`` at the end.

    A link stays, and what it points to is replaced; devices and pipes are written as they are.

    Raises:
        Unfinished: it cannot be written, as on a full disk; nothing of it is left.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("w", encoding="utf-8", newline="") as file:
                yield file
        else:
            with _replaced(path.resolve()) as file:
                yield file
    except OSError as error:
        raise Unfinished(
            f"{path} cannot be written ({error.strerror}); make room or give another place, and "
            "run the same command again"
        ) from error


@contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            yield file
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """One line each; see `completed`."""
    with completed(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def files_of(folder: Path) -> list[Path]:
    """Those of a folder, in the order of their names; not what is only begun."""
    return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
