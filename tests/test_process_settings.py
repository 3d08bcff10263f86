"""An import changes fairseq alone; every way to start a command sets up its process alike."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from conftest import PLUGIN, ROOT, fairseq

from fairseq_ext import commands, patches, wrapping
from fairseq_ext.commands import attention_kernels, flags, process_wide
from fairseq_ext.errors import UsageError

TRAIN = (
    "-s de -t en --arch transformer_una_tiny --encoder-layers 1 --decoder-layers 1 --lr 1e-3 "
    "--max-tokens 400 --optimizer adam --cpu --max-update 2"
)
FLAGS = f"{{data}} --user-dir {{probe}} --save-dir {{out}} --num-workers 1 {TRAIN}"
HYDRA = """# @package _global_
common: {{user_dir: {probe}, cpu: true}}
model: {{_name: transformer_una_tiny, encoder_layers: 1, decoder_layers: 1}}
task: {{_name: translation, data: {data}, source_lang: de, target_lang: en}}
criterion: {{_name: cross_entropy}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.001], max_update: 2}}
dataset: {{max_tokens: 400, num_workers: 1}}
checkpoint: {{save_dir: {out}}}
"""
WAYS = {
    "a script": f"{{bin}}/fairseq-train {FLAGS}",
    "a module": f"{{bin}}/python -m fairseq_cli.train {FLAGS}",
    "torchrun": "{bin}/torchrun --standalone --no-python {bin}/fairseq-train " + FLAGS,
    "hydra": "{bin}/fairseq-hydra-train --config-dir {top} --config-name mine hydra.run.dir={out}",
    "fairseq-ext": "{bin}/fairseq-ext weights {data}/dict.de.txt --out {out} --user-dir {probe}",
}

PROBE = '''
"""A user's package that says how each process is set up, in a file of FOLDER."""

import functools, json, logging, multiprocessing, os, sys
from pathlib import Path

import fairseq_ext.registry
from fairseq_ext.commands.launching import run_and_end_group

DONE = []


def describe():
    import hydra, torch
    from fairseq_ext import wrapping
    from hydra._internal.utils import _is_env_set
    from hydra.core.config_store import ConfigStore

    return {
        "changes": sorted(f"{each.__module__}.{each.__name__}" for each in wrapping._applied),
        "excepthook": sys.excepthook.__module__,
        "log": hasattr(logging.FileHandler.handleError, "__wrapped__"),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "hydra": [_is_env_set("NO_SUCH"), "__deepcopy__" in vars(ConfigStore)],
    }


def write(place, unpickled=None):
    Path(os.environ["FOLDER"], place).write_text(json.dumps(describe()))


def start(method):
    work = functools.partial(run_and_end_group, print)
    child = multiprocessing.get_context(method).Process(target=write, args=(method, work))
    child.start()
    child.join()


def once(owner, name, run):
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        if name not in DONE:
            DONE.append(name)
            run()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


from fairseq.data import LanguagePairDataset
from fairseq.trainer import Trainer

METHODS = os.environ["METHODS"].split()
once(Trainer, "train_step", lambda: [write("command"), *map(start, METHODS)])
once(LanguagePairDataset, "collater", lambda: write("worker"))
if "weights" in sys.argv:
    write("command")
'''

SNAPSHOT = """
import logging, multiprocessing, os, sys, warnings
import hydra, numpy, torch
import fairseq, fairseq.tasks, fairseq.models, fairseq_cli.train
from hydra.core.config_store import ConfigStore
import hydra._internal.utils

def take():
    cuda = torch.backends.cuda
    kernels = [name for name in dir(cuda) if name.endswith("_sdp_enabled")]
    filters = [f for f in warnings.filters if "fairseq" not in str(f[3])]
    return {
        "precision": torch.get_float32_matmul_precision(),
        "kernels": {name: getattr(cuda, name)() for name in kernels},
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "hooks": (sys.excepthook, sys.displayhook, sys.stdout, sys.stderr),
        "logging": [dict(vars(each)) for each in vars(logging).values() if isinstance(each, type)],
        "handlers": (logging.root.level, [*logging.root.handlers]),
        "hydra": (dict(vars(ConfigStore)), dict(vars(hydra._internal.utils))),
        "numpy": {name: each for name, each in vars(numpy).items() if not name.startswith("__")},
        "filters": filters,
        "environment": dict(os.environ),
        "start": multiprocessing.get_start_method(allow_none=True),
    }

def compare(before, when):
    after = take()
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, (when, changed, [(before[n], after[n]) for n in changed][:1])

TOKENS = torch.randint(4, 9, (2, 5))
INPUTS = {"transformer_una": (TOKENS, torch.tensor([5, 5]), TOKENS)}

def step(model, *inputs):  # torch's optimizers import sympy, which adds a filter, and its compiler
    optimizer = torch.optim.Adam(model.parameters())
    output = model(*inputs)
    (output[0] if isinstance(output, tuple) else output).square().mean().backward()
    optimizer.step()

step(torch.nn.Linear(5, 5), torch.ones(2, 5))
before = take()
import fairseq_ext.registry
compare(before, "import")
sys.path.insert(0, "tests")
from pathlib import Path
from tempfile import mkdtemp
from test_initial_parameters import REGISTERED, build
compare(before, "import of tests")
WIDE = "roberta_una_12 encoder_layers=1"  # for which a command chooses another precision
for name in (WIDE, *(each for each in REGISTERED if each.endswith("_una_tiny"))):
    step(build(name, Path(mkdtemp())), *INPUTS.get(name.removesuffix("_tiny"), (TOKENS,)))
    compare(before, name)
import fairseq_ext.commands
compare(before, "import of commands")
fairseq_ext.commands.set_up()  # as a program that asks for it
assert sys.excepthook is not before["hooks"][0]
print("equal")
"""


def run(*command, code=0, **settings):
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_an_import_and_models_change_nothing_of_a_process():
    """Families are built and take a step in Python. A program sets itself up when it asks."""
    assert run(sys.executable, "-c", SNAPSHOT).endswith("equal\n")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_start_sets_up_alike(way, letters, tmp_path):
    """And so do its data workers, and the processes that it spawns."""
    probe = tmp_path / "probe" / "__init__.py"
    probe.parent.mkdir()
    probe.write_text(PROBE)
    there = {"bin": Path(sys.executable).parent, "data": letters, "probe": probe.parent}
    there |= {"top": tmp_path, "out": tmp_path / "run"}
    (tmp_path / "mine.yaml").write_text(HYDRA.format(**there))
    command = [word.format(**there) for word in WAYS[way].split()]
    methods = "spawn forkserver" if way == "a module" else ""
    run(
        *command,
        FOLDER=str(tmp_path),
        METHODS=methods,
        PYTHONPATH=str(ROOT),
        code=int("ext" in way),
    )
    places = ["command"] if "ext" in way else ["command", "worker", *methods.split()]
    found = [json.loads((tmp_path / place).read_text()) for place in places]
    changes = [*patches.PATCHES, *commands.CHANGES]
    expected = {"changes": sorted(f"{each.__module__}.{each.__name__}" for each in changes)}
    expected |= {"excepthook": "fairseq_ext.errors", "log": True}
    expected |= {"cudnn": False, "hydra": [True, True]}
    assert found == [expected] * len(places)


@pytest.fixture
def kernels(monkeypatch):
    """Let --sdpa, and what it sets, end with the test."""
    monkeypatch.setenv("FAIRSEQ_EXT_SDPA", "")
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield monkeypatch
    torch.backends.cuda.enable_cudnn_sdp(before)


def parse(*words):
    from fairseq import options

    return options.get_generation_parser().parse_known_args(words)


@pytest.mark.parametrize(
    ("gpu", "library", "capability", "said"),
    [
        (False, True, (9, 0), "and torch finds no GPU; give --sdpa flash"),
        (True, False, (9, 0), "which this torch does not have; give --sdpa flash"),
        (True, True, (8, 9), "and this one has 8.9; give --sdpa flash"),
        (True, True, (9, 0), ""),
    ],
)
def test_attention_runs_by_the_kernels_that_are_chosen(gpu, library, capability, said, kernels):
    kernels.setattr(torch.cuda, "is_available", lambda: gpu)
    kernels.setattr(torch.backends.cudnn, "is_available", lambda: library)
    kernels.setattr(torch.cuda, "get_device_capability", lambda: capability)
    parse("--sdpa", "cudnn")
    if said:
        with pytest.raises(UsageError, match=f"^--sdpa cudnn needs a GPU of .* {said}"):
            attention_kernels.check_kernels()
        return
    attention_kernels.check_kernels()
    assert torch.backends.cuda.cudnn_sdp_enabled()
    process_wide.avoid_cudnn_attention()  # in a process that this one starts
    assert torch.backends.cuda.cudnn_sdp_enabled()
    parse("--sdpa", "flash")
    attention_kernels.check_kernels()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_kernels_are_checked_when_flags_are_read(kernels):
    for chosen, said in (("cudnn", "--sdpa cudnn needs a GPU"), ("fast", "FAIRSEQ_EXT_SDPA is")):
        kernels.setenv("FAIRSEQ_EXT_SDPA", chosen)
        with pytest.raises(UsageError, match=f"^{said}"):
            flags._parse(lambda: Namespace())


@pytest.mark.slow
def test_a_stock_run_to_compare_with(letters, tmp_path):
    """With the patches of numbers left out, fairseq's own model trains as without the plugin."""
    flags = [*TRAIN.split(), "--num-workers", "0"]
    flags[flags.index("--arch") + 1] = "transformer"
    flags += "--encoder-embed-dim 32 --decoder-embed-dim 32 --label-smoothing 0.1".split()
    flags += "--criterion label_smoothed_cross_entropy --max-epoch 3 --max-update 30".split()
    train = [letters, *flags, "--save-dir"]
    own_process = [Path(sys.executable).parent / "fairseq-train", *train]
    run(*own_process, tmp_path / "without")
    run(*own_process, tmp_path / "stock", "--user-dir", PLUGIN, **{wrapping.STOCK: "1"})
    fairseq("train", *train, tmp_path / "ours", "--user-dir", PLUGIN)
    path = "checkpoint_last.pt"
    without, stock, ours = (
        torch.load(tmp_path / name / path, weights_only=False)["model"]
        for name in ("without", "stock", "ours")
    )
    assert without.keys() == stock.keys() == ours.keys()
    assert all(torch.equal(value, stock[name]) for name, value in without.items())
    assert not all(torch.equal(value, stock[name]) for name, value in ours.items())
