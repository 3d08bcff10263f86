# A template: tests/warm.py puts #!, BIN, SOCKET and PATHS in the place of this line.
"""Hand a command to the warm server, pass signals on to it, and end as it ends."""

# Settings stand at the top, which ruff does not see; pathlib takes long to import.
# ruff: noqa: F821, PTH109, PTH118, PTH119, PTH120

import json
import os
import signal
import socket
import sys

WARM = ("fairseq_cli.", "fairseq_ext.cli", "fairseq_ext.tools.")  # modules


def main():
    name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
    if name == "python":
        if arguments[:1] == ["-m"] and arguments[1].startswith(WARM):
            name, *arguments = arguments[1:]
        elif os.path.dirname(arguments[0] if arguments else "") in PROGRAMS:
            name, *arguments = arguments
        else:
            leave(name, arguments)
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    if not set(folders) <= {*PATHS, *PROGRAMS}:
        leave(os.path.basename(sys.argv[0]), sys.argv[1:])
    server = socket.socket(socket.AF_UNIX)
    server.connect(SOCKET)
    socket.send_fds(server, [b"."], [0, 1, 2])
    request = json.dumps([name, arguments, dict(os.environ), os.getcwd()])
    server.sendall(request.encode() + b"\n")
    replies = server.makefile()
    child = int(replies.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    code = int(replies.readline() or 1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


def leave(name, arguments):
    """Become the ordinary command."""
    program = os.path.join(BIN, name)
    os.execv(program, [program, *arguments])


main()
