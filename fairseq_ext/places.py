"""Places to write to: hidden folders that nobody can foretell, and one writer at a time."""

import errno
import fcntl
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, Any

from fairseq_ext.errors import UsageError, to_line

logger = logging.getLogger(__name__)

PATIENCE = 60  # seconds after which a hidden folder has been locked by its process

_held: set[Path] = set()  # locks of this process, and of those that it was forked from


@contextmanager
def private_folder(parent: Path) -> Iterator[Path]:
    """Yield a new hidden folder in `parent`, which is removed at the end.

    Nobody can foretell its name, so that no link can lie in wait in it. A process locks its folder;
    the folders of killed processes are removed.
    """
    for left in parent.glob(f".{'?' * 8}.part"):
        with _lock_folder(left) as locked, suppress(OSError):
            if locked and time.time() - left.stat().st_mtime > PATIENCE:
                shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(".part", ".", parent))
    try:
        with _lock_folder(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[bool]:
    """Lock a folder, or yield False: another process has, it is a link, or nothing can."""
    with ExitStack() as stack:
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, number)
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except OSError:
            locked = False
        yield locked


def open_unlinked(path: Path, mode: str) -> IO[Any]:
    """Open a file whose name can be foretold to write, in UTF-8 if it is text.

    Raises:
        UsageError: a link has the name, so that another file would be written.
    """
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=_refuse_links)


def _refuse_links(path: str, flags: int) -> int:
    try:
        number = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        if os.fstat(number).st_nlink <= 1:
            if flags & os.O_TRUNC:
                os.ftruncate(number, 0)
            return number
        os.close(number)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    raise UsageError(f"{path} is a link, and has to be a file of its own; delete it")


@contextmanager
def hold(place: Path, flag: str = "", inside: bool = False, wait: bool = False) -> Iterator[None]:
    """Keep other processes from writing to a place; readers are not kept out.

    The lock ends with this process, however that ends. Where locks do not work, a warning says so.

    Args:
        place: a file, or a folder. What is no file, like a pipe, is not held.
        flag: it gives the place.
        inside: whether files are written into a folder, which is made; otherwise the lock is beside
            the place.
        wait: whether to wait until another process, or thread, has ended.

    Raises:
        UsageError: another process writes to it.
    """
    import filelock  # steps of recipes run before it is installed

    logging.getLogger("filelock").setLevel(logging.INFO)  # some tasks of fairseq's log all details
    path = place.resolve()
    if inside:
        path.mkdir(parents=True, exist_ok=True)
    file = path / ".writer.lock" if inside else path.parent / f".{path.name}.lock"
    with ExitStack() as stack:
        ours = file in _held and not wait
        if not ours and not is_device(place) and os.access(file.parent, os.W_OK):
            try:
                lock = stack.enter_context(filelock.FileLock(file, -1 if wait else 0))
                if not isinstance(lock, filelock.SoftFileLock):  # which signs by itself
                    _sign(file)
                stack.callback(file.unlink, missing_ok=True)
                _held.add(file)
                stack.callback(_held.discard, file)
            except filelock.Timeout:
                raise UsageError(
                    f"another process writes to {place}{flag and f' ({flag})'}{_read_holder(file)};"
                    " wait until it has ended, stop it, or give another place"
                ) from None
            except OSError as error:
                reason = error.strerror or error
                logger.warning(
                    "%s cannot be locked (%s); let one command write to it", path, reason
                )
        yield


def is_device(path: Path) -> bool:
    """Tell whether a path is neither a file nor a folder, but there."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _sign(file: Path) -> None:
    with open_unlinked(file, "w") as stream:
        stream.write(f"process {os.getpid()} on {socket.gethostname()}, {to_line(sys.argv[0])}")


def _read_holder(file: Path) -> str:
    try:
        return f": {to_line(file.read_text('utf-8', 'replace'))}".removesuffix(": ")
    except OSError:
        return ""


def hold_until_exit(folder: Path, flag: str) -> None:
    """Hold a folder, in which files are written, as long as this process lives; see `hold`."""
    held = ExitStack()
    held.enter_context(hold(folder, flag, inside=True))
    Finalize(None, held.close, exitpriority=0)  # also in processes that multiprocessing starts
