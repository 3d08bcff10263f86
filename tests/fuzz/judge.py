"""What is a failure of a command."""

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from .options import REFUSED, WORKS
from .process import Ended

NET = "unexpected error:"  # how errors begin that nobody foresaw
TRACEBACK = "Traceback (most recent call last)"
OUT_OF_RANGE = re.compile(
    r"; give a|must be at least|is not a number from|is no number from|is too large|give a number"
)
NO_MEMORY = re.compile(r"^memory allocation of \d+ bytes failed", re.M)  # of tokenizers, in Rust
EXCEPTION = re.compile(r"^\w[\w.]*(?::.*)?$", re.M)
OTHERS = re.compile(r"^(?:awk|basename|cat|dirname|find|grep|ls|mv|rm|sed|\S+: line \d+):.*", re.M)
LENGTH = 300  # of what is shown of a line
SAID = 2  # characters at least, of one that is refused

State = Mapping[str, bytes]
"""Files of a folder -> their content."""

NOTHING: State = {}


def read_state(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without links, large ones and what begins with a dot."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 5_000_000
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def find_failures(
    ended: Ended,
    expected: str,
    before: State,
    after: State,
    writes: list[str],
    find_whole: Callable[[], State] = lambda: NOTHING,
    full_disk: bool = False,
) -> list[str]:
    """Return what is wrong about a command that has ended; nothing if all is well.

    Args:
        ended: what it said, and its exit code.
        expected: what it was to do.
        before: the files beforehand.
        after: the files that there are now.
        writes: patterns of files and folders (with a slash at the end) that it makes.
        find_whole: returns what its base case writes, which is asked for when it matters.
        full_disk: there was no room for what it writes, so that it must not be short of anything.
    """
    said = ended.out + ended.err
    failures = []
    if ended.hung:
        failures.append("hangs")
    if TRACEBACK in said:
        raised = EXCEPTION.findall(said.rpartition(TRACEBACK)[2])
        failures.append(f"traceback: {raised[0][:LENGTH] if raised else ''}")
    if NET in said:
        failures.append(f"net: {said.partition(NET)[2].partition(chr(10))[0][1:LENGTH]}")
    if ended.code is not None and ended.code < 0 and not NO_MEMORY.search(ended.err):
        failures.append(f"ended by signal {-ended.code}")
    if said_by_others := OTHERS.search(ended.err):
        failures.append(f"words of another program: {said_by_others[0][:LENGTH]}")
    if ended.code == 0 and expected == REFUSED:
        failures.append("exit 0 from bad input")
    if ended.code is None and expected == REFUSED and not ended.hung:
        failures.append("works on bad input")
    if (ended.code or 0) > 0 and len(ended.err.strip()) < SAID:
        failures.append(f"exit {ended.code} without a word")
    if ended.code and expected == WORKS and OUT_OF_RANGE.search(_last_line(ended)):
        failures.append(f"refused within its range: {_last_line(ended)}")
    if ended.code or full_disk:
        new = [name for name in sorted(after) if after[name] != before.get(name)]
        made = [name for name in new if is_written(name, writes)]
        whole = find_whole() if made or full_disk else NOTHING
        failures += [
            f"half-written {name}"
            for name in made
            if not is_complete(name, after[name], whole.get(name))
        ]
        if ended.code == 0:
            failures += [f"exit 0 without {name}" for name in whole if name not in after]
    return failures


def _last_line(ended: Ended) -> str:
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return lines[-1][:LENGTH] if lines else ""


def is_written(name: str, writes: list[str]) -> bool:
    """Tell whether a file is one that a command makes, or lies in a folder that it makes."""
    return any(name.startswith(each) if each.endswith("/") else name == each for each in writes)


def is_complete(name: str, data: bytes, whole: bytes | None) -> bool:
    """Tell whether a file that a failed command wrote is a whole one.

    Args:
        name: of the file, whose ending says its format.
        data: its content.
        whole: what a command that works writes there, if that is known.
    """
    if data == whole:
        return True
    if whole is not None and whole.startswith(data):
        return False
    check = CHECKS.get(Path(name).suffix)
    try:
        return bool(check(data)) if check else bool(data)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, SafetensorError):
        return False


def _is_checkpoint(data: bytes) -> bool:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.testzip() is None


def _is_array(data: bytes) -> bool:
    return np.load(io.BytesIO(data), allow_pickle=False) is not None


CHECKS: dict[str, Callable[[bytes], object]] = {
    ".pt": _is_checkpoint,
    ".json": lambda data: json.loads(data) is not None,
    ".png": lambda data: data.endswith(b"IEND\xaeB`\x82"),
    ".svg": lambda data: data.rstrip().endswith(b"</svg>"),
    ".html": lambda data: data.rstrip().endswith(b"</html>"),
    ".npy": _is_array,
    ".safetensors": deserialize,
    ".idx": lambda data: len(data) > 26,
}
"""Ending of a file -> whether data are a whole one."""
