"""Exceptions and errors of standard output that a user sees as one sentence, and a last net."""

import atexit
import errno
import io
import logging
import os
import re
import signal
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any


class UsageError(ValueError):
    """Error of usage; its message says what was given, what is accepted and what to do.

    A command line prints only the message (no traceback) and ends with exit code 1. In Python it is
    an ordinary :class:`ValueError`.
    """


class Unfinished(UsageError):
    """Error of the machine, like a full disk, after which the same command may continue."""


TRACEBACK = "FAIRSEQ_EXT_TRACEBACK"  # environment variable: 1 shows tracebacks
COMMANDS = ("fairseq-", "fairseq_cli.", "fairseq_ext.")
USAGE_ERROR = re.compile(r"^fairseq_ext\.errors\.(?:UsageError|Unfinished): (.+)\Z", re.M | re.S)
NO_MEMORY = re.compile(
    "not enough memory|can't allocate memory|out of memory|can't start new thread|"
    "could not create a primitive|thread pool.*Resource temporarily unavailable",
    re.I,
)

NO_GPU = re.compile(r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver", re.I)
MACHINE = frozenset(
    getattr(errno, name)
    for name in "EACCES EBUSY EDQUOT EEXIST EFBIG EIO EISDIR ELOOP EMFILE ENAMETOOLONG ENOENT "
    "ENOSPC ENOTDIR ENOTEMPTY EPERM EROFS ETXTBSY".split()
)
"""Errors of files and disks that a user can mend."""

SETTINGS = ("encoding", "errors", "line_buffering", "write_through")  # of an output
STANDARD_OUTPUT = (
    "error: standard output cannot be written ({reason}); make room, or send it elsewhere"
)

explanations: list[Callable[[BaseException], str | None]] = []
"""Functions that return a sentence for exceptions that others raise, or None."""


@cache
def plain_errors() -> None:
    """Print an exception that nobody caught as one line.

    For a UsageError the line is its message. Any other exception of a command is a fault: the line
    says what, where and how to report it, and names a file that has the traceback. With
    FAIRSEQ_EXT_TRACEBACK=1, and in programs of others, tracebacks are printed as usual.

    Fault: A UsageError prints a traceback, as any fault does.
    Asked: all users; loud; it is a message.
    Since: always.
    Until: fairseq's commands have a way to print a sentence.
    """
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, UsageError):
            print(f"error: {read_message(error)}", file=sys.stderr)
        elif issubclass(kind, KeyboardInterrupt) and _is_plain():
            print("interrupted", file=sys.stderr)
        elif _is_caught(error):
            print(describe(error), file=sys.stderr)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook


def read_message(error: BaseException) -> str:
    """Return the message of a UsageError, without the traceback of a process that raised it."""
    inner = USAGE_ERROR.search(str(error))
    return inner[1].strip() if inner else str(error)


def _is_caught(error: BaseException) -> bool:
    """Tell whether the net catches an exception: of a command of fairseq or ours, not of users."""
    if isinstance(error, KeyboardInterrupt | BrokenPipeError):
        return False  # other exceptions that are no Exception are panics of libraries in Rust
    return _is_plain()


def _is_plain() -> bool:
    """Tell whether this is a command, whose tracebacks nobody has asked for."""
    return os.environ.get(TRACEBACK) != "1" and is_command()


def is_command() -> bool:
    """Tell whether this process runs a command of fairseq or ours, or was started by one.

    A process that Python's multiprocessing starts has the arguments and the main module of the one
    that started it.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = spec.name if spec else Path(sys.argv[0]).name
    if program == "-m":  # a package of the main module is imported before that
        program = next((name for word, name in pairwise(sys.orig_argv) if word == "-m"), "")
    return program.startswith(COMMANDS)


def describe(error: BaseException) -> str:
    """Return the line for an exception that is no UsageError; keep the traceback of a fault."""
    for explain in explanations:
        if sentence := explain(error):
            return f"error: {sentence}"
    if isinstance(error, OSError) and error.errno in MACHINE:
        return f"error: {_explain_machine(error)}"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        return f"error: {to_line(error)}, a link that leads to itself; give another path"
    if NO_GPU.search(str(error)):
        return (
            f"error: a GPU is needed, and there is none ({to_line(error)}); give --cpu, and leave "
            "out what needs one, such as --profile"
        )
    if isinstance(error, UnicodeDecodeError):
        text = to_line(ascii(error.object[max(0, error.start - 20) : error.end + 20]), 80)
        return f"error: {text}, of what is read, is not UTF-8 ({error.reason}); give text in UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return f"error: {to_line(ascii(error.object))} cannot be written as text; give valid UTF-8"
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        return (
            f"error: there is not enough memory ({to_line(error)}); give smaller batches "
            "(--max-tokens, --batch-size), shorter texts or a smaller model"
        )
    return _report(error)


def _explain_machine(error: OSError) -> str:
    """Return a sentence for a file that cannot be had, or a disk that cannot be written."""
    if error.filename is None:
        return f"the disk cannot be written ({error.strerror}); make room and run the same again"
    files = [to_line(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(files)}: {error.strerror}; correct the path or make room for it"


def find_disk_error(error: Exception) -> BaseException | None:
    """Return the error of a disk that an exception is about, if it is about one.

    torch raises RuntimeError while it handles the error of the disk, and libraries in Rust raise an
    Exception that ends with its number.
    """
    if isinstance(error, OSError | RuntimeError):
        return error if isinstance(error, OSError) else error.__context__
    number = re.search(r"\(os error (\d+)\)$", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None


def to_line(text: object, length: int = 200) -> str:
    """Return a text, or the text of an exception, as one line of a limited length."""
    line = " ".join(str(text).split())
    return line if len(line) <= length else f"{line[:length]} ..."


def _report(error: BaseException) -> str:
    import traceback

    text = "".join(traceback.format_exception(error)).rstrip()
    places = re.findall(r'File "(.+)", line (\d+), in (\S+)', text)
    where = " at {}:{}, in {}".format(*places[-1]) if places else ""
    inner = "Traceback (most recent call last)" in str(error)  # of another process
    what = text.rpartition("\n")[2] if inner else f"{type(error).__name__}: {error}"
    found = f"unexpected error: {to_line(what)}{where}; {name_culprit([p[0] for p in places])}"
    try:
        path = f"the file {_write_report(text)}"
    except OSError:
        return f"{text}\n{found} the traceback above"
    return f"{found} {path}, which has the command and the traceback ({TRACEBACK}=1 shows it)"


def name_culprit(files: Sequence[str]) -> str:
    """Return whose code an exception arose in, as a sentence before "the file …".

    Args:
        files: those of the traceback's frames, the innermost last; Python's own are passed over.
    """
    packages = {"fairseq", "fairseq_cli"}
    loaded = [getattr(sys.modules.get(name), "__file__", None) for name in packages]
    clones = [Path(file).parent for file in loaded if file]
    libraries = {Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("platstdlib"))}
    for path in map(Path, reversed(files)):
        if path.is_relative_to(Path(__file__).parent):
            break
        folders = path.parts
        installed = next((i for i, name in enumerate(folders) if name.endswith("-packages")), None)
        if installed is None and not any(map(path.is_relative_to, clones)):
            if str(path).startswith("<") or any(map(path.is_relative_to, libraries)):
                continue
            return f"it arose in your own code, {path}; see"
        name = "fairseq" if installed is None else folders[installed + 1].removesuffix(".py")
        name = "fairseq" if name in packages else f"the library {name}"
        return f"it arose in {name}, and not in fairseq_ext; see"
    return "this is a fault of ours: please report it with"


def _write_report(text: str) -> str:
    """Write the command and a traceback to a new file of the temporary folder; return its path."""
    import tempfile

    with tempfile.NamedTemporaryFile(
        "w",
        encoding="utf-8",
        errors="backslashreplace",
        prefix="fairseq_ext-",
        suffix=".txt",
        delete=False,
    ) as file:
        file.write(f"{' '.join(sys.argv)}\n\n{text}\n")
    return file.name


class _StandardOutput(io.FileIO):
    """The file of standard output; an error ends the command, also within logging.

    Attributes:
        code: the exit code, after an error.
    """

    code = 0

    def write(self, data: Any) -> int:
        """Write bytes; raise SystemExit if the reader has gone away, or the disk is full."""
        try:
            return super().write(data)
        except OSError as error:
            with Path(os.devnull).open("wb") as nothing:
                os.dup2(nothing.fileno(), self.fileno())  # for what is written afterwards
            self.code = 1
            if isinstance(error, BrokenPipeError):
                self.code = 128 + signal.SIGPIPE  # as a shell reports it
            else:
                print(STANDARD_OUTPUT.format(reason=error.strerror), file=sys.stderr, flush=True)
            raise SystemExit(self.code) from None

    def end(self, buffered: io.TextIOBase) -> None:
        """Write what is left; end the process with its code, which Python's own end loses."""
        with suppress(SystemExit):
            buffered.flush()
        if self.code:
            os._exit(self.code)


def guard_standard_output() -> None:
    """Let a command whose output cannot be written end without a traceback.

    It ends quietly if its reader has gone away, and with a sentence if a disk is full. Only the
    output of a process is guarded, not what takes its place in a notebook or a test.
    """
    before: Any = sys.__stdout__
    if before is None or sys.stdout is not before:
        return
    before.flush()
    file = _StandardOutput(before.fileno(), "wb", closefd=False)
    settings = {name: getattr(before, name) for name in SETTINGS}
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(file), **settings)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(sys.stdout)
    atexit.register(file.end, sys.stdout)
