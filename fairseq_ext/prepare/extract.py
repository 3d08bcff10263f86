"""Parallel text out of corpora as they are published: files, plain or .gz, and archives.

PART=PATTERN+PATTERN… names the files of a part, in which @ stands for the language: the first
alternative that is there of A|B, looked for by name in a folder with its folders and archives
(.tgz, .tar, .zip). A file has all its languages in one folder, with equally many lines. Forms are
known by names: train.tags.* are TED talks with tags, .xml and .sgm have segments, others one
sentence a line.
"""

import argparse
import html
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from itertools import chain, zip_longest
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import atomic_writer, read_lines_replacing_returns, write_lines
from fairseq_ext.prepare.check import require_equal
from fairseq_ext.prepare.file_search import files_below, find
from fairseq_ext.prepare.manifest import INPUTS

TARS = (".tgz", ".tar.gz", ".tar")
ZIPS = (".zip",)
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError, RuntimeError)

# Lines about a talk; its title and description are text.
ABOUT = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b")
TITLE = re.compile(r"</?(?:title|description)>")
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>")


# Archives.


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
        Unfinished: the disk is full.
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
        if reason := getattr(error, "strerror", None):
            raise Unfinished(
                f"{archive} cannot be unpacked ({reason}); make room, or give a folder that can be "
                "read, and run the same command again"
            ) from error
        raise UsageError(f"{archive} cannot be unpacked ({error}); get it again") from error


def _copy(content: IO[bytes], path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        shutil.copyfileobj(content, file)
    part.replace(path)


# Reading them.


def sentences(path: Path) -> Iterator[str]:
    """The text of a file of any form."""
    name = path.name.removesuffix(".gz")
    lines = read_lines_replacing_returns(path)
    if name.startswith("train.tags."):
        return (TITLE.sub("", line).strip() for line in lines if not ABOUT.match(line))
    if name.endswith((".xml", ".sgm")):
        return (_plain(text) for line in lines for text in SEGMENT.findall(line))
    return lines


def _plain(segment: str) -> str:
    return html.unescape(segment).replace("’", "'").strip()


Wanted = dict[str, list[list[str]]]  # part -> names of files, one for each language


def extract(
    folder: Path, out: Path, languages: Sequence[str], parts: dict[str, str], inner: str = "."
) -> None:
    """Write out/PART.LANGUAGE for each part, and what it was made from; what is there is kept.

    Args:
        parts: the patterns of the files of each part.
        inner: an archive within one of the archives.

    Raises:
        UsageError: a file is missing, damaged or longer than that of another language.
    """
    paths = {part: [out / f"{part}.{language}" for language in languages] for part in parts}
    if all(path.exists() for each in paths.values() for path in each):
        return
    wanted = {
        part: [[name.replace("@", language) for language in languages] for name in text.split("+")]
        for part, text in parts.items()
    }
    used: list[Path] = []
    try:
        found = _found(wanted, [folder])
    except UsageError:
        used, found = _with_archives(folder, out.parent / "unpacked", wanted, inner)
    for part, files in found.items():
        if not all(path.exists() for path in paths[part]):
            _write(paths[part], files, part)
    read = (path for files in found.values() for each in zip(*files, strict=True) for path in each)
    plain = (path for path in read if path.is_relative_to(folder))
    write_lines(out.with_name(INPUTS), map(str, dict.fromkeys([*used, *plain])))


def _write(paths: Sequence[Path], files: Sequence[Sequence[Path]], part: str) -> None:
    """A part, in all languages at once, out of its files."""
    with ExitStack() as stack:
        written = [stack.enter_context(atomic_writer(path)) for path in paths]
        lines = chain.from_iterable(map(aligned, files))
        for each in tqdm(lines, f"reading {part}", unit=" lines"):
            for file, line in zip(written, each, strict=True):
                file.write(f"{line}\n")


def aligned(files: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """The lines of a file in all languages; raises UsageError if one has more than another."""
    counts = [0] * len(files)
    for lines in zip_longest(*map(sentences, files)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if None not in lines:
            yield lines
    require_equal(files, counts)


def _found(wanted: Wanted, folders: Sequence[Path]) -> dict[str, list[list[Path]]]:
    return {part: [find(names, folders) for names in each] for part, each in wanted.items()}


def _with_archives(
    folder: Path, unpacked: Path, wanted: Wanted, inner: str
) -> tuple[list[Path], dict[str, list[list[Path]]]]:
    """The archives that are needed, and the files of each part."""
    patterns = (pattern for each in wanted.values() for names in each for pattern in names)
    names = [name for pattern in patterns for name in pattern.split("|")]
    names += [f"{name}.gz" for name in names]
    used = unpack(folder, unpacked, [*names, inner])
    if unpacked.is_dir():
        unpack(unpacked, unpacked, names)
    return used, _found(wanted, [folder, unpacked])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.extract",
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
