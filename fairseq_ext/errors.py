"""Exceptions that a user sees as one sentence, and a last net."""

import errno
import json
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Sequence
from functools import cache, partial
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
LAUNCHED = (
    "FAIRSEQ_EXT_LAUNCHED"  # environment variable of processes that `fairseq-ext launch` runs
)
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # environment variable: where torchrun looks for an error
LOST = "another process of this training has ended, which says why"
COMMANDS = ("fairseq-", "fairseq_cli.", "fairseq_ext.")
USAGE_ERROR = re.compile(r"^fairseq_ext\.errors\.(?:UsageError|Unfinished): (.+)\Z", re.M | re.S)
NO_MEMORY = re.compile(
    "not enough memory|can't allocate memory|out of memory|can't start new thread|"
    "could not create a primitive|thread pool.*Resource temporarily unavailable",
    re.I,
)

OPEN_FILES = re.compile("Too many open files|items of ancdata")
RAISE_LIMIT = (
    "too many files are open at once; raise the limit of this shell, as by 'ulimit -n 65536', and "
    "run the same command again"
)

NO_GPU = re.compile(r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver", re.I)
MACHINE = frozenset(
    getattr(errno, name)
    for name in "EACCES EBUSY EDQUOT EEXIST EFBIG EIO EISDIR ELOOP ENAMETOOLONG ENOENT "
    "ENOSPC ENOTDIR ENOTEMPTY EPERM EROFS ETXTBSY".split()
)
"""Errors of files and disks that a user can mend."""

explanations: list[Callable[[BaseException], str | None]] = []
"""Functions that return a sentence for exceptions that others raise, or None."""


@cache
def plain_errors() -> None:
    """Print an exception that nobody caught as one line.

    For a UsageError the line is its message. Any other exception of a command is a fault: the line
    says what, where and how to report it, and names a file that has the traceback. With
    FAIRSEQ_EXT_TRACEBACK=1, and in programs of others, tracebacks are printed as usual.

    Fault: A UsageError prints a traceback.
    Asked: all users; loud; a message.
    Since: always.
    Until: fairseq prints sentences.
    """
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _is_interruption(error) and _is_plain():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends it at once
            if LAUNCHED not in os.environ:
                print("interrupted", file=sys.stderr)
            if not isinstance(error, KeyboardInterrupt):  # after which Python ends by the signal
                signal.raise_signal(signal.SIGINT)
        elif issubclass(kind, UsageError):
            _say(f"error: {read_message(error)}")
        elif _is_caught(error):
            _say(describe(error))
        else:
            previous(kind, error, trace)

    sys.excepthook = hook
    sys.unraisablehook = partial(_interrupt_again, sys.unraisablehook)
    os.register_at_fork(after_in_child=_leave_interrupts_to_parent)


def _is_interruption(error: BaseException | None) -> bool:
    """Tell whether an exception is Ctrl-C, or arose while that was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _interrupt_again(previous: Callable[[Any], None], unraisable: Any) -> None:
    """Interrupt the command once more if Ctrl-C came where Python ignores exceptions."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt) and _is_plain():
        threading.Timer(0.1, interrupt_main).start()
    else:
        previous(unraisable)


def _leave_interrupts_to_parent() -> None:
    """Let a process that a command forks, as for data, be ended by that command alone."""
    if is_command():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _say(line: str) -> None:
    """Print an error, or leave it to the launcher of several processes, which prints one."""
    try:
        if path := os.environ.get(ERROR_FILE):
            said = {
                "message": line.removeprefix("error: "),
                "extraInfo": {"timestamp": time.time()},
            }
            Path(path).write_text(json.dumps({"message": said}), "utf-8")
            if LAUNCHED in os.environ:
                return
    except OSError:
        pass
    print(line, file=sys.stderr)


def describe_end(process: str, code: int) -> str:
    """Return a sentence for a process that has ended without one.

    Args:
        code: its exit code, or the negative number of a signal.
    """
    if code >= 0:
        return f"{process} has ended with exit code {code}; its reason stands above"
    return (
        f"{process} was ended by {signal.Signals(-code).name}, perhaps for want of memory; run the "
        "same command again, which continues from the last checkpoint, or give it less to do"
    )


def read_message(error: BaseException) -> str:
    """Return the message of a UsageError, without the traceback of a process that raised it.

    A limit of open files is named alone, since any file may be the first that meets it.
    """
    if OPEN_FILES.search(str(error)):
        return RAISE_LIMIT
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
    if OPEN_FILES.search(str(error)):
        return f"error: {RAISE_LIMIT}"
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
    if isinstance(error, UnicodeError) and "utf" not in getattr(error, "encoding", "utf"):
        return f"error: this locale has no UTF-8 ({to_line(error)}); set PYTHONUTF8=1"
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
