"""Standard output of commands: what cannot be written ends them, with a sentence or quietly."""

import atexit
import errno
import io
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

SETTINGS = ("encoding", "errors", "line_buffering", "write_through")  # of an output
CLOSED: dict[str, Any] = {"encoding": "utf-8", "write_through": True}
STANDARD_OUTPUT = (
    "error: standard output cannot be written ({reason}); make room, or send it elsewhere"
)


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
                reason = "it is closed" if error.errno == errno.EBADF else error.strerror
                print(STANDARD_OUTPUT.format(reason=reason), file=sys.stderr, flush=True)
            raise SystemExit(self.code) from None

    def end(self, buffered: io.TextIOBase) -> None:
        """Write what is left; end the process with its code, which Python's own end loses."""
        with suppress(SystemExit):
            buffered.flush()
        if self.code:
            os._exit(self.code)


def guard_standard_output() -> None:
    """Let a command whose output cannot be written end without a traceback.

    It ends quietly if its reader has gone away, and with a sentence if a disk is full or the output
    was closed from the start. Only the output of a process is guarded, not what takes its place in
    a notebook or a test. Text is UTF-8, also where the locale is not, as it is in files.
    """
    before: Any = sys.__stdout__
    if sys.stdout is not before:
        return
    if before is None:  # it was closed: the first word is an error
        number, settings = os.open(os.devnull, os.O_RDONLY), CLOSED
    else:
        before.flush()
        number, settings = before.fileno(), {name: getattr(before, name) for name in SETTINGS}
        if "utf-8" not in before.encoding.lower():  # a locale without it, where names are escaped
            settings |= {"encoding": "utf-8", "errors": "surrogateescape"}
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    file = _StandardOutput(number, "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(file), **settings)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(sys.stdout)
    atexit.register(file.end, sys.stdout)
