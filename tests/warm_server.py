"""A process that has imported fairseq, and forks one for each command that a client hands over.

Usage: warm_server.py LISTENER FOLDER: file descriptor of the socket, and folder of the clients.
"""

import gc
import json
import logging
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

import warm
from hangs import cpu_time

import fairseq_ext
from fairseq_ext import commands

LATE = "fairseq.libbleu hydra._internal.hydra torch._dynamo torch.profiler".split()
"""Modules that commands import when they first need them."""
IDLE = 300  # seconds without any use of a CPU, after which a command hangs
LOOK = 15  # seconds between looks at it
COMMANDS = "train generate preprocess interactive validate hydra_train eval_lm score".split()


def serve(listener: socket.socket, folder: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # handlers need no wait
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:  # its end: nobody is there any more
            return None
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            return handle(client, folder)
        client.close()


def handle(client: socket.socket, folder: Path) -> None:
    """Fork the command, and end it if its client ends or it hangs."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(client, 1, 3)
    lines = client.makefile()
    name, arguments, environment, cwd = json.loads(lines.readline())
    child = os.fork()
    if not child:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        client.close()
        lines.close()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        sys.executable = str(folder / "python")
        warm.say_what_is_covered(environment.get("PYTEST_CURRENT_TEST", ""))
        return become(name, arguments)
    for file in files:
        os.close(file)
    client.sendall(f"{child}\n".encode())
    wait(child, client)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    client.sendall(f"{code}\n".encode())
    os._exit(0)


def wait(child: int, client: socket.socket) -> None:
    """Return when the child has ended, or was killed."""
    ended, used, idle = os.pidfd_open(child), -1.0, 0
    while True:
        ready, _, _ = select.select([ended, client], [], [], LOOK)
        if ended in ready:
            return
        now = cpu_time(child)
        idle = idle + LOOK if now == used else 0
        used = now
        if client in ready or idle > IDLE:
            os.killpg(child, signal.SIGKILL)
            return


def become(name: str, arguments: list[str]) -> None:
    """Run a command, fairseq-NAME, a module or a file, as its own process would."""
    if threads := os.environ.get("OMP_NUM_THREADS"):
        import torch

        torch.set_num_threads(int(threads))
    folders = os.environ.get("PYTHONPATH", "").split(":")
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]
    module = name
    if name.endswith(".py"):
        sys.argv, sys.path[0] = [name, *arguments], str(Path(name).parent)
        runpy.run_path(name, run_name="__main__")
        return
    if name.startswith("fairseq-"):
        module = f"fairseq_cli.{name.removeprefix('fairseq-').replace('-', '_')}"
        if name == "fairseq-ext":
            module = "fairseq_ext.cli"
    sys.argv = [name, *arguments]
    sys.path[0] = str(Path.cwd()) if module == name else str(Path(sys.executable).parent)
    if module.startswith("fairseq_cli."):
        sys.argv[0] = f"{Path(sys.executable).parent}/{name}"
        sys.exit(import_module(module).cli_main())
    logging.root.handlers.clear()  # those of fairseq's commands, whose log is their output
    sys.modules.pop(module, None)  # or runpy would warn
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def import_everything() -> None:
    """Import fairseq's commands, which set up logging, and then all of our package."""
    for name in (*(f"fairseq_cli.{command}" for command in COMMANDS), *LATE):
        import_module(name)
    for module in pkgutil.walk_packages(fairseq_ext.__path__, "fairseq_ext."):
        if not module.name.endswith(".__main__"):
            import_module(module.name)
    commands.set_up()


if __name__ == "__main__":
    import_everything()
    gc.freeze()  # so that no child visits, and so copies, what they all share
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
