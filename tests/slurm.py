"""A Slurm of two nodes on this machine: Debian's packages slurm-wlm and munge."""

import contextlib
import getpass
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

DAEMONS = "munged", "slurmctld", "slurmd"
FIRST = platform.node().split(".")[0]
SECOND = f"{FIRST}b"  # which no one has to find by its name: the master of a job is the first

SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
KillWait=2
SlurmdTimeout=30
NodeName={first},{second} NodeAddr=127.0.0.1 Port={ports[1]},{ports[2]} CPUs=1
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def find_lack() -> str:
    """Return why no cluster can be started here, or ""."""
    absent = [name for name in DAEMONS if not _find(name)]
    if absent:
        return f"no {', '.join(absent)}: install slurm-wlm and munge"
    try:
        socket.gethostbyname(FIRST)
    except OSError:
        return f"{FIRST}, the name of this machine, is not known to it"
    return ""


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


class Cluster:
    """Commands of Slurm, and nodes that can be killed.

    Attributes:
        environment: where commands find the cluster.
    """

    def __init__(self, settings: Path) -> None:
        self.environment = os.environ | {"SLURM_CONF": str(settings)}

    def call(self, *command: object) -> str:
        """Return what a command prints; raise if it fails."""
        return subprocess.run(
            [*map(str, command)], env=self.environment, check=True, stdout=-1, text=True
        ).stdout.strip()

    def submit(self, *command: object) -> tuple[str, Callable[[], str]]:
        """Return the number of a job, and a function that returns its state."""
        job = self.call("sbatch", "--parsable", *command)
        return job, lambda: self.call("squeue", "-h", "--states=all", "-o%T", "-j", job)

    @staticmethod
    def kill(node: str) -> None:
        """Kill the daemon of a node and all that it started."""
        mark = f"NODE={node}\0".encode()
        for settings in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in settings.read_bytes():
                    os.kill(int(settings.parent.name), signal.SIGKILL)


def wait_until(condition: Callable[[], object]) -> None:
    """Return when a condition holds; fail after ten minutes.

    The processes of a job are none that descend from this one, so that their work is not seen.
    """
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end, "nothing has come of it in ten minutes"
        time.sleep(0.1)


@contextlib.contextmanager
def run_cluster(folder: Path) -> Iterator[Cluster]:
    """Run the daemons of a cluster."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [end.getsockname()[1] for end in ends]
    names = {"first": FIRST, "second": SECOND, "host": platform.node(), "user": getpass.getuser()}
    (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder, ports=ports, **names))
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o400)
    for name in ("state", FIRST, SECOND):
        (folder / name).mkdir()
    cluster = Cluster(folder / "slurm.conf")
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    munge += [f"--socket={folder}/munge.socket", f"--key-file={folder}/key"]
    with contextlib.ExitStack() as stack, (folder / "daemons.log").open("w") as log:
        for node, command in [
            ("", ["munged", "--force", "--foreground", *munge]),
            ("", ["slurmctld", "-D"]),
            *((name, ["slurmd", "-D", "-N", name]) for name in (FIRST, SECOND)),
        ]:
            settings = cluster.environment | {"NODE": node}
            daemon = subprocess.Popen(
                [_find(command[0]), *command[1:]], env=settings, stdout=log, stderr=log
            )
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
            if command[0] == "munged":
                wait_until((folder / "munge.socket").exists)
        wait_until(lambda: cluster.call("sinfo", "-h", "-o%T") == "idle")
        yield cluster
