"""Parallel text from corpora as they are published: files, plain or .gz, and archives.

PART=PATTERN+PATTERN… names the files of a part. @ in a pattern stands for the language. A|B is the
first alternative that exists; it is looked for by name in a folder with its folders and archives
(.tgz, .tar, .zip). A file has all its languages in one folder, with equally many lines. Names tell
the form: train.tags.* are TED talks with tags, .xml and .sgm have segments, others have one
sentence a line.
"""

import filecmp
import html
import lzma
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from itertools import chain, combinations
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

from fairseq_ext.bounds import check_unpacked, open_unpacked
from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import atomic_writer, read_lines_replacing_returns, rename_when_complete
from fairseq_ext.prepare.check import read_parallel
from fairseq_ext.prepare.step import record_inputs, sources_of, step_parser

Patterns = Mapping[str, Sequence[Sequence[str]]]  # part -> its texts' patterns, by languages

ARCHIVES = (".tgz", ".tar.gz", ".tar", ".zip")
AGAIN = "make room, or give a folder that can be read, and run the same command again"
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError),
    *(zlib.error, lzma.LZMAError),
)

# Lines about a talk are left out, but its title and description are text.
ABOUT = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|doc)\b")
TITLE = re.compile(r"</?(?:title|description)>")
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>")


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
            missing = f"{' and no '.join(names)} (plain, .gz or in an archive)"
            return f"{folders[0]} has no {missing}; give the folder that has it"
        nearest.append(str(paths[0]))
    given = " and ".join(nearest)
    return f"{given} are in different folders or have different names; put them in one folder"


def open_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the base name and the content of each file in an archive, to be read at once."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            size = sum(entry.file_size for entry in zipped.infolist())
            check_unpacked(archive, archive.stat().st_size, size)
            for entry in zipped.infolist():
                if not entry.is_dir():
                    with zipped.open(entry) as content:
                        yield PurePosixPath(entry.filename).name, content
    else:
        with open_unpacked(archive) as content, tarfile.open(fileobj=content, mode="r|") as tarred:
            size = 0
            for member in tarred:
                size += member.size  # more than its content takes, if that has holes
                check_unpacked(archive, archive.stat().st_size, size)
                if member.isfile() and (extracted := tarred.extractfile(member)):
                    yield PurePosixPath(member.name).name, extracted


def unpack(folder: Path, out: Path, patterns: Sequence[str], archives: str = "*") -> list[Path]:
    """Copy the files in a folder's archives whose names match a pattern, and keep existing copies.

    Only base names are used, so that nothing is written outside of `out`. Files of one name must be
    equal: of different ones, languages that do not belong together could be paired.

    Args:
        folder: searched for archives.
        out: folder to copy to.
        patterns: names of files to copy.
        archives: pattern of the names of archives.

    Returns:
        The archives that had such files.

    Raises:
        UsageError: an archive is damaged, or two files of one name differ.
        Unfinished: the disk is full.
    """
    used = []
    for archive in files_below(folder, archives):
        if archive.name.endswith(ARCHIVES):
            stamp = out / f".{str(archive.relative_to(folder)).replace('/', '_')}.names"
            if not stamp.exists():
                with atomic_writer(stamp) as file:
                    file.writelines(f"{name}\n" for name in _unpack_archive(archive, out, patterns))
            used += [archive] * (stamp.stat().st_size > 0)
    return used


def _unpack_archive(archive: Path, out: Path, patterns: Sequence[str]) -> Iterator[str]:
    """Yield the names of the files that are copied."""
    try:
        for name, content in tqdm(open_members(archive), archive.name, unit=" files"):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                _copy(content, out / name, archive)
                yield name
    except DAMAGED as error:
        reason = getattr(error, "strerror", None)
        kind, remedy = (Unfinished, AGAIN) if reason else (UsageError, "get it again")
        raise kind(f"{archive} cannot be unpacked ({reason or error}); {remedy}") from error


def _copy(content: IO[bytes], path: Path, archive: Path) -> None:
    """Write a file of an archive; raise UsageError if there is another one of its name."""
    plain = path.name.removesuffix(".gz")
    twin = path.with_name(plain if plain != path.name else f"{plain}.gz")
    with rename_when_complete(path) as part:
        with part.open("wb") as file:
            shutil.copyfileobj(content, file)
        if twin.exists() or (path.exists() and not filecmp.cmp(part, path, shallow=False)):
            raise UsageError(
                f"{archive} has a {path.name}, and another {plain} (plain or .gz) was in it or in "
                "another archive; leave one of the two out"
            )


def sentences(path: Path) -> Iterator[str]:
    """Return the sentences of a file, in the form that its name tells."""
    name = path.name.removesuffix(".gz")
    lines = read_lines_replacing_returns(path)
    if name.startswith("train.tags."):
        return (TITLE.sub("", line).strip() for line in lines if not ABOUT.match(line))
    if name.endswith((".xml", ".sgm")):
        segments = (segment for line in lines for segment in SEGMENT.findall(line))
        return (html.unescape(segment).replace("’", "'").strip() for segment in segments)
    return lines


def extract(
    folder: Path, out: Path, languages: Sequence[str], parts: dict[str, str], inner: str = "."
) -> None:
    """Write out/PART.LANGUAGE for each part, and list the inputs; files that exist are kept.

    Args:
        folder: searched for files and archives.
        out: folder to write to.
        languages: endings of the files.
        parts: the patterns of each part's files.
        inner: name of an archive within one of the archives.

    Raises:
        UsageError: a file is missing or damaged, or its languages have different numbers of lines.
    """
    paths = {part: [out / f"{part}.{language}" for language in languages] for part in parts}
    if all(path.exists() for each in paths.values() for path in each):
        return
    check_patterns(languages, parts)
    patterns = {
        part: [[name.replace("@", each) for each in languages] for name in text.split("+")]
        for part, text in parts.items()
    }
    try:
        files, archives = _find_all(patterns, folder), list[Path]()
    except UsageError:
        unpacked = out.parent / "unpacked"
        archives = _unpack_all(patterns, folder, unpacked, inner)
        files = _find_all(patterns, folder, unpacked)
    for each in chain(*files.values()):
        _check_distinct(each)
    read = (path for each in files.values() for path in chain(*zip(*each, strict=True)))
    # before a part is written: what changes from now on is newer
    record_inputs(out, [*archives, *(path for path in read if path.is_relative_to(folder))])
    for part in (p for p, each in paths.items() if not all(path.exists() for path in each)):
        _write_part(paths[part], files[part], part)


def _find_all(patterns: Patterns, *folders: Path) -> dict[str, list[list[Path]]]:
    return {part: [find(names, folders) for names in each] for part, each in patterns.items()}


def _unpack_all(patterns: Patterns, folder: Path, unpacked: Path, inner: str) -> list[Path]:
    """Unpack what patterns name from archives, and an archive within one; return the archives."""
    names = [name for text in chain(*chain(*patterns.values())) for name in text.split("|")]
    names += [f"{name}.gz" for name in names]
    archives = unpack(folder, unpacked, [*names, inner])
    unpack(unpacked, unpacked, names)
    return archives


def check_patterns(languages: Sequence[str], parts: Mapping[str, str]) -> None:
    """Raise UsageError if a language is given twice, or a name stands for all languages."""
    if len(set(languages)) < len(languages):
        raise UsageError(f"the languages are {' and '.join(languages)}; give different ones")
    for part, text in parts.items() if len(languages) > 1 else ():
        for name in re.split(r"[+|]", text):
            if name and "@" not in name:
                raise UsageError(
                    f"'{name}' of {part} would be read as {' and as '.join(languages)}; put @ in "
                    f"the place of the language, as in {part}.@"
                )


def _check_distinct(paths: Sequence[Path]) -> None:
    """Raise UsageError if one file, perhaps through a link, would be several languages."""
    for one, other in combinations(paths, 2):
        if one.samefile(other):
            raise UsageError(f"{one} and {other} are one file; give one for each language")


def _write_part(paths: Sequence[Path], sources: Sequence[Sequence[Path]], part: str) -> None:
    """Write a part in all languages at once, and for each file its sources (see `name_place`)."""
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_writer(path)) for path in paths]
        lists = [stack.enter_context(atomic_writer(sources_of(path))) for path in paths]
        for each in sources:
            count = 0
            pairs = tqdm(read_parallel(each, sentences), f"reading {part}", unit=" lines")
            for lines in pairs:
                count += 1
                for file, line in zip(files, lines, strict=True):
                    file.write(f"{line}\n")
            for file, source in zip(lists, each, strict=True):
                file.write(f"{count}\t{source}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Extract the parts of a corpus."""
    parser = step_parser("extract", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where files are looked for")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for PART.LANGUAGE")
    parser.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE")
    parser.add_argument("--parts", nargs="+", required=True, metavar="PART=PATTERN")
    parser.add_argument("--inner", default=".", metavar="NAME", help="of an archive in an archive")
    args = parser.parse_args(arguments)
    if not args.folder.is_dir():
        raise UsageError(f"there is no folder {args.folder}; give the one that has the corpus")
    if wrong := [part for part in args.parts if "=" not in part]:
        parser.error(f"argument --parts: '{wrong[0]}' is not PART=PATTERN, as in train=train.@")
    parts = dict(part.split("=", 1) for part in args.parts)
    extract(args.folder, args.out, args.languages, parts, args.inner)


if __name__ == "__main__":
    main()
