"""Sweeps that are killed at any moment end, when they are run again, like one that never was."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm
from conftest import ROOT
from hangs import wait_until

from fairseq_ext.safe_loading import load_checkpoint

KILLS = 8
SIZE = "--{0}-embed-dim 8 --{0}-ffn-embed-dim 8 --{0}-layers 1 --{0}-attention-heads 2"
FLAGS = f"""
-s de -t en --cpu --num-workers 0 --max-tokens 60 --max-update 9 --optimizer adam --lr 1e-2
--save-interval-updates 2 --keep-interval-updates 1 {SIZE.format("encoder")}
{SIZE.format("decoder")}
""".split()
GENERATE = "-s de -t en --cpu --num-workers 0 --gen-subset valid --max-len-b 9 --max-tokens 200"
# sweeps themselves are processes of their own, and the commands that they start are forked
START = "import sys; sys.executable = sys.argv.pop(1); from fairseq_ext.cli import main; main()"


def start(data: Path, out: Path) -> subprocess.Popen:
    variant = "--variant=hna=--arch transformer_hna_tiny"
    sweep = ["sweep", "--out", out, variant, "--generate", GENERATE, "--", data, *FLAGS]
    return subprocess.Popen(
        [sys.executable, "-c", START, warm.activate() / "python", *map(str, sweep)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(data: Path, out: Path) -> None:
    """Run a sweep again until its trainings, which may have outlived a killed one, have ended."""
    while True:
        again = start(data, out)
        said, _ = again.communicate()
        if not again.returncode:
            return
        assert "another process" in said, said
        time.sleep(0.2)


def look_at(out: Path) -> dict:
    """Return parameters, number of updates and translations of each run."""
    runs = {}
    for run in sorted(out.glob("*/seed-1")):
        state = load_checkpoint(str(run / "checkpoint_last.pt"))
        translations = re.findall(r"^H-\d+.*", (run / "generate-valid.txt").read_text(), re.M)
        assert len(translations) == 40
        updates = state["optimizer_history"][-1]["num_updates"]
        parameters = {name: value.tolist() for name, value in state["model"].items()}
        runs[run.parent.name] = (updates, parameters, translations)
    return runs


@pytest.fixture(scope="module")
def whole(letters, tmp_path_factory):
    """A sweep that was left alone, and the seconds that it took."""
    out, before = tmp_path_factory.mktemp("whole"), time.monotonic()
    finish(letters, out)
    return look_at(out), time.monotonic() - before


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_sweep_ends_like_one_that_was_not(whole, letters, tmp_path, number):
    expected, duration = whole
    draw = random.Random(number)
    sweep, moment = start(letters, tmp_path), draw.uniform(0.1, 1) * duration
    if number % 4 == 0:  # between a save and what notes that the training is done
        saved = tmp_path / "hna" / "seed-1" / "checkpoint_last.pt"
        wait_until(lambda: saved.exists() or sweep.poll() is not None)
    elif number % 4 == 1:  # while a checkpoint is being written
        run = tmp_path / "hna" / "seed-1"
        wait_until(lambda: any(run.glob("*.pt*")) or sweep.poll() is not None)
    else:
        time.sleep(moment)
    if draw.random() < 0.5:
        sweep.kill()
    else:
        os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    finish(letters, tmp_path)
    assert look_at(tmp_path) == expected
    assert {updates for updates, *_ in expected.values()} == {9}
