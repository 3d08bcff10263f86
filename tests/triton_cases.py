"""Triton's kernels in tests: on a GPU, in Triton's interpreter, or only compiled.

The interpreter has to be switched on before anything imports Triton, so it gets a process of its
own, in which a file of tests runs again.
"""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fairseq_ext.mechanisms.kernels import triton_launch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available()
BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        INTERPRETED and not GPU, reason="Triton's interpreter multiplies bfloat16 wrongly"
    ),
)
USUAL, SMALL = triton_launch.BLOCKS, {512: (16, 16, 4)}
here_only = pytest.mark.skipif(GPU or INTERPRETED, reason="the other tests run in this process")
MEMORY = 99 * 1024


def run_interpreted(file, chosen):
    """Run chosen tests of a file in Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, file]
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def device(monkeypatch):
    """Where Triton's kernels run, with small blocks."""
    if not (GPU or INTERPRETED):
        pytest.skip("no GPU; test_in_the_interpreter runs these")
    monkeypatch.setattr(triton_launch, "BLOCKS", SMALL)
    return "cuda" if GPU else "cpu"


def murmur(x):
    """Return the finaliser of MurmurHash3 of 32-bit numbers in int64."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
    return x ^ (x >> 16)


def dropped(query_seed, key_seed, queries, keys, rate, groups=1):
    """Return which weights are dropped, [groups, T, S]."""
    x, y = (
        murmur(murmur(torch.arange(groups * size).view(groups, size)) ^ seed)
        for seed, size in ((query_seed, queries), (key_seed, keys))
    )
    return murmur(x[..., None] ^ y[..., None, :]) // 2 < rate * 2**31


@pytest.fixture
def drawn_seeds(monkeypatch):
    """Pairs of seeds that calls have drawn."""
    pairs, draw = [], triton_launch.draw_dropping

    def draw_and_keep(rate):
        drawn = draw(rate)
        pairs.append((drawn["query_seed"], drawn["key_seed"]))
        return drawn

    monkeypatch.setattr(triton_launch, "draw_dropping", draw_and_keep)
    return pairs


@pytest.fixture
def compile_for(monkeypatch, tmp_path):
    """Function that lets calls compile kernels for a GPU, and returns the list of these."""
    driver = pytest.importorskip("triton", reason="Triton is not installed").runtime.driver
    from triton.backends.compiler import GPUTarget

    def prepare(capability):
        target, compiled = GPUTarget("cuda", capability, 32), []

        def compile_it(kernels, kernel, rows, groups, /, *tensors, **options):
            function = getattr(kernels(), kernel)
            compiled.append(function.warmup(*tensors, grid=(1,), **options))

        monkeypatch.setattr(triton_launch, "run", compile_it)
        driver.set_active(  # for good: without a GPU there is none to go back to
            SimpleNamespace(
                get_current_target=lambda: target,
                get_current_device=lambda: 0,
                get_current_stream=lambda device=None: 0,
            )
        )
        return compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return prepare
