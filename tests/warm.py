"""fairseq's commands in processes forked from one that has imported fairseq.

That import takes longer than what most tests do with it. A forked process parses its arguments,
imports the plug-in and ends as the command's own script does.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

SECONDS = 300  # that a command may take
BIN = Path(sys.executable).parent


@cache
def server() -> subprocess.Popen:
    """It ends with the process that asks for it, when its standard input does."""
    # a process with threads cannot be forked safely
    single = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, __file__], env=single, text=True, **pipes)


def run(command: str, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess:
    """The command; stdout and stderr as text."""
    warm = server()
    with tempfile.TemporaryDirectory() as folder:
        written = [Path(folder, name) for name in ("out", "err")]
        request = [command, arguments, dict(os.environ), str(cwd), *map(str, written)]
        print(json.dumps(request), file=warm.stdin, flush=True)
        code = int(warm.stdout.readline())
        texts = [path.read_text("utf-8") for path in written]
    return subprocess.CompletedProcess([command, *arguments], code, *texts)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    redirect(1, os.devnull)  # which what is imported may write to
    commands = {entry.name: entry for entry in entry_points(group="console_scripts")}
    for name in ("fairseq-train", "fairseq-preprocess", "fairseq-generate"):
        commands[name].load()
    for line in sys.stdin:
        name, arguments, environment, *places = json.loads(line)
        child = os.fork()
        if not child:
            os.environ.update(environment)
            become(*places)
            sys.argv = [str(BIN / name), *arguments]
            sys.exit(commands[name].load()())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=replies, flush=True)


def become(cwd: str, out: str, err: str) -> None:
    """Take the working directory, and the files of stdout and stderr; nothing is on stdin."""
    os.chdir(cwd)
    for number, path in enumerate((os.devnull, out, err)):
        redirect(number, path)
    sys.path[0] = str(BIN)
    signal.alarm(SECONDS)


def redirect(number: int, path: str) -> None:
    opened = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(opened, number)
    os.close(opened)


if __name__ == "__main__":
    main()
