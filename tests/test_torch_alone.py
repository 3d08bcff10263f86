"""The second distribution, for torch alone: it is built and installed, and trains."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

TRAINING = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_ext", "hydra", "omegaconf", "numba"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Blocked())
import torch
import fairseq_ext_torch.mechanisms
from fairseq_ext_torch.attention import AttentionRecorder, Inputs
from fairseq_ext_torch.attention.building import HEAD_KINDS, build_attention
from fairseq_ext_torch.attention.slots import SLOTS
from fairseq_ext_torch.mechanisms.guidance.loss import sentence_losses
from fairseq_ext_torch.mechanisms.guidance.patterns import View
from fairseq_ext_torch.mechanisms.guidance.plan import GuidedHeads, parse_heads
from fairseq_ext_torch.mechanisms.guidance.recorder import GuidanceRecorder

cases = [{slot.name_option("encoder"): n} for slot in SLOTS.values() for n in slot.parts.parts()]
assert len(cases) > 15 and "gaussian_heads" in HEAD_KINDS
x, padding = torch.randn(5, 2, 32), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
tokens = torch.randint(4, 9, padding.shape)
view = View(tokens, ~padding, ~padding)
names = {"next": [], "first": []}
for options in [*cases, {"encoder_gaussian_heads": "all"}]:
    attention = build_attention(32, 4, {"head_gate_sites": "encoder", **options})
    optimiser = torch.optim.SGD(attention.parameters(), lr=0.1)
    relative = torch.randn(512, 32) if "disentangled" in options.values() else None
    before = {n: p.clone() for n, p in attention.named_parameters()}
    recorder, loss = None, 0.0
    if attention.unrestricted_heads:
        guided = GuidedHeads({0: [0, 1]}, parse_heads("heads", "next:1,first:1"), names)
        recorder = GuidanceRecorder(
            {"encoder": guided}, lambda given: {"encoder": view}, "uniform", False
        )
        recorder.begin({})
    inputs = Inputs(padding, relative=relative, recorder=recorder)
    out, _ = attention(x, x, x, inputs, need_weights=False)
    if recorder is not None:
        loss = sentence_losses(recorder.maps, "encoder", guided, view, "mean").sum()
    (out.square().sum() + loss).backward()
    optimiser.step()
    assert out.isfinite().all(), options
    moved = [n for n, p in attention.named_parameters() if not torch.equal(p, before[n])]
    assert len(moved) > 3, options
assert not {"fairseq", "fairseq_ext", "numpy.f2py"} & {*sys.modules}
print("trained with", len(cases))
"""


@pytest.mark.slow
def test_the_distribution_trains_with_every_mechanism(tmp_path):
    """Built from a copy of this tree, and installed where there is nothing else of ours."""
    source, target = tmp_path / "source", tmp_path / "target"
    ignored = shutil.ignore_patterns("__pycache__", "vqa", "build", "*.egg-info")
    for folder in ("fairseq_ext", "torch_alone"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    shutil.copy(ROOT / "LICENSE", source)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    install += ["--no-build-isolation", "--target", str(target), str(source / "torch_alone")]
    run(install, tmp_path, {})
    assert not list(target.rglob("fairseq_ext"))
    texts = [path.read_text("utf-8") for path in target.rglob("fairseq_ext_torch/**/*.py")]
    assert len(texts) > 40
    assert not [text for text in texts if re.search(r"\bfairseq_ext\b", text)]
    shutil.rmtree(source)
    assert "trained with" in run([sys.executable, "-c", TRAINING], tmp_path, target)
    example = ROOT / "examples" / "own_encoder.py"
    told = run([sys.executable, example, "encoder_normaliser=hybrid"], tmp_path, target)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", told)]
    assert losses[-1] < 1 < losses[0]


def run(command, folder, target):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"} if target else {}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
