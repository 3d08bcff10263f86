"""The shell scripts, run as a user runs them."""

import os
import subprocess

from conftest import ROOT


def bash(*command: object, **env: str) -> subprocess.CompletedProcess:
    """Run bash where nothing needs to be installed."""
    settings = {"PYTHONPATH": str(ROOT), "FAIRSEQ_EXT_SKIP_INSTALL": "1", **env}
    inherited = {k: v for k, v in os.environ.items() if k != "FAIRSEQ_EXT_CORPORA"}
    return subprocess.run(
        ["bash", *map(str, command)], env=inherited | settings, capture_output=True, text=True
    )


def lib(code: str, library: str = "data", **env: str) -> subprocess.CompletedProcess:
    """Run shell code after a library of the scripts was sourced."""
    return bash("-c", f'. "{ROOT}/scripts/lib/{library}.sh"; {code}', **env)


def assert_refused(done: subprocess.CompletedProcess, *said: str, code: int = 1) -> None:
    """Check the exit code, and that one sentence on standard error says all of `said`."""
    assert done.returncode == code, done
    assert done.stderr.count("\n") == 1, done.stderr
    for part in said:
        assert part in done.stderr


def run(script: str, *arguments: object) -> subprocess.CompletedProcess:
    """Run a script, which must succeed."""
    done = bash(ROOT / "scripts" / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done
