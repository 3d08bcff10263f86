"""Processes of a pool end when the process that began them ends, however it does."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hangs import wait_until

BEGINS = {
    "lines": """
from fairseq_ext.prepare.step import map_lines
lines = map_lines(list, (f"{n}" for n in range(100_000)), 2)
next(lines)
""",
    "at work": """
import time
from fairseq_ext.pools import begin_pool
pool = begin_pool(2, "fork")
pool.submit(time.sleep, 600)
""",
}
ENDS = """
import multiprocessing, os, signal
print(*(each.pid for each in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.{})
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("begin", BEGINS)
def test_processes_end_with_the_one_that_began_them(begin, end):
    """They would wait for more work for ever, and for them whoever reads what they print."""
    code = BEGINS[begin] + ENDS.format(end.name)
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    begun = [int(number) for number in first.stdout.readline().split()]
    assert first.wait() == -end and len(begun) == 2
    wait_until(lambda: not any(map(is_running, begun)))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_all_pools_are_such():
    """A plain one is a fault of this kind."""
    begun = re.compile(r"\b(ProcessPoolExecutor|Pool)\(")
    files = (ROOT / "fairseq_ext").rglob("*.py")
    assert [file.name for file in files if begun.search(file.read_text("utf-8"))] == ["pools.py"]
