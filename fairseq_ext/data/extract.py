"""Parallel text out of corpora as they are published: files, plain or .gz, and archives.

PART=PATTERN+PATTERN… names the files of a part, in which @ stands for the language: the first
alternative that is there of A|B, looked for by name in a folder with its folders and archives
(.tgz, .tar, .zip). Forms are known by names: train.tags.* are TED talks with tags, .xml and .sgm
have segments, others one sentence a line.
"""

import argparse
import html
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

from fairseq_ext.data.lines import lines_of
from fairseq_ext.data.summary import INPUTS
from fairseq_ext.errors import UsageError
from fairseq_ext.files import write_lines

TARS = (".tgz", ".tar.gz", ".tar")
ZIPS = (".zip",)
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError, RuntimeError)

# Lines about a talk; its title and description are text.
ABOUT = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b")
TITLE = re.compile(r"</?(?:title|description)>")
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>")


# Finding files.


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The base name of each file in an archive, and its content, to be read at once."""
    yield from (_zipped if archive.name.endswith(ZIPS) else _tarred)(archive)


def _zipped(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            if not entry.is_dir():
                with file.open(entry) as content:
                    yield PurePosixPath(entry.filename).name, content


def _tarred(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive, "r|*") as file:
        for entry in file:
            if entry.isfile() and (content := file.extractfile(entry)):
                yield PurePosixPath(entry.name).name, content


def unpack(folder: Path, out: Path, patterns: Sequence[str]) -> list[Path]:
    """Copy the files in a folder's archives whose names fit a pattern; what is there is kept.

    Only base names are used, so that nothing is written elsewhere.

    Returns:
        The archives that had some.

    Raises:
        UsageError: an archive is damaged.
    """
    used = []
    for archive in files_below(folder, "*"):
        if archive.name.endswith(TARS + ZIPS):
            stamp = out / f".{str(archive.relative_to(folder)).replace('/', '_')}.names"
            if not stamp.exists():
                write_lines(stamp, _unpack(archive, out, patterns))
            used += [archive] * (stamp.stat().st_size > 0)
    return used


def _unpack(archive: Path, out: Path, patterns: Sequence[str]) -> Iterator[str]:
    """The names of the files that were copied, of those of one name the first."""
    copied = set()
    try:
        for name, content in tqdm(members(archive), archive.name, unit=" files"):
            if name not in copied and any(fnmatchcase(name, pattern) for pattern in patterns):
                copied.add(name)
                _copy(content, out / name)
                yield name
    except DAMAGED as error:
        raise UsageError(
            f"{archive} cannot be unpacked ({error}); get it again, and make room if the disk is "
            "full"
        ) from error


def _copy(content: IO[bytes], path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        shutil.copyfileobj(content, file)
    part.replace(path)


def files_below(folder: Path, pattern: str) -> list[Path]:
    """The nearest first; none of a recipe's work."""
    found = (path.relative_to(folder) for path in folder.rglob(pattern) if path.is_file())
    kept = (path for path in found if not any(p.endswith(".partial") for p in path.parts[:-1]))
    return [folder / path for path in sorted(kept, key=lambda path: (len(path.parts), path))]


def find(pattern: str, folders: Sequence[Path]) -> Path:
    """The first file that fits an alternative of a pattern, as it is or with .gz.

    Raises:
        UsageError: there is none, or the pattern is no name.
    """
    if not all(name and "/" not in name for name in pattern.split("|")):
        raise UsageError(f"'{pattern}' is no name of a file; give names without folders")
    for alternative in pattern.split("|"):
        for folder in folders:
            for name in (alternative, f"{alternative}.gz"):
                if found := _in(folder, name):
                    return found[0]
    raise UsageError(
        f"{folders[0]} has no {' and no '.join(pattern.split('|'))} (plain, .gz or in an archive); "
        "give the folder that has it"
    )


def _in(folder: Path, name: str) -> list[Path]:
    return files_below(folder, name) if folder.is_dir() else []


# Reading them.


def sentences(path: Path) -> Iterator[str]:
    """The text of a file of any form."""
    name = path.name.removesuffix(".gz")
    lines = lines_of(path)
    if name.startswith("train.tags."):
        return (TITLE.sub("", line).strip() for line in lines if not ABOUT.match(line))
    if name.endswith((".xml", ".sgm")):
        return (_plain(text) for line in lines for text in SEGMENT.findall(line))
    return lines


def _plain(segment: str) -> str:
    return html.unescape(segment).replace("’", "'").strip()


def extract(
    folder: Path, out: Path, languages: Sequence[str], parts: dict[str, str], inner: str = "."
) -> None:
    """Write out/PART.LANGUAGE for each part, and what it was made from; what is there is kept.

    Args:
        parts: the patterns of the files of each part.
        inner: an archive within one of the archives.

    Raises:
        UsageError: a file is missing or damaged.
    """
    wanted = {
        out / f"{part}.{language}": patterns.replace("@", language).split("+")
        for part, patterns in parts.items()
        for language in languages
    }
    if all(path.exists() for path in wanted):
        return
    used: list[Path] = []
    try:
        found = {path: [find(name, [folder]) for name in each] for path, each in wanted.items()}
    except UsageError:
        used, found = _with_archives(folder, out.parent / "unpacked", wanted, inner)
    for path, files in found.items():
        if not path.exists():
            text = chain.from_iterable(map(sentences, files))
            write_lines(path, tqdm(text, f"reading {path.name}", unit=" lines"))
    plain = (path for each in found.values() for path in each if path.is_relative_to(folder))
    write_lines(out.with_name(INPUTS), map(str, dict.fromkeys([*used, *plain])))


def _with_archives(
    folder: Path, unpacked: Path, wanted: dict[Path, list[str]], inner: str
) -> tuple[list[Path], dict[Path, list[Path]]]:
    """The archives that are needed, and the files of each part."""
    names = [name for each in wanted.values() for pattern in each for name in pattern.split("|")]
    names += [f"{name}.gz" for name in names]
    used = unpack(folder, unpacked, [*names, inner])
    if unpacked.is_dir():
        unpack(unpacked, unpacked, names)
    return used, {p: [find(n, [folder, unpacked]) for n in each] for p, each in wanted.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.data.extract",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where files are looked for")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for PART.LANGUAGE")
    parser.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE")
    parser.add_argument("--parts", nargs="+", required=True, metavar="PART=PATTERN")
    parser.add_argument("--inner", default=".", metavar="NAME", help="of an archive in an archive")
    given = parser.parse_args(arguments)
    if not given.folder.is_dir():
        raise UsageError(f"there is no folder {given.folder}; give the one that has the corpus")
    parts = dict(part.split("=", 1) for part in given.parts)
    extract(given.folder, given.out, given.languages, parts, given.inner)


if __name__ == "__main__":
    main()
