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

from fairseq_ext.data.fetch import check
from fairseq_ext.data.lines import lines_of
from fairseq_ext.data.sources import SOURCES
from fairseq_ext.errors import UsageError
from fairseq_ext.files import write_lines

TARS = (".tgz", ".tar.gz", ".tar")
ZIPS = (".zip",)
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError)

# Lines about a talk; its title and description are text.
ABOUT = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b")
TITLE = re.compile(r"</?(?:title|description)>")
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>")

DIGESTS = {address.name: address.digest for each in SOURCES.values() for address in each}


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

    Only base names are used, so that nothing is written elsewhere. A published archive is checked.

    Returns:
        The archives.

    Raises:
        UsageError: an archive is damaged or is not what was published.
    """
    archives = [path for path in sorted(folder.rglob("*")) if path.name.endswith(TARS + ZIPS)]
    for archive in archives:
        if (out / f".{archive.name}.done").exists():
            continue
        if archive.name in DIGESTS:
            check(archive, DIGESTS[archive.name])
        out.mkdir(parents=True, exist_ok=True)
        try:
            for name, content in tqdm(members(archive), archive.name, unit=" files"):
                if any(fnmatchcase(name, pattern) for pattern in patterns):
                    _copy(content, out / name)
        except DAMAGED as error:
            raise UsageError(
                f"{archive} cannot be unpacked ({error}); get it again, and make room if the disk "
                "is full"
            ) from error
        (out / f".{archive.name}.done").touch()
    return archives


def _copy(content: IO[bytes], path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        shutil.copyfileobj(content, file)
    part.replace(path)


def find(pattern: str, folders: Sequence[Path]) -> Path:
    """The first file that fits an alternative of a pattern, as it is or with .gz.

    Raises:
        UsageError: there is none.
    """
    for alternative in pattern.split("|"):
        for folder in folders:
            for name in (alternative, f"{alternative}.gz"):
                if found := sorted(path for path in folder.rglob(name) if path.is_file()):
                    return found[0]
    raise UsageError(
        f"{folders[0]} has no {' and no '.join(pattern.split('|'))} (plain, .gz or in an archive); "
        "give the folder that has it"
    )


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
    missing = {path: patterns for path, patterns in wanted.items() if not path.exists()}
    if not missing:
        return
    unpacked = out.parent / "unpacked"
    alternatives = [a for each in missing.values() for pattern in each for a in pattern.split("|")]
    names = [form for a in alternatives for form in (a, f"{a}.gz")]
    used = unpack(folder, unpacked, [*names, inner])
    unpack(unpacked, unpacked, names)
    found = {path: [find(p, (folder, unpacked)) for p in each] for path, each in missing.items()}
    used += [path for each in found.values() for path in each if not path.is_relative_to(unpacked)]
    write_lines(out.parent / "inputs", map(str, dict.fromkeys(used)))
    for path, files in found.items():
        text = chain.from_iterable(map(sentences, files))
        write_lines(path, tqdm(text, f"reading {path.name}", unit=" lines"))


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
