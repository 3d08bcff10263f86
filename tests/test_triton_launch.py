"""Where our Triton kernels run, and one line in the log where they do not."""

import sys
from types import ModuleType

import pytest
import torch
from guided_cases import layer, recorder_of, view_of

from fairseq_ext.attention import HeadGroup, Inputs, build_normaliser
from fairseq_ext.mechanisms.kernels import doubly_triton, guided, guided_triton, triton_launch

NAMES = [doubly_triton.NAME, guided_triton.NAME]
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing is known of devices, before and after."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for known in (triton_launch.runs, triton_launch.warn) * 2:
        known.cache_clear()
    yield
    triton_launch.runs.cache_clear()


class Driver:
    """Triton's driver, which compiles C when it is asked for its target."""

    def __init__(self, error=None):
        self.active, self.error = self, error

    def get_current_target(self):
        if self.error:
            raise self.error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("capability", "version", "trusted", "error", "said"),
    [
        ((9, 0), "3.5.1", False, None, "install torch with Triton 3.6"),
        ((9, 0), "3.5.1", True, None, ""),
        ((9, 0), "3.6.0", False, None, ""),
        ((8, 0), "3.4.0", False, None, ""),
        ((7, 5), "3.7.1", False, None, "compute capability 7.5 is below 8.0"),
        ((8, 0), "3.7.1", False, RuntimeError("no cc"), "needs a C compiler and Python's headers"),
    ],
)
def test_it_says_once_why_it_does_not_run(
    name, capability, version, trusted, error, said, monkeypatch, caplog
):
    monkeypatch.setattr(triton_launch, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    runtime = ModuleType("triton.runtime")
    runtime.driver = Driver(error)
    triton = ModuleType("triton")
    triton.__version__ = version
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    monkeypatch.delenv("FAIRSEQ_EXT_TRUST_TRITON", raising=False)  # which benchmarks/gpu.sh sets
    if trusted:
        monkeypatch.setenv("FAIRSEQ_EXT_TRUST_TRITON", "1")
    for width in (64, 32, 64):
        assert triton_launch.runs(name, CUDA, torch.bfloat16, width) == (not said)
    assert len(caplog.records) == bool(said)
    assert all(name in text and said in text for text in caplog.messages)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("dtype", "width", "said"),
    [
        (torch.bfloat16, 264, "heads of up to 256, and heads have 264; have more heads"),
        (torch.float32, 129, "heads of up to 128, and heads have 129; have more heads"),
        (torch.float64, 64, "16 and 32 bits, and heads are torch.float64"),
    ],
)
def test_it_says_once_which_heads_it_does_not_take(name, dtype, width, said, caplog):
    x = torch.zeros(1, 1, 4, width, dtype=dtype, device="meta")
    for length in (4, 3):
        assert not triton_launch.runs(name, CUDA, dtype, x[:, :, :length].size(-1))
    (message,) = caplog.messages
    assert message.startswith(f"{name} is slower and takes more memory: ") and said in message


def test_kernels_without_triton(monkeypatch):
    monkeypatch.setattr(triton_launch, "find_spec", lambda name: None)
    assert triton_launch.find_problem(CUDA) == (
        "Triton for NVIDIA GPUs is not installed; pip install triton"
    )


def test_nothing_is_said_on_a_cpu(caplog):
    assert not triton_launch.runs(NAMES[0], torch.device("cpu"), torch.float64, 1000)
    assert not caplog.messages


def attend(kind):
    """Return the output, and what a recorder keeps, of a layer in 64 bits with dropout."""
    view = view_of("encoder", "left")
    recorder = recorder_of(view, "next:1,prev:1") if kind == "guided" else None
    options = {"hna_init": 0.3, "hna_weight": "sigmoid"}
    groups = None
    if recorder is None:
        groups = [HeadGroup(4, normaliser=build_normaliser(kind, 4, **options))]
    x = torch.ones(view.keys.size(1), 3, 24, dtype=torch.float64)
    if recorder is not None:
        recorder.begin({})
    torch.manual_seed(3)
    module = layer(dropout=0.3, groups=groups)
    out, _ = module(x, x, x, Inputs(~view.keys, recorder=recorder), need_weights=False)
    return [out, *(recorder.maps.values() if recorder else ())]


@pytest.mark.parametrize(
    ("kind", "name"), zip(("doubly", "hybrid", "guided"), (NAMES[0], *NAMES), strict=True)
)
def test_layers_fall_back(kind, name, monkeypatch, caplog):
    """To what they compute where there are no such kernels, at the first batch, with one line."""
    monkeypatch.setattr(guided, "MIN_SCORES", 0)
    plain = attend(kind)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # where kernels could be
    triton_launch.runs.cache_clear()
    for _ in range(2):
        found = attend(kind)
        assert all(torch.equal(*pair) for pair in zip(found, plain, strict=True))
    (message,) = [text for text in caplog.messages if "slower" in text]
    assert message.startswith(name)
