"""The patches of fairseq do what they are for, through fairseq's real commands."""

import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import warnings
from argparse import Namespace
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import fairseq
import fairseq_cli.train
import numpy as np
import pytest
import torch
from commands import find_free_port
from conftest import PLUGIN, ROOT, train_in_two_processes
from conftest import fairseq as run_fairseq
from fairseq import checkpoint_utils, file_utils, options
from fairseq.data import (
    ConcatDataset,
    Dictionary,
    FairseqDataset,
    ListDataset,
    data_utils,
    language_pair_dataset,
)
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import CheckpointConfig, CommonConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.search import DiverseBeamSearch
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from torch.multiprocessing import ProcessRaisedException

from fairseq_ext import commands, patches, safe_loading, wrapping
from fairseq_ext.commands import launching, process_wide
from fairseq_ext.data.vocabulary import build_dictionary
from fairseq_ext.errors import UsageError
from fairseq_ext.patches import libraries
from fairseq_ext.training import machine_checks

FLAGS = "-s de -t en --arch transformer --max-tokens 128 --cpu --num-workers 0 --optimizer adam"
SIZE = "--{0}-embed-dim 8 --{0}-ffn-embed-dim 8 --{0}-layers 1 --{0}-attention-heads 2"
TRAIN = (
    f"{FLAGS} {SIZE.format('encoder')} {SIZE.format('decoder')} --lr 1e-3 --max-update 2".split()
)
TWO_ON_CPUS = (
    "--distributed-world-size 2 --distributed-backend gloo --ddp-backend legacy_ddp".split()
)


@pytest.fixture(scope="module")
def data(letters):
    return letters


@pytest.fixture(scope="module")
def run(data):
    """A finished training through the command line, saved beside the data."""
    return run_fairseq("train", data, "--user-dir", PLUGIN, *TRAIN, "--save-dir", data / "model")


@pytest.fixture
def train(data, tmp_path, monkeypatch):
    """fairseq-train in this process."""

    def train(*flags):
        argv = ["fairseq-train", data, *TRAIN, "--save-dir", tmp_path, *flags]
        monkeypatch.setattr(sys, "argv", list(map(str, argv)))
        fairseq_cli.train.cli_main()

    return train


def stderr(done):
    """Without what torch 2.14 says while fairseq is imported, before any plugin is."""
    return re.sub(r".*torch/jit/_script\.py.*\n.*\n", "", done.stderr)


def test_apply_is_done_once():
    before = distributed_utils.call_main, sys.excepthook, list(warnings.filters)
    patches.apply()
    commands.set_up()
    assert before == (distributed_utils.call_main, sys.excepthook, list(warnings.filters))


def test_a_training_writes_nothing_to_stderr(run):
    assert "num_updates 2" in run.stdout
    assert stderr(run) == ""


def test_only_stock_warnings_are_filtered():
    mine = ["something of yours", "hydra says hello", "mismatched key_padding_mask"]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        process_wide.silence_stock_warnings()
        for text in mine:
            warnings.warn(text, UserWarning, stacklevel=1)
        warnings.warn(
            "`torch.cuda.amp.autocast(args...)` is deprecated", FutureWarning, stacklevel=1
        )
        warnings.warn("\nThe version_base parameter is not specified.", UserWarning, stacklevel=1)
    assert [str(w.message) for w in seen[:3]] == mine
    assert len(seen) == 4 and seen[3].category is FutureWarning


def test_bf16_trains_on_a_cpu(train, tmp_path):
    train("--memory-efficient-bf16")
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    assert state["optimizer_history"][-1]["num_updates"] == 2
    weights = state["model"]["encoder.embed_tokens.weight"]  # saved in 32 bits
    assert torch.equal(weights, weights.bfloat16().float())


def test_bf16_is_a_tpu_in_no_part(monkeypatch):
    """fairseq says so to every part that asks, and a TPU's processes are not begun."""
    flags = "data --bf16 --user-dir x --task masked_lm --criterion masked_lm --arch roberta_base"
    monkeypatch.setattr("fairseq.utils.import_user_module", lambda args: None)
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(parser, input_args=f"{flags} --optimizer adam".split())
    )
    assert cfg.criterion.tpu and cfg.distributed_training.tpu  # else there is no need for it
    machine_checks.unset_tpu(cfg)
    assert not any(part.tpu for part in cfg.values() if hasattr(part, "tpu"))
    assert cfg.common.bf16 and cfg.criterion.tpu is False


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"fp16": True, "cpu": True}, "--fp16 needs a GPU; on a CPU give --bf16"),
        (
            {"fp16": True, "memory_efficient_fp16": True, "cpu": True},
            "--memory-efficient-fp16 needs a GPU",
        ),
        ({"fp16": True}, "--optimizer lamb needs .*; add --fp16-no-flatten-grads"),
        ({"fp16": True, "fp16_no_flatten_grads": True}, None),
        ({"fp16": True, "memory_efficient_fp16": True}, None),
        ({"bf16": True}, None),  # which fairseq does not flatten
        ({}, None),
    ],
)
def test_precisions_that_cannot_be(given, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cfg = SimpleNamespace(
        common=OmegaConf.merge(OmegaConf.structured(CommonConfig), given),
        optimizer=SimpleNamespace(_name="lamb"),
    )
    with pytest.raises(UsageError, match=says) if says else nullcontext():
        machine_checks.check_precision(cfg)


@pytest.mark.parametrize(
    ("capabilities", "warned"),
    [({"avx2": True, "avx512_bw": False}, True), ({"avx512_bw": True}, False), ({}, False)],
)
def test_a_cpu_on_which_bf16_is_slow_is_warned_of(capabilities, warned, monkeypatch, caplog):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    common = OmegaConf.merge(OmegaConf.structured(CommonConfig), {"bf16": True, "cpu": True})
    machine_checks.check_precision(SimpleNamespace(common=common, optimizer=None))
    assert ("no instructions for it" in caplog.text) == warned


@pytest.mark.parametrize("limit", [{"max_sentences": 7}, {"max_tokens": 60}, {"max_tokens": 10**6}])
def test_every_sentence_is_in_a_batch_once(limit):
    lengths = np.arange(3, 53)
    batches = data_utils.batch_by_size(
        np.arange(50), None, lengths, required_batch_size_multiple=8, **limit
    )
    assert np.concatenate(batches).tolist() == list(range(50))


class Shuffled(FairseqDataset):
    """Sentences in an order that is drawn when batches are made."""

    can_reuse_epoch_itr_across_epochs = True

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index

    def collater(self, samples: list[int]) -> list[int]:
        return samples

    def ordered_indices(self) -> np.ndarray:
        return np.random.permutation(16)  # noqa: NPY002  (whose seed fairseq sets)

    def batch_by_size(self, indices: np.ndarray, **limits: int) -> np.ndarray:
        return indices.reshape(-1, 2)


@pytest.mark.parametrize("anew", [False, True])
def test_batches_are_those_of_the_first_epoch_unless_made_anew(anew):
    def batches(epoch):
        iterator = FairseqTask(Namespace()).get_batch_iterator(
            Shuffled(), epoch=epoch, update_epoch_batch_itr=anew
        )
        assert iterator.epoch == epoch
        return np.array(iterator.frozen_batches)

    assert (batches(2) == batches(2)).all()
    assert (batches(1) == batches(2)).all() == (not anew)


class Epochs(FairseqDataset):
    """Items are the epoch in which they were read."""

    epoch = 1

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return self.epoch

    def collater(self, samples: list[int]) -> list[int]:
        return samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_processes_that_load_data_hear_of_new_epochs(workers, reuse):
    data = Epochs()

    def begun() -> EpochBatchIterator:
        data.set_epoch(1)
        batches = [[0], [1], [2]]
        return EpochBatchIterator(
            data, data.collater, batches, num_workers=workers, buffer_size=2, reuse_dataloader=reuse
        )

    iterator = begun()
    assert [[*iterator.next_epoch_itr()] for _ in range(2)] == [[[1]] * 3, [[2]] * 3]
    third = iterator.next_epoch_itr()
    assert next(third) == [3]
    resumed = begun()
    resumed.load_state_dict(iterator.state_dict())
    assert [[*resumed.next_epoch_itr()] for _ in range(2)] == [[[3]] * 2, [[4]] * 3]


def build_saver():
    """Return what stands in for a trainer that saves checkpoints without content."""
    return SimpleNamespace(
        data_parallel_rank=0,
        should_save_checkpoint_on_current_rank=True,
        checkpoint_suffix="",
        task=None,
        consolidate_optimizer=lambda: None,
        save_checkpoint=lambda name, state: Path(name).touch(),
    )


@pytest.mark.parametrize(
    ("scores", "best", "maximize"),
    [
        ([-0.4, -0.7, -0.6, -0.8, 0.1], [-0.8, -0.7], False),
        ([-0.8, -0.6, -0.7, 0.1, -0.9], [-0.6, 0.1], True),
    ],
)
def test_the_best_checkpoints_are_kept_where_scores_are_below_0(
    tmp_path, monkeypatch, scores, best, maximize
):
    monkeypatch.setattr(checkpoint_utils.save_checkpoint, "best", scores[0], raising=False)
    cfg = CheckpointConfig(
        save_dir=str(tmp_path),
        keep_best_checkpoints=2,
        maximize_best_checkpoint_metric=maximize,
        no_epoch_checkpoints=True,
    )
    trainer = build_saver()
    trainer.get_num_updates = lambda: 1
    for epoch, score in enumerate(scores, 1):
        done = SimpleNamespace(epoch=epoch, end_of_epoch=lambda: True, state_dict=dict)
        checkpoint_utils.save_checkpoint(cfg, trainer, done, score)
    kept = [path.stem.rsplit("_")[-1] for path in tmp_path.glob("checkpoint.best_*")]
    assert sorted(round(float(score), 3) for score in kept) == best  # a further digit breaks ties


def test_a_save_within_an_epoch_needs_no_settings_of_its_end(tmp_path):
    """Programs, and tests of fairseq, make such configurations of their own."""
    settings = vars(CheckpointConfig(save_dir=str(tmp_path)))
    cfg = OmegaConf.create({k: settings[k] for k in settings.keys() - {"no_epoch_checkpoints"}})
    within = SimpleNamespace(epoch=1, end_of_epoch=lambda: False, state_dict=dict)
    trainer = build_saver()
    trainer.get_num_updates = lambda: 1
    checkpoint_utils.save_checkpoint(cfg, trainer, within, 1.0)
    assert (tmp_path / "checkpoint_last.pt").exists()


def save_all(folder, scores, updates, epoch_ends, **flags):
    """Save as fairseq-train does at these updates, at the end of an epoch or within one."""
    cfg = CheckpointConfig(save_dir=str(folder), **flags)
    trainer = build_saver()
    epoch = 1
    for score, update in zip(scores, updates, strict=True):
        trainer.get_num_updates = lambda update=update: update
        ends = update in epoch_ends
        iterator = SimpleNamespace(epoch=epoch, end_of_epoch=lambda e=ends: e, state_dict=dict)
        checkpoint_utils.save_checkpoint(cfg, trainer, iterator, score)
        epoch += ends
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ({"no_epoch_checkpoints": True}, ["_1_2", "_2_4", "_3_6"]),
        ({"save_interval": 2}, ["2", "_1_2", "_3_6"]),
        ({}, ["1", "2", "3"]),
        ({"no_epoch_checkpoints": True, "keep_interval_updates": 1}, ["_3_6"]),
    ],
)
def test_updates_that_end_an_epoch_are_saved(flags, kept, tmp_path):
    flags |= {"save_interval_updates": 2, "no_last_checkpoints": True}
    names = save_all(tmp_path, [None] * 3, [2, 4, 6], [2, 4, 6], **flags)
    assert names == sorted(f"checkpoint{name}.pt" for name in kept)


@pytest.mark.parametrize(
    ("scores", "maximise", "best"),
    [
        ([1.0, 3.0, 2.0, 1.5], False, [1.0, 1.5, 2.0]),
        ([-3.0, -1.0, -2.0, -4.0], False, [-4.0, -3.0, -2.0]),
        ([5.0, 4.0, 3.0, 2.0], True, [3.0, 4.0, 5.0]),
        ([1.0, 9.0], False, [1.0, 9.0]),
    ],
)
def test_as_many_best_checkpoints_as_asked_are_kept(scores, maximise, best, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_utils.save_checkpoint, "best", scores[0], raising=False)
    updates = range(1, len(scores) + 1)
    flags = {"keep_best_checkpoints": 3, "maximize_best_checkpoint_metric": maximise}
    names = save_all(tmp_path, scores, updates, updates, no_epoch_checkpoints=True, **flags)
    kept = [name[: -len("0.pt")].rpartition("_")[2] for name in names if ".best_" in name]
    assert sorted(map(float, kept)) == best


def test_a_dictionary_keeps_the_marks_of_symbols_that_overwrite_others(tmp_path):
    path = tmp_path / "given.txt"
    path.write_text("<s> 3 #fairseq:overwrite\na 2\na 1 #fairseq:overwrite\n")
    words = Dictionary.load(str(path))
    words.save(str(tmp_path / "dict.txt"))
    assert (tmp_path / "dict.txt").read_text() == path.read_text()
    assert Dictionary.load(str(tmp_path / "dict.txt")).symbols == words.symbols
    assert build_dictionary(words.symbols).symbols == words.symbols


@pytest.mark.parametrize("reuse", [False, True])
def test_batches_are_shuffled_after_a_curriculum_as_when_resumed(reuse):
    def begun():
        batches = [[n] for n in range(16)]
        data = Shuffled()
        return EpochBatchIterator(data, lambda x: x[0], batches, reuse_dataloader=reuse)

    iterator, ordered = begun(), list(range(16))
    first, second, third = ([*iterator.next_epoch_itr(shuffle=epoch > 1)] for epoch in (1, 2, 3))
    assert first == ordered and sorted(second) == ordered
    assert len({*map(str, (first, second, third))}) == 3
    resumed = begun()
    resumed.load_state_dict({"version": 2, "epoch": 3, "iterations_in_epoch": 0, "shuffle": True})
    assert [*resumed.next_epoch_itr(shuffle=True)] == third


def test_a_copy_that_is_cut_short_leaves_the_last_checkpoint_as_it_was(tmp_path, monkeypatch):
    for name, content in (("checkpoint1.pt", "new"), ("checkpoint_last.pt", "old")):
        (tmp_path / name).write_text(content)
    source, target = str(tmp_path / "checkpoint1.pt"), str(tmp_path / "checkpoint_last.pt")

    def killed(source, target):
        Path(target).write_text("n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "copyfile", killed)
        PathManager.copy(source, target, overwrite=True)
    assert Path(target).read_text() == "old"
    assert PathManager.copy(source, target, overwrite=True)
    assert Path(target).read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_copy_to_another_store_is_left_to_fairseq(tmp_path, monkeypatch):
    """Which has no names that could be exchanged."""
    source, target = tmp_path / "checkpoint1.pt", tmp_path / "checkpoint_last.pt"
    source.write_text("new")
    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda path: True)
    renamed = []
    monkeypatch.setattr(os, "replace", lambda *names: renamed.append(names))
    PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_text() == "new" and not renamed


@pytest.mark.parametrize(("gpus", "method"), [(0, "env://"), (2, None)])
def test_torchrun_needs_no_gpu(gpus, method, monkeypatch):
    """With GPUs fairseq divides the processes among them as ever."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    flags = Namespace(distributed_init_method=None, distributed_no_spawn=False)
    flags.distributed_num_procs = flags.device_id = 0
    distributed_utils._infer_torch_distributed_launch_init(flags)
    assert flags.distributed_init_method == method or gpus
    assert flags.distributed_world_size == 2


def test_numpy_long_is_an_integer():
    their_numpy = language_pair_dataset.np
    long = their_numpy.compat.long
    assert their_numpy.vectorize(len, otypes=[long])(["ab"]).dtype.kind == "i"
    assert not hasattr(np, "compat") or np.__version__ < "2"


def fairseq_modules_with(pattern):
    """The modules of the installed fairseq, examples aside, whose source matches."""
    root = Path(fairseq.__file__).parent
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] != "examples" and re.search(pattern, path.read_text(encoding="utf-8")):
            yield ".".join(("fairseq", *parts))


def test_every_torch_load_and_eval_of_fairseq_is_covered():
    loading = set(fairseq_modules_with(r"torch\.load\("))
    assert loading and loading <= set(safe_loading.LOADERS)
    for name in loading:
        assert isinstance(sys.modules[name].torch, safe_loading.SafeTorch)
    evaluating = list(fairseq_modules_with(r"(?<![\w.])eval\("))
    assert len(evaluating) > 10
    for name in evaluating:
        assert sys.modules[name].eval is safe_loading.parse_literal


@pytest.mark.parametrize("name", ["../outside", "/{}/outside"])
def test_archives_stay_in_their_folder(name, tmp_path):
    archive, outside = tmp_path / "model.tar.gz", tmp_path / "outside"
    (tmp_path / "tmp").mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name.format(tmp_path)), io.BytesIO())
    with pytest.raises(tarfile.FilterError):
        file_utils.load_archive_file(str(archive))
    assert not outside.exists()


def test_what_processes_gather_is_on_the_cpu(monkeypatch):
    """As fairseq promises; numbers of several devices cannot be added."""

    def share(found, data, group):
        found[:] = [data]

    moved = []
    monkeypatch.setattr("torch.distributed.all_gather_object", share)
    monkeypatch.setattr(distributed_utils, "get_world_size", lambda group: 1)
    monkeypatch.setattr("fairseq.utils.move_to_cpu", lambda data: moved.append(data) or "moved")
    assert distributed_utils.all_gather_list({"loss": 1}, group="any") == ["moved"]
    assert moved == [{"loss": 1}]


def test_restoring_another_architecture_is_one_sentence(run, data, train):
    said = r"checkpoint_last\.pt does not fit this model .*layers\.1.* or another --save-dir"
    with pytest.raises(UsageError, match=said):
        train("--restore-file", data / "model" / "checkpoint_last.pt", "--encoder-layers", 2)


def test_a_training_restores_no_pickle(train, tmp_path):
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    torch.save({"model": Payload(), "optimizer_history": []}, tmp_path / "evil.pt")
    with pytest.raises(UsageError, match=r"evil\.pt asks for posix\.system"):
        train("--restore-file", tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def config(cpu=True, tpu=False, optimizer="adam", **flags):
    """What the checks read of fairseq's configuration, with fairseq's defaults."""
    training = {"ddp_backend": "pytorch_ddp", "distributed_backend": "nccl"}
    training |= {"distributed_world_size": 1, "distributed_rank": 0}
    training |= {"distributed_init_method": None, "distributed_no_spawn": False, **flags}
    return SimpleNamespace(
        common=SimpleNamespace(cpu=cpu, tpu=tpu, fp16=False, bf16=False, model_parallel_size=1),
        distributed_training=SimpleNamespace(**training),
        optimizer=optimizer,
    )


TWO = {"distributed_world_size": 2}
GLOO = {"distributed_backend": "gloo", "ddp_backend": "legacy_ddp"}
TCP = {"distributed_init_method": "tcp://127.0.0.1:1"}
ALONE = {"distributed_no_spawn": True}
LAUNCHED = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "1"}
TORCHRUN = {**LAUNCHED, "LOCAL_RANK": "1"}
NODES = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "SLURM_NTASKS": "2"}
SLURM = {**NODES, "SLURM_NTASKS": "4"}
GPU = {"cpu": False, "gpus": 2}
SHARDED = {**GPU, "ddp_backend": "fully_sharded"}


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        ({}, {}, None),
        ({}, TORCHRUN, "add --distributed-world-size 2 --distributed-backend gloo"),
        ({}, {**TORCHRUN, "WORLD_SIZE": "1"}, None),
        (TWO, {}, "starts no process for --distributed-world-size 2"),
        ({**TWO, **GLOO, **TCP}, {}, "starts no process"),
        ({**TWO, **GLOO, **ALONE}, {}, "starts no process"),
        ({**TWO, **GLOO, **TCP, **ALONE}, {}, None),
        ({**TWO, **GLOO}, SLURM, None),
        ({**TWO, **GLOO}, {**NODES, "SLURM_NTASKS_PER_NODE": "2"}, None),
        ({**TWO, **GLOO}, NODES, "starts no process for --distributed-world-size 2"),
        ({**TWO, **GLOO}, {"SLURM_STEP_NODELIST": "node1"}, "starts no process"),
        ({**TWO, **TCP, **ALONE}, {}, "do not work with --distributed-backend nccl"),
        ({**TWO, **TCP, **ALONE, **GLOO, "ddp_backend": "slowmo"}, {}, "--ddp-backend slowmo"),
        ({**TWO, **TCP, **ALONE, "distributed_backend": "gloo", "optimizer": None}, {}, None),
        ({**TWO, **GLOO}, TORCHRUN, None),
        ({**TWO, **GLOO, **TCP}, TORCHRUN, "rank 1 of 2"),
        ({**TWO, **GLOO, **TCP, **ALONE}, TORCHRUN, "rank 1 of 2"),
        ({**TWO, **GLOO, **TCP, **ALONE, "distributed_rank": 1}, TORCHRUN, None),
        ({**TWO, "tpu": True}, {}, None),
        ({**TWO, **GPU}, {}, None),
        ({**TWO, **GPU, **TCP}, {}, None),
        ({**TWO, **GPU}, TORCHRUN, None),
        ({**TWO, **GPU, **TCP}, LAUNCHED, None),
        ({**TWO, **GLOO}, LAUNCHED, None),
        ({**TWO, **GPU, "cpu": True}, {}, "or --distributed-world-size 1"),
        (GPU, TORCHRUN, "add --distributed-world-size 2$"),
        ({**TWO, **GPU, **TCP}, TORCHRUN, "leave that flag out"),
        (SHARDED, {}, "give --ddp-backend fsdp2"),
        ({**SHARDED, **TWO}, {}, "give --ddp-backend fsdp2"),
        ({**SHARDED, "optimizer": None}, {}, None),
    ],
)
def test_process_flags(flags, env, message, monkeypatch):
    flags = dict(flags)
    gpus = flags.pop("gpus", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    for name in *TORCHRUN, *SLURM, "SLURM_STEP_NODELIST", "SLURM_NTASKS_PER_NODE":
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if message is None:
        machine_checks.check_processes(config(**flags))
        return
    with pytest.raises(UsageError, match=message):
        machine_checks.check_processes(config(**flags))


def test_the_trainer_checks_too(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="torchrun started 2 processes"):
        Trainer(config(), None, None, None)


def test_the_group_of_processes_ends_with_the_command():
    """Where it does not, a thread of the group may abort a process that is done."""
    meet = f"tcp://127.0.0.1:{find_free_port()}"
    flags = {**GLOO, **ALONE, "distributed_init_method": meet, "device_id": 0}
    groups = []

    def main(cfg):
        groups.append(distributed_utils.get_global_group())
        assert torch.distributed.is_initialized()

    distributed_utils.call_main(config(**flags), main)
    assert not torch.distributed.is_initialized()
    distributed_utils.call_main(config(**flags), main)  # in a group of its own
    assert len(groups) == 2 and groups[0] is not groups[1]


@pytest.mark.parametrize(("ratios", "sizes"), [([-1, 1], [2, 5]), ([2, 1], [4, 7]), (1, [2, 5])])
def test_each_part_of_a_split_is_used(ratios, sizes):
    """-1 is the default of --upsample-primary; a part is repeated if more is asked for."""
    data = ConcatDataset([ListDataset(["a", "b"]), ListDataset(["c", "d", "e"])], ratios)
    assert data.cumulative_sizes == sizes
    assert [data[i] for i in range(len(data))] == [*"ab" * (sizes[0] // 2), *"cde"]


def test_an_error_is_one_line_and_exit_code_1(data, tmp_path):
    flags = ["--user-dir", PLUGIN, *TRAIN, "--save-dir", tmp_path, "--distributed-world-size", 2]
    done = run_fairseq("train", data, *flags, check=False)
    assert done.returncode == 1
    assert stderr(done).startswith("error: without a GPU") and stderr(done).count("\n") == 1


def test_other_errors_keep_their_traceback(capsys):
    try:
        raise KeyError("mine")
    except KeyError as error:
        sys.excepthook(KeyError, error, error.__traceback__)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this is how CPUs train")
def test_torchrun_trains_one_model_on_cpus(data, tmp_path):
    torchrun = "torch.distributed.run --standalone --nproc_per_node 2 -m fairseq_cli.train".split()
    flags = ["--user-dir", PLUGIN, *TRAIN, *TWO_ON_CPUS, "--save-dir", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, data, *flags], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "training on 2 devices" in done.stdout
    assert "training on 1 devices" not in done.stdout


def test_the_page_has_the_lists():
    page = (ROOT / "docs" / "patches.md").read_text()
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "print_patches.py"], capture_output=True, text=True
    )
    assert done.stdout.count("\n- `") > 40 and page.endswith("\n\n" + done.stdout)


def test_each_function_of_fairseq_is_changed_once():
    code = """
from fairseq_ext import wrapping
changed = []
def note(function):
    def noted(owners, name, value):
        for owner in [owners] if isinstance(owners, str) else owners:
            changed.append((id(wrapping.find_owner(owner)), owner, name))
        function(owners, name, value)
    return noted
wrapping.wrap, wrapping.replace = note(wrapping.wrap), note(wrapping.replace)
import fairseq_ext.registry, fairseq_ext.commands
fairseq_ext.commands.set_up()
owners = [(owner, name) for owner, _, name in changed]
print(len(owners) > 30, [change for change in changed if owners.count((change[0], change[2])) > 1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("True []\n"), done.stdout + done.stderr


def test_a_wrapper_has_names_of_its_own_for_what_callers_name(monkeypatch):
    owner = SimpleNamespace(divide=lambda dividend, divisor=1, *, digits=9: dividend / divisor)

    def divide(original, number, *args, **kwargs):
        return number, original(number, *args, **kwargs)

    monkeypatch.setattr(wrapping, "find_owner", lambda path: owner)
    wrapping.wrap("owner", "divide", divide)
    for found in (owner.divide(6, 2), owner.divide(dividend=6, divisor=2, digits=1)):
        assert found == (6, 3)


COUNTER = """
import os
import fairseq_ext.registry
import torch
load = torch.load
def counted(file, *args, **kwargs):
    with open({!r} + "/" + os.environ["RANK"], "a") as log:
        log.write(getattr(file, "name", str(file)) + "\\n")
    return load(file, *args, **kwargs)
torch.load = counted
"""


@pytest.mark.slow
def test_each_process_reads_a_checkpoint_once(data, tmp_path):
    """Two processes resume; the second is sent the state too, as a stream without a name."""
    (tmp_path / "counter").mkdir()
    (tmp_path / "reads").mkdir()
    (tmp_path / "counter" / "__init__.py").write_text(COUNTER.format(str(tmp_path / "reads")))
    flags = [*TRAIN, "--user-dir", tmp_path / "counter", "--save-dir", tmp_path]
    train_in_two_processes(data, *flags)
    assert not list((tmp_path / "reads").iterdir())
    train_in_two_processes(data, *flags, "--max-update", "4")
    for rank in "01":
        reads = (tmp_path / "reads" / rank).read_text().split("\n")
        assert reads.count(str(tmp_path / "checkpoint_last.pt")) == 1, reads


@pytest.fixture
def amp_optimizer(monkeypatch):
    """fairseq's optimizer of --amp, with a scaler that works without a GPU, and a parameter."""
    scaler = partial(torch.amp.GradScaler, "cpu")
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", scaler)

    def build(*flags):
        line = ["data", "--arch", "transformer", "--optimizer", "sgd", "--lr", "1", *flags]
        cfg = convert_namespace_to_omegaconf(
            options.parse_args_and_arch(options.get_training_parser(), [*line, "--amp"])
        )
        parameter = torch.nn.Parameter(torch.zeros(1))
        return AMPOptimizer.build_optimizer(cfg, [parameter]), parameter

    return build


def test_amp_divides_gradients_by_the_scale_once(amp_optimizer):
    optimizer, parameter = amp_optimizer("--amp-init-scale", "1024")
    for count in (1, 2):
        optimizer.zero_grad()
        optimizer.backward((3 * parameter).sum())
        assert parameter.grad.item() == 3 * 1024
        assert optimizer.clip_grad_norm(0).item() == 3
        optimizer.step()
        assert parameter.item() == -3 * count


def test_amp_takes_its_own_flags(amp_optimizer):
    scaler = amp_optimizer("--amp-init-scale", "64", "--amp-scale-window", "7")[0].scaler
    assert (scaler.get_scale(), scaler.get_growth_interval()) == (64, 7)
    assert amp_optimizer()[0].scaler.get_growth_interval() == 2000


def test_attention_is_not_run_by_cudnn():
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_refusal_of_a_process_that_was_started_is_one_sentence(monkeypatch):
    text = "-- Process 1 terminated:\nTraceback\nfairseq_ext.errors.UsageError: --x is 1; give 2\n"

    def spawn(*, args, **kwargs):
        pickle.dumps(args)  # it goes to another process
        raise ProcessRaisedException(text, 1, 2)

    line = [*"data --arch transformer --optimizer adam --distributed-world-size 2".split()]
    parsed = options.parse_args_and_arch(options.get_training_parser(), line)
    cfg = convert_namespace_to_omegaconf(parsed)
    cfg.distributed_training.distributed_init_method = "tcp://localhost:1"
    cfg.distributed_training.distributed_num_procs = 2
    monkeypatch.setattr(torch.multiprocessing, "spawn", spawn)
    monkeypatch.setattr(launching, "check_processes", lambda cfg: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"^--x is 1; give 2$"):
        distributed_utils.call_main(cfg, print)
    text = "-- Process 1 terminated:\nTraceback\nValueError: no\n"
    with pytest.raises(ProcessRaisedException, match="ValueError: no"):
        distributed_utils.call_main(cfg, print)


def test_what_one_command_is_configured_with_does_not_reach_the_next(monkeypatch):
    """hydra reads its store in place, and changes copies of what it reads."""
    copied = []
    monkeypatch.setattr(libraries.LazyNode, "__deepcopy__", lambda self, memo: copied.append(self))

    def configure(*flags):
        line = [*"data --arch transformer --optimizer adam".split(), *flags]
        parsed = options.parse_args_and_arch(options.get_training_parser(), line)
        return convert_namespace_to_omegaconf(parsed).common.seed

    assert [configure("--seed", "7"), configure()] == [7, 1]
    assert copied == []  # a model's node, which nobody asked for


TRAINED = """
import torch
from fairseq.data.iterators import BufferedIterator

class Batches:
    def __len__(self):
        return 9999

    def __iter__(self):
        while True:
            yield torch.stack([torch.ones(3000) for _ in range(500)])

ahead = BufferedIterator({0}, Batches())
next(ahead)
"""


@pytest.mark.parametrize("room", [1, 9999])
def test_a_command_that_ends_amid_an_epoch_is_not_aborted(room):
    """Without the patch the thread that makes batches is stopped inside torch, which aborts."""
    code = "import fairseq_ext" + TRAINED.format(room)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torchscript_compiles_what_was_replaced():
    """Names of the original's module are known there, which are not those of the patch."""
    search = DiverseBeamSearch(Dictionary(), num_groups=2, diversity_strength=0.0)
    assert "diversity_buf" in torch.jit.script(search).step.code
