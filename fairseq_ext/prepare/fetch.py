"""Download archives of corpora, each from the first address that has it, and check them.

What was downloaded is kept, what was interrupted goes on. Exit code 69: it cannot be downloaded.
"""

import argparse
import hashlib
import http.client
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.prepare.file_search import find
from fairseq_ext.prepare.sources import SOURCES, Address

CHUNK = 1 << 20  # bytes
PATIENCE = 20  # seconds without an answer
AGENT = "fairseq_ext"  # some servers refuse Python's own name
ARCHIVES = (".tgz", ".zip")
UNAVAILABLE = 69  # exit code, EX_UNAVAILABLE of sysexits.h


class Unavailable(UsageError):
    """No address could be reached."""


class Mismatch(UsageError):
    """A file has another checksum than it should have."""


# Of a connection, while OSError alone is of the disk.
BROKEN = (
    *(urllib.error.URLError, http.client.HTTPException),
    *(TimeoutError, ConnectionError, ssl.SSLError),
)


def digest(path: Path, kind: str) -> str:
    found, size = hashlib.new(kind), path.stat().st_size
    with (
        path.open("rb") as file,
        tqdm(desc=f"checking {path.name}", total=size, unit="B", unit_scale=True, delay=1) as bar,
    ):
        while chunk := file.read(CHUNK):
            found.update(chunk)
            bar.update(len(chunk))
    return f"{kind}:{found.hexdigest()}"


def is_right(path: Path, expected: str) -> bool:
    """Whether a file has this checksum, as in sha256:…"""
    return digest(path, expected.partition(":")[0]) == expected


def check(path: Path, expected: str) -> None:
    """Raise Mismatch unless a file has this checksum, if there is one."""
    if expected and not is_right(path, expected):
        raise Mismatch(
            f"{path} does not have the expected checksum {expected}, so it is damaged or another "
            "version; get it again"
        )


def there(addresses: Sequence[Address], folder: Path) -> Path | None:
    """The file, if a folder or a folder in it has it; raises Mismatch if it is another one."""
    for address in addresses:
        for path in sorted(folder.rglob(address.name)):
            check(path, address.digest)
            return path
    return None


def given(names: Sequence[str], folder: Path) -> Path:
    """The nearest folder, of this one and those in it, that has all of these files.

    Raises:
        Mismatch: one has another checksum.
        UsageError: one is not there, or they are in different folders.
    """
    addresses = [SOURCES[name][0] for name in names]
    found = find([address.name for address in addresses], [folder])
    for path, address in zip(found, addresses, strict=True):
        check(path, address.digest)
    return found[0].parent


def fetch(addresses: Sequence[Address], folder: Path) -> Path:
    """The file, downloaded from the first address that has it.

    Raises:
        Unavailable: none could be reached.
        Mismatch: what was downloaded has another checksum.
        Unfinished: it cannot be written.
    """
    if path := there(addresses, folder):
        return path
    reasons, wrong = [], False
    for address in addresses:
        try:
            return _download(address, folder)
        except (*BROKEN, Mismatch) as error:
            wrong |= isinstance(error, Mismatch)
            reasons.append(str(error) if wrong else f"{address.url}: {error}")
        except OSError as error:
            raise Unfinished(
                f"{folder / address.name} cannot be written ({error.strerror}); make room and run "
                "the same command again"
            ) from error
    raise (Mismatch if wrong else Unavailable)(
        f"{addresses[0].name} could not be downloaded ({'; '.join(reasons)}); get it elsewhere and "
        "give its folder with --offline"
    )


def _download(address: Address, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    part, path = folder / f"{address.name}.part", folder / address.name
    request = urllib.request.Request(address.url, headers={"User-Agent": AGENT})
    begun = part.stat().st_size if part.exists() else 0
    if begun and address.digest and is_right(part, address.digest):
        return part.replace(path)
    if begun:
        request.add_header("Range", f"bytes={begun}-")
    with _opened(request, part) as answer:
        if answer.headers.get_content_type() == "text/html":
            raise urllib.error.URLError("it sends a web page instead")
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        _save(answer, part, begun if resumed else 0)
    try:
        check(part, address.digest)
    except Mismatch:
        part.unlink()
        raise Mismatch(
            f"{address.url} does not have the expected checksum {address.digest}"
        ) from None
    return part.replace(path)


def _opened(request: urllib.request.Request, part: Path) -> http.client.HTTPResponse:
    """What a server begins to send; all of it, if it has no more than what is there."""
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink()
        request.remove_header("Range")
        return urllib.request.urlopen(request, timeout=PATIENCE)


def _save(answer: http.client.HTTPResponse, part: Path, begun: int) -> None:
    length = answer.headers.get("Content-Length")
    total = int(length) + begun if length else None
    with (
        part.open("ab" if begun else "wb") as file,
        tqdm(desc=part.stem, total=total, initial=begun, unit="B", unit_scale=True) as bar,
    ):
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))
    if total and part.stat().st_size < total:
        raise http.client.IncompleteRead(b"", total - part.stat().st_size)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.fetch", description=__doc__
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where archives go")
    parser.add_argument("names", nargs="+", choices=SOURCES, metavar="NAME", help="of an archive")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--check",
        action="store_true",
        help="only check the archives that are there (text may be a part of what was published)",
    )
    kind.add_argument(
        "--given",
        action="store_true",
        help="download nothing, print the folder in FOLDER that has the files, which are checked",
    )
    options = parser.parse_args(arguments)
    try:
        if options.given:
            print(given(options.names, options.folder))
            return
        for addresses in (SOURCES[name] for name in options.names):
            if not options.check:
                fetch(addresses, options.folder)
            elif addresses[0].name.endswith(ARCHIVES):
                there(addresses, options.folder)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(UNAVAILABLE)


if __name__ == "__main__":
    main()
