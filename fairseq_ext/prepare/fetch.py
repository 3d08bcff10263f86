"""Downloads of corpora, each archive from the first address that has it, with checksums.

sources.txt lists the archives. Downloaded files are kept, and an interrupted download continues.
Exit code 69: an archive cannot be downloaded. With --check, archives alone are checked: text may be
a part of what was published. With --given, the files are somewhere below FOLDER: their own folder
is printed. (pooch is no substitute: it restarts interrupted downloads and takes one address.)
"""

import hashlib
import shutil
import ssl
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.places import hold, open_unlinked
from fairseq_ext.prepare.extract import ARCHIVES, find
from fairseq_ext.prepare.step import step_parser

CHUNK = 1 << 20  # bytes
PATIENCE = 20  # seconds without an answer
AGENT = "fairseq_ext"  # some servers refuse Python's own name
UNAVAILABLE = 69  # exit code, EX_UNAVAILABLE of sysexits.h


class Unavailable(UsageError):
    """A file that no address has, or none that could be reached."""


class Mismatch(UsageError):
    """A file with another checksum than it should have."""


# Errors of a connection; any other OSError is an error of the disk.
BROKEN = (URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError)


class Address(NamedTuple):
    """A place to download from.

    Attributes:
        url: the place.
        checksum: "sha256:HEX" or "md5:HEX" of the downloaded file; empty where none is known.
        name: the name that the file gets.
    """

    url: str
    checksum: str
    name: str


def read_sources(path: Path) -> dict[str, list[Address]]:
    """Return the addresses of each archive in a file of lines NAME FILE CHECKSUM ADDRESS."""
    sources: dict[str, list[Address]] = {}
    for line in read_lines(path):
        if line and not line.startswith("#"):
            archive, name, checksum, url = line.split()
            sources.setdefault(archive, []).append(Address(url, checksum.strip("-"), name))
    return sources


SOURCES = read_sources(Path(__file__).with_name("sources.txt"))


def checksum_of(path: Path, kind: str) -> str:
    """Return the checksum of a file as "KIND:HEX", where the kind is a name that hashlib knows."""
    result, size = hashlib.new(kind), path.stat().st_size
    with (
        path.open("rb") as file,
        tqdm.wrapattr(file, "read", size, desc=f"checking {path.name}", delay=1) as stream,
    ):
        while chunk := stream.read(CHUNK):
            result.update(chunk)
    return f"{kind}:{result.hexdigest()}"


def has_checksum(path: Path, expected: str) -> bool:
    """Return whether a file has a checksum "KIND:HEX"."""
    return checksum_of(path, expected.partition(":")[0]) == expected


def require_checksum(path: Path, expected: str) -> None:
    """Raise Mismatch unless a file has this checksum, or the checksum is empty."""
    if expected and not has_checksum(path, expected):
        raise Mismatch(
            f"{path} does not have the expected checksum {expected}, so it is damaged or another "
            "version; get it again"
        )


def find_downloaded(addresses: Sequence[Address], folder: Path) -> Path | None:
    """Return the file in a folder or below it, or None; raise Mismatch for another checksum."""
    for address in addresses:
        for path in sorted(folder.rglob(address.name)):
            require_checksum(path, address.checksum)
            return path
    return None


def find_folder(names: Sequence[str], folder: Path) -> Path:
    """Return the nearest folder, this one or one below it, that has the files of all sources.

    Args:
        names: keys of `SOURCES`.
        folder: searched.

    Raises:
        Mismatch: a file has another checksum.
        UsageError: a file is missing, or the files are in different folders.
    """
    paths = find([SOURCES[name][0].name for name in names], [folder])
    for path, name in zip(paths, names, strict=True):
        require_checksum(path, SOURCES[name][0].checksum)
    return paths[0].parent


def fetch(addresses: Sequence[Address], folder: Path) -> Path:
    """Return a file of a folder; if it is missing, download it from the first address that has it.

    Raises:
        Unavailable: no address could be reached.
        Mismatch: a downloaded file has another checksum.
        Unfinished: the file cannot be written.
    """
    if path := find_downloaded(addresses, folder):
        return path
    failures: dict[str, Exception] = {}
    for address in addresses:
        try:
            return _download(address, folder)
        except (Mismatch, *BROKEN) as error:
            failures[address.url] = error
        except OSError as error:
            raise Unfinished(
                f"{folder / address.name} cannot be written ({error.strerror}); make room and run "
                "the same command again"
            ) from error
    differ = any(isinstance(error, Mismatch) for error in failures.values())
    reasons = "; ".join(f"{url}: {error}" for url, error in failures.items())
    raise (Mismatch if differ else Unavailable)(
        f"{addresses[0].name} could not be downloaded ({reasons}); get it elsewhere and give its "
        "folder with --offline"
    )


def _download(address: Address, folder: Path) -> Path:
    """Download a file, unless another command has done so while this one waited for it."""
    path = folder / address.name
    with hold(folder, inside=True, wait=True):
        return path if path.exists() else _continue_download(address, path)


def _continue_download(address: Address, path: Path) -> Path:
    """Download a file as NAME.part, from where that ends, check it and rename it."""
    part = path.with_name(f"{path.name}.part")
    request = Request(address.url, headers={"User-Agent": AGENT})
    if begun := part.stat().st_size if part.exists() else 0:
        if address.checksum and has_checksum(part, address.checksum):
            return part.replace(path)
        request.add_header("Range", f"bytes={begun}-")
    with _open(request, part) as answer:
        if answer.headers.get_content_type() == "text/html":
            raise URLError("it sends a web page instead")
        resumed = answer.status == HTTPStatus.PARTIAL_CONTENT
        _save(answer, part, begun if resumed else 0)
    if address.checksum and not has_checksum(part, address.checksum):
        part.unlink()
        raise Mismatch(f"it does not have the expected checksum {address.checksum}")
    return part.replace(path)


def _open(request: Request, part: Path) -> HTTPResponse:
    """Return the server's answer; if it has no more than the part file, begin the file again."""
    try:
        return urlopen(request, timeout=PATIENCE)
    except HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink()
        request.remove_header("Range")
        return urlopen(request, timeout=PATIENCE)


def _save(answer: HTTPResponse, part: Path, begun: int) -> None:
    """Append an answer to a part file of `begun` bytes."""
    length = answer.headers.get("Content-Length")
    total = int(length) + begun if length else None
    with (
        open_unlinked(part, "ab" if begun else "wb") as file,
        tqdm.wrapattr(answer, "read", total, desc=part.stem, initial=begun) as stream,
    ):
        shutil.copyfileobj(stream, file, CHUNK)
    size = part.stat().st_size
    if total and size != total:  # more, if another command has written to it without a lock
        raise HTTPException(f"{size} bytes have arrived, and {total} were announced")


def main(arguments: Sequence[str] | None = None) -> None:
    """Download or check archives, or find a folder that has them."""
    parser = step_parser("fetch", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where archives go")
    parser.add_argument("names", nargs="+", choices=SOURCES, metavar="NAME", help="of an archive")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only check the archives that are there")
    mode.add_argument("--given", action="store_true", help="only find the files, and check them")
    args = parser.parse_args(arguments)
    try:
        if args.given:
            print(find_folder(args.names, args.folder))
            return
        for addresses in (SOURCES[name] for name in args.names):
            if not args.check:
                fetch(addresses, args.folder)
            elif addresses[0].name.endswith(ARCHIVES):
                find_downloaded(addresses, args.folder)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(UNAVAILABLE)


if __name__ == "__main__":
    main()
