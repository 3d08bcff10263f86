"""Models that processes share, --ddp-backend fsdp2: they train as one process does."""

from types import SimpleNamespace

import pytest
import torch
from commands import read_parameters
from conftest import PLUGIN, TRAIN, train, train_in_two_processes
from fairseq.criterions import FairseqCriterion
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from fairseq_ext.errors import UsageError
from fairseq_ext.safe_loading import load_checkpoint
from fairseq_ext.training import fully_sharded

TWO = [flag for flag in TRAIN if flag not in ("--user-dir", str(PLUGIN), "--cpu")]
SAME = ["--dropout", 0, "--attention-dropout", 0, "--disable-validation", "--clip-norm", 0.5]
GUIDED = "--criterion label_smoothed_cross_entropy_ag --ag-alpha 1"
ASA = "--criterion label_smoothed_cross_entropy_asa"
RDROP = "--criterion label_smoothed_cross_entropy_rdrop"


def train_two(data, folder, arch, updates, *args):
    where = ["--arch", arch, "--save-dir", folder, "--max-update", updates]
    train_in_two_processes(data, *TWO, *SAME, *where, *args)
    return folder / "checkpoint_last.pt"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("transformer_una_tiny", "--update-freq 2"),
        ("transformer_dna_tiny", "--optimizer lamb"),
        ("transformer_una_tiny", GUIDED),
        ("transformer_asa_tiny", ASA),
        ("transformer_una_tiny", RDROP),
    ],
    ids=["una, two batches", "dna, lamb", "guidance", "asa", "rdrop"],
)
def test_two_processes_equal_one(arch, options, data_bin, tmp_path):
    flags = options.split()
    often = 2 * (1 + ("--update-freq" in flags))  # for one process
    one = train(data_bin, arch, tmp_path / "one", 3, *SAME, *flags, "--update-freq", often)
    two = train_two(data_bin, tmp_path / "two", arch, 3, "--ddp-backend", "fsdp2", *flags)
    found, expected = (load_checkpoint(str(path)) for path in (two, one))
    torch.testing.assert_close(found["model"], expected["model"], atol=2e-4, rtol=1e-3)
    # Adam's means tell how long gradients were, which its updates do not
    found, expected = (state["last_optimizer_state"]["state"] for state in (found, expected))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.processes
def test_a_checkpoint_is_that_of_one_process_and_resumes(data_bin, tmp_path):
    shared = ["--ddp-backend", "fsdp2"]
    arch = "transformer_hna_tiny"
    whole = train_two(data_bin, tmp_path / "whole", arch, 4, *shared)
    train_two(data_bin, tmp_path / "cut", arch, 2, *shared)
    resumed = train_two(data_bin, tmp_path / "cut", arch, 4, *shared)
    states = [load_checkpoint(str(path)) for path in (whole, resumed)]
    for name in ("model", "last_optimizer_state"):
        torch.testing.assert_close(states[1][name], states[0][name], atol=0, rtol=0)
    train(data_bin, arch, tmp_path / "cut", 5, *SAME)  # one process goes on, and two again
    train_two(data_bin, tmp_path / "cut", arch, 6, *shared)


@pytest.mark.slow
@pytest.mark.processes
def test_ddp_of_torch_trains_on_cpus(data_bin, tmp_path):
    arch = "transformer_una_tiny"
    one = train(data_bin, arch, tmp_path / "one", 3, *SAME, "--update-freq", 2)
    two = train_two(data_bin, tmp_path / "two", arch, 3, "--ddp-backend", "pytorch_ddp")
    torch.testing.assert_close(*map(read_parameters, (two, one)), atol=2e-4, rtol=1e-3)


def settings(**given):
    parts = {
        "distributed_training": {
            "distributed_world_size": 2, "zero_sharding": "none", "cpu_offload": False,
            "use_sharded_state": False,
        },
        "common": {"fp16": False, "amp": False, "memory_efficient_bf16": False},
        "ema": {"store_ema": False},
        "optimization": {"use_bmuf": False},
        "checkpoint": {"no_last_checkpoints": False},
        "optimizer": {"_name": "adam"},
    }  # fmt: skip
    return SimpleNamespace(
        **{
            part: SimpleNamespace(**{name: given.get(name, value) for name, value in own.items()})
            for part, own in parts.items()
        }
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"distributed_world_size": 1}, "--distributed-world-size 1"),
        ({"fp16": True}, "--fp16, which --bf16 is in place of"),
        ({"amp": True}, "--amp, which --bf16 is in place of"),
        ({"memory_efficient_bf16": True}, "--memory-efficient-bf16"),
        ({"store_ema": True}, "--store-ema"),
        ({"use_bmuf": True}, "--use-bmuf"),
        ({"zero_sharding": "os"}, "--zero-sharding os"),
        ({"cpu_offload": True}, "--cpu-offload"),
        ({"use_sharded_state": True}, "--use-sharded-state"),
        ({"no_last_checkpoints": True}, "--no-last-checkpoints"),
        ({"_name": "adafactor"}, "--optimizer adafactor"),
    ],
)
def test_what_does_not_go_with_it_is_refused(given, said):
    fully_sharded.check(settings())
    with pytest.raises(UsageError, match=f"--ddp-backend fsdp2 does not go with {said}; leave one"):
        fully_sharded.check(settings(**given))


def test_it_is_not_compiled(monkeypatch):
    monkeypatch.setenv("FAIRSEQ_EXT_COMPILE", "1")
    with pytest.raises(UsageError, match="does not go with --compile"):
        fully_sharded.check(settings())


def test_parts_that_cannot_be_shared_are_refused():
    with pytest.raises(UsageError, match="this --criterion has parameters"):
        fully_sharded.shard(FairseqCriterion(None), None, torch.device("cpu"))
    model = nn.Module()
    layer = nn.Linear(2, 2)
    model.layers = nn.ModuleList([layer, nn.Sequential(layer)])
    with pytest.raises(UsageError, match="layers of this model have some in common"):
        fully_sharded.shard(model, None, torch.device("cpu"))


@pytest.fixture
def group(tmp_path):
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_every_parameter_is_shared_and_the_state_is_whole(group):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).bfloat16()
    model.layers = nn.ModuleList(nn.Linear(3, 3) for _ in "ab").bfloat16()
    model.out = model.tied = nn.Linear(3, 2).bfloat16()
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    fully_sharded.shard(model, None, torch.device("cpu"))
    assert all(isinstance(each, DTensor) for each in model.parameters())
    assert all(each.dtype == torch.float32 for each in model.parameters())
    saved = model.state_dict()
    assert {type(value) for value in saved.values()} == {torch.Tensor}
    torch.testing.assert_close(dict(saved), whole, check_dtype=False)
    assert saved["out.weight"] is saved["tied.weight"]
    model.load_state_dict({name: value.float() + 1 for name, value in whole.items()})
    torch.testing.assert_close(model.state_dict()["out.bias"], whole["out.bias"].float() + 1)
