"""Waiting that ends by progress: a busy machine is waited for, and what hangs is not.

Work is CPU time of the processes that were waited for. A hang is IDLE seconds without any.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

IDLE = 120


def cpu_time(root: int) -> float:
    """Return the seconds of CPU time of processes that descend from one or are of its session.

    This process is not counted.
    """
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(stat.parent.name)] = [int(fields[at]) for at in (1, 3, 11, 12)]
    ours = {root} | {pid for pid, (_, session, *_) in found.items() if session == root}
    while more := {pid for pid, (parent, *_) in found.items() if parent in ours} - ours:
        ours |= more
    known = ours & found.keys() - {os.getpid()}
    return sum(sum(found[pid][2:]) for pid in known) / os.sysconf("SC_CLK_TCK")


def wait_until(condition: Callable[[], object], most: float = 300) -> None:
    """Return when a condition holds.

    Fail if what this process started does nothing, or works for more than `most` seconds.
    """
    root = os.getpid()
    begun = used = cpu_time(root)
    looked = time.monotonic()
    while not condition():
        time.sleep(0.02)
        if time.monotonic() - looked > 5 and (now := cpu_time(root)) != used:
            looked, used = time.monotonic(), now
        assert used - begun < most, f"{most} s of work and not done"
        assert time.monotonic() - looked < IDLE, f"{IDLE} s without any work"


def communicate(process: subprocess.Popen) -> tuple[str, str]:
    """Return what a process printed when it has ended."""
    said: list[tuple[str, str]] = []

    def has_ended() -> bool:
        try:
            said.append(process.communicate(timeout=0.1))
        except subprocess.TimeoutExpired:
            return False
        return True

    wait_until(has_ended)
    return said[0]
