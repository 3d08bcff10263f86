"""Commands of fairseq, of this package and of its benchmarks, run by forked processes.

The process that they are forked from has imported everything.

Importing torch and fairseq takes longer than most of what tests do with them. `activate` puts a
folder in front of PATH whose `python` and `fairseq-…` are clients (warm_client.py): they hand
their arguments, environment, folder and open files to a server (warm_server.py), which forks, and
end as the forked process ends. What is none of those commands is run as usual. `sys.executable` of
a forked process is such a client too, so that a sweep's trainings are forked as well.
"""

import atexit
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Thread

HERE, BIN = Path(__file__).parent, Path(sys.executable).parent
ROOT = HERE.parent
COMMANDS = "train generate preprocess interactive validate hydra-train eval-lm score".split()


@cache
def activate() -> Path:
    """Put the clients in front of PATH, and return their folder; the server starts when asked."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen(64)
    text = (HERE / "warm_client.py").read_text("utf-8").partition("\n")[2]
    settings = {"BIN": str(BIN), "SOCKET": str(folder / "socket"), "PATHS": python_path()}
    settings["PROGRAMS"] = [
        str(ROOT / name) for name in ("benchmarks", "benchmarks/gpu", "scripts")
    ]
    head = f"#!{BIN / 'python'} -SE\n" + "".join(f"{k} = {v!r}\n" for k, v in settings.items())
    names = [f"fairseq-{name}" for name in (*COMMANDS, "ext")]
    for name in ("python", *names):
        (folder / name).write_text(head + text, "utf-8")
        (folder / name).chmod(0o755)
    Thread(target=_serve_when_asked, args=(listener, folder), daemon=True).start()
    os.environ["PATH"] = f"{folder}:{BIN}:{os.environ['PATH']}"
    return folder


def say_what_is_covered(test: str) -> None:
    """Tell coverage, if it runs, which test runs the lines that follow."""
    if coverage := sys.modules.get("coverage"):
        measurement = coverage.Coverage.current()
        if measurement is not None:
            measurement.switch_context(test.split(" (")[0])


def python_path() -> list[str]:
    """Return the folders on PYTHONPATH that the server knows."""
    return [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]


def _serve_when_asked(listener: socket.socket, folder: Path) -> None:
    """Start the server once a client connects; it ends with this process, when its stdin does."""
    select.select([listener], [], [])
    # a process with threads cannot be forked safely
    single = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(python_path())}
    single.pop("PYTEST_CURRENT_TEST", None)  # of whoever asked first
    subprocess.Popen(
        [BIN / "python", HERE / "warm_server.py", str(listener.fileno()), str(folder)],
        env=single,
        stdin=subprocess.PIPE,
        pass_fds=[listener.fileno()],
    )


def run(command: str, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess:
    """Run a command such as fairseq-train; stdout and stderr as text."""
    return subprocess.run(
        [activate() / command, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
