"""`fairseq-ext doctor` and `fairseq-ext average`."""

import errno
import importlib
import os
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import generate, read_hypotheses
from conftest import PLUGIN, train

from fairseq_ext.cli import main
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import triton_launch
from fairseq_ext.tools import doctor
from fairseq_ext.tools.average import average_checkpoints, select_checkpoints

# doctor


@pytest.fixture
def metadata(tmp_path, monkeypatch):
    """Make the installed fairseq_ext ask for these."""

    def install(*asked):
        folder = tmp_path / "fairseq_ext-0.1.0.dist-info"
        folder.mkdir()
        head = ["Metadata-Version: 2.1", "Name: fairseq_ext", "Version: 0.1.0"]
        lines = [*head, *asked, "Provides-Extra: tracking", ""]
        (folder / "METADATA").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.fixture
def examine(capsys):
    """Run doctor: its lines by what they are about, and what it ends with."""

    def examine():
        said = "Training can run."
        try:
            main(["doctor"])
        except SystemExit as end:
            said = end.code
        lines = re.findall(r"^(WRONG|note |     )  (.*?)  +(.*)$", capsys.readouterr().out, re.M)
        return {what: (mark.strip(), found) for mark, what, found in lines}, said

    return examine


def test_doctor_finds_nothing_wrong_where_the_tests_run(examine, metadata):
    metadata("Requires-Python: >=3.11", "Requires-Dist: torch>=2.6")
    found, said = examine()
    assert said == "Training can run."
    assert found["torch"] == ("", torch.__version__) and found["Python"][0] == ""
    assert re.match(r"\d+ cores, \d+ threads", found["CPU"][1])
    assert re.match(r"\d\d+ architectures, \d+ patches", found["plugin"][1])
    assert found["--user-dir"][1] == str(PLUGIN)


def test_doctor_compares_versions_with_the_metadata(examine, metadata):
    metadata(
        "Requires-Python: <3.9",
        "Requires-Dist: torch<2",
        "Requires-Dist: no-such-thing>=3",
        'Requires-Dist: elsewhere; python_version < "3"',
        "Requires-Dist: numpy>=1.26",
        'Requires-Dist: no-such-logger>=0.1; extra == "tracking"',
        'Requires-Dist: pytest<1; extra == "tracking"',
    )
    found, said = examine()
    assert said.endswith("are mended: Python, torch, no-such-thing")
    install = "pip install --no-build-isolation"
    assert found["Python"][1].endswith("is not <3.9 -> use Python <3.9")
    assert found["torch"] == ("WRONG", f"{torch.__version__} is not <2 -> {install} 'torch<2'")
    assert found["no-such-thing"] == ("WRONG", f"missing -> {install} 'no-such-thing>=3'")
    assert "no-such-logger (tracking)" not in found  # which nobody asked for
    optional = found["pytest (tracking)"]
    assert optional == ("note", f"{pytest.__version__} is not <1 -> {install} 'pytest<1'")
    assert found["numpy"] == ("", np.__version__) and "elsewhere" not in found


def test_doctor_names_a_part_of_fairseq_that_was_not_built(examine, monkeypatch):
    monkeypatch.setitem(sys.modules, "fairseq.libbleu", None)
    found, said = examine()
    assert found["fairseq.libbleu"][0] == "WRONG" and "fairseq-fixed" in found["fairseq.libbleu"][1]
    assert said.endswith("are mended: fairseq.libbleu")


def test_doctor_knows_a_torchaudio_of_another_torch(examine, tmp_path, monkeypatch):
    """It is built for GPUs where torch is built for CPUs, and takes transformers along."""
    (tmp_path / "torchaudio-2.11.0.dist-info").mkdir()
    (tmp_path / "torchaudio-2.11.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchaudio\nVersion: 2.11.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    (tmp_path / "torchaudio.py").write_text("raise OSError('Could not load this library: x.so')\n")
    found, said = examine()
    mark, text = found["torchaudio"]
    assert mark == "note" and "does not import (Could not load this library: x.so)" in text
    assert "-> pip uninstall torchaudio: nothing here needs it" in text
    assert said == "Training can run."
    (tmp_path / "torchaudio.py").write_text("")
    importlib.invalidate_caches()
    assert examine()[0]["torchaudio"] == ("", "2.11.0")
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)


def test_doctor_does_not_miss_torchaudio(monkeypatch):
    def find_none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", find_none)
    assert [*doctor.check_torchaudio()] == []


def test_doctor_names_old_import_paths_in_a_package(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", ())
    (tmp_path / "mine.py").write_text("import os\nfrom fairseq_ext.attention import Frame\n")
    (tmp_path / "worse.py").write_text("def\n")
    main(["doctor", "--user-dir", str(tmp_path)])
    said = capsys.readouterr().out
    assert f"{tmp_path}/mine.py:2  fairseq_ext.attention.Frame has moved -> import" in said
    assert "import fairseq_ext.attention.AttentionContext" in said
    assert "worse.py  is no Python" in said and said.endswith("Training can run.\n")
    with pytest.raises(UsageError, match="--user-dir is .*nowhere, and there is no such folder"):
        main(["doctor", "--user-dir", str(tmp_path / "nowhere")])


def test_doctor_advises_about_threads_and_an_old_torch(examine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    found, said = examine()
    assert found["CPU"][0] == "note" and "OMP_NUM_THREADS=1" in found["CPU"][1]
    assert "CVE-2026-24747" in found["torch"][1] and said == "Training can run."
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    found, _ = examine()
    assert found["CPU"][0] == "" and "CVE" not in found["torch"][1]


def test_doctor_lists_gpus(examine, monkeypatch):
    gpu = SimpleNamespace(name="Big", total_memory=80 << 30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    problems = [""]
    monkeypatch.setattr(triton_launch, "find_problem", lambda device: problems[0])
    found, said = examine()
    assert found["GPU 0"] == ("", "Big, 80 GiB, compute capability 9.0")
    problems[0] = "Triton before 3.6 can crash on this GPU"
    found, said = examine()
    assert found["GPU 0"][0] == "note" and problems[0] in found["GPU 0"][1]
    assert said == "Training can run."


def test_doctor_knows_a_gpu_that_torch_cannot_use(examine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    found, said = examine()
    assert found["GPU"][0] == "note" and "a CUDA build of torch that fits" in found["GPU"][1]
    assert said == "Training can run."


@pytest.mark.parametrize(
    ("module", "check", "remedy"),
    [
        ("packaging.requirements", doctor.check_versions, "pip install packaging"),
        ("torch", doctor.check_devices, f"{doctor.INSTALL} torch"),
        ("fairseq_ext.registry", doctor.check_plugin, "mend what is wrong above"),
    ],
)
def test_doctor_checks_nothing_of_what_does_not_import(module, check, remedy, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    (found,) = check()
    assert (found.subject, found.remedy, found.required) == (module, remedy, True)


def test_doctor_leaves_kernels_that_do_not_import_to_another_check(monkeypatch):
    monkeypatch.setitem(sys.modules, triton_launch.__name__, None)
    assert doctor._find_slow_attention(0) == ""


def test_doctor_looks_for_the_main_packages_if_there_is_no_metadata(examine, monkeypatch):
    def missing(name):
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "metadata", missing)
    found, said = examine()
    assert found["fairseq_ext"][1].startswith("not installed, so versions cannot be checked -> pip")
    assert found["torch"] == ("", torch.__version__) and found["numpy"] == ("", np.__version__)


def test_doctor_is_a_script_too(monkeypatch, capsys):
    """Also where another folder stands first among those of modules."""
    monkeypatch.setattr(sys, "path", ["nowhere", *sys.path])
    runpy.run_path(str(PLUGIN / "tools" / "doctor.py"), run_name="__main__")
    assert sys.path[0] == str(PLUGIN.parent)
    assert capsys.readouterr().out.endswith("Training can run.\n")


def test_doctor_runs_where_fairseq_does_not(tmp_path):
    (tmp_path / "fairseq.py").write_text("raise OSError('built for another torch')\n")
    done = subprocess.run(
        [sys.executable, PLUGIN / "tools" / "doctor.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "fairseq" in done.stderr
    assert re.search(
        r"^WRONG  fairseq +does not import \(built for another torch\)", done.stdout, re.M
    )


# average


def save(path, updates=1, value=None, maximise=False, metric="loss", model=None, **config):
    """A small checkpoint."""
    checkpoint = {"best_checkpoint_metric": metric, "maximize_best_checkpoint_metric": maximise}
    state = {
        "args": None,
        "cfg": {
            "model": {"_name": "transformer", **config},
            "task": {"_name": "translation"},
            "checkpoint": checkpoint,
        },
        "model": model or {"w": torch.full((2, 3), float(updates))},
        "optimizer_history": [{"num_updates": updates}],
        "extra_state": {"val_loss": value, "ema": {"w": torch.ones(9)}},
        "last_optimizer_state": {"state": torch.ones(9)},
    }
    path.parent.mkdir(exist_ok=True)
    torch.save(state, path)
    return path


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    """A run with a checkpoint after 3, 6, 9 and 12 updates."""
    folder = tmp_path_factory.mktemp("run")
    train(data_bin, "transformer_dna_tiny", folder, 12, "--save-interval-updates", 3)
    return folder


def test_the_average_is_the_mean_and_translates(trained, data_bin, tmp_path):
    output = tmp_path / "averaged.pt"
    main(["average", "--output", str(output), str(trained), "--last", "3"])
    files = [next(trained.glob(f"checkpoint_*_{n}.pt")) for n in (6, 9, 12)]
    states = [torch.load(file, weights_only=True) for file in files]
    averaged = torch.load(output, weights_only=True)
    assert averaged["model"].keys() == states[0]["model"].keys()
    for name, value in averaged["model"].items():
        mean = np.mean([state["model"][name].double().numpy() for state in states], axis=0)
        np.testing.assert_array_equal(value.numpy(), mean.astype(np.float32))
    assert averaged["cfg"] == states[-1]["cfg"]
    assert averaged["extra_state"]["averaged"] == [str(file) for file in files]
    assert states[-1]["extra_state"]["val_loss"] and "val_loss" not in averaged["extra_state"]
    assert output.stat().st_size < files[0].stat().st_size / 2  # no optimizer, embeddings once
    assert list(tmp_path.iterdir()) == [output]
    assert len(read_hypotheses(generate(data_bin, output, "--gen-subset", "valid"))) == 100


def test_of_fewer_checkpoints_at_most_those(trained):
    assert select_checkpoints([trained], last=9, by="update", at_most=True) == select_checkpoints(
        [trained], 4, by="update"
    )
    with pytest.raises(UsageError, match="has 4 checkpoints to choose from, not 9"):
        select_checkpoints([trained], last=9, by="update")
    with pytest.raises(UsageError, match="has 0 checkpoints"):
        select_checkpoints([trained / ".."], last=1, at_most=True)


def test_training_begins_from_an_average(trained, data_bin, tmp_path):
    output = tmp_path / "averaged.pt"
    main(["average", "--output", str(output), str(trained), "--best", "2"])
    resets = "--reset-optimizer --reset-lr-scheduler --reset-dataloader --reset-meters".split()
    train(data_bin, "transformer_dna_tiny", tmp_path, 1, "--restore-file", output, *resets)


def test_halves_counters_and_tied_parameters_stay_what_they_are(tmp_path):
    files = []
    for n in range(3):
        tied = torch.full((40, 50), n * 0.1).half()
        model = {
            "a": tied,
            "b": tied,
            "step": torch.tensor(10 * n),
            "big": torch.tensor(6e4).half(),
        }
        files.append(save(tmp_path / f"{n}.pt", n + 1, model=model))
    main(["average", "--output", str(tmp_path / "out.pt"), *map(str, files)])
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    assert "last_optimizer_state" not in state and "ema" not in state["extra_state"]
    out = state["model"]
    mean = np.mean([np.float16(n * 0.1).astype(float) for n in range(3)]).astype(np.float16)
    assert out["a"].dtype == torch.float16 and (out["a"].numpy() == mean).all()
    assert out["a"].data_ptr() == out["b"].data_ptr()
    assert out["step"] == 20 and out["step"].dtype == torch.int64
    assert out["big"] == torch.tensor(6e4).half()  # their sum is beyond 16 bits


def test_parameters_that_were_tied_in_one_file_only_are_two(tmp_path):
    one, two = torch.zeros(2, 2), torch.ones(2, 2)
    save(tmp_path / "1.pt", 1, model={"a": one, "b": two})
    save(tmp_path / "2.pt", 2, model={"a": two, "b": two})
    out = average_checkpoints([tmp_path / "1.pt", tmp_path / "2.pt"])["model"]
    assert out["a"].tolist() == [[0.5, 0.5]] * 2 and out["b"].tolist() == [[1, 1]] * 2


def test_files_that_do_not_say_their_updates_are_no_copies(tmp_path):
    files = [save(tmp_path / f"checkpoint{n}.pt", n) for n in (1, 2)]
    for file in files:
        state = torch.load(file, weights_only=True)
        state["optimizer_history"] = [{}]
        torch.save(state, file)
    assert select_checkpoints(files) == files


@pytest.fixture
def folder(tmp_path):
    """A run with names of every kind: three epochs, and three times within one."""
    values = {"1": 5.0, "2": 4.0, "10": 4.5, "_1_5": 6.0, "_2_15": 4.2, "_10_95": 4.4}
    for name, value in values.items():
        numbers = [int(n) for n in name.split("_") if n]
        updates = numbers[1] if len(numbers) > 1 else 10 * numbers[0]
        save(tmp_path / "run" / f"checkpoint{name}.pt", updates, value)
    save(tmp_path / "run" / "checkpoint_best.pt", 20, 4.0)
    save(tmp_path / "run" / "checkpoint.best_loss_4.0000.pt", 20, 4.0)
    save(tmp_path / "run" / "checkpoint_last.pt", 110, None)
    save(tmp_path / "run" / "averaged.pt", 111, 0.0)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("chosen", "updates"),
    [
        ({"last": 2, "by": "epoch"}, [20, 100]),
        ({"last": 2, "by": "update"}, [15, 95]),
        ({"best": 3}, [95, 15, 20]),
    ],
)
def test_the_last_and_the_best_are_chosen(folder, chosen, updates):
    states = [
        torch.load(file, weights_only=True) for file in select_checkpoints([folder], **chosen)
    ]
    assert [state["optimizer_history"][-1]["num_updates"] for state in states] == updates


def test_the_best_by_a_score_are_the_highest(tmp_path):
    for n, bleu in enumerate([3.0, float("nan"), 20.0, 9.0], 1):
        save(tmp_path / f"checkpoint{n}.pt", n, bleu, True, "bleu")
    chosen = select_checkpoints([tmp_path], best=2)
    assert [file.name for file in chosen] == ["checkpoint4.pt", "checkpoint3.pt"]


def test_a_state_counts_once(folder, tmp_path, capsys):
    names = ["checkpoint2.pt", "checkpoint_best.pt", "checkpoint1.pt"]
    files = [str(folder / name) for name in names]
    main(["average", "--output", str(tmp_path / "out.pt"), *files])
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert out["extra_state"]["averaged"] == [files[0], files[2]]
    assert capsys.readouterr().out.endswith(f"counted once, being copies of these: {files[1]}\n")
    other = save(tmp_path / "other" / "checkpoint2.pt", 20)  # another run, as far
    renamed = [save(tmp_path / f"seed{seed}.pt", 20) for seed in (1, 2)]
    assert len(select_checkpoints([folder / "checkpoint2.pt", other, *renamed])) == 4


class Malicious:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


BAD = {
    "there is no checkpoint": ["none.pt"],
    "is a folder; add --last N or --best N": ["run"],
    "one folder of checkpoints, not 2 and run other": ["run", "other", "--last", "2"],
    "a number from 1 and one folder": ["run", "--last", "0"],
    "found checkpoint1.pt, checkpoint2.pt, checkpoint_last.pt": ["run", "--last", "3"],
    "run has 2 checkpoints to choose from, not 3": ["run", "--best", "3"],
    "--by epoch is for --last;": ["run", "--best", "1", "--by", "epoch"],
    "--at-most is for --last and --best;": ["run/checkpoint1.pt", "--at-most"],
    "looked for checkpoint_<epoch>_<update>.pt;": ["run", "--last", "1", "--by", "update"],
    "found no .pt file": ["empty", "--best", "1"],
    "of epochs and of updates; add --by epoch or update": ["both", "--last", "1"],
    "judged by bleu and by loss": ["metrics", "--best", "1"],
    "w is (2, 3) in run/checkpoint1.pt and (2, 4) in wide.pt": ["run/checkpoint1.pt", "wide.pt"],
    "v is absent in run/checkpoint1.pt and (1,) in": ["run/checkpoint1.pt", "more.pt"],
    "the architecture is transformer in": ["run/checkpoint1.pt", "dna.pt"],
    "encoder_normaliser is softmax in softmax.pt and doubly": ["softmax.pt", "doubly.pt"],
    "damaged.pt cannot be read": ["run/checkpoint1.pt", "damaged.pt"],
    "no fairseq checkpoint": ["run/checkpoint1.pt", "tensor.pt"],
    "malicious.pt asks for posix.mkdir": ["run/checkpoint1.pt", "malicious.pt"],
    "nowhere is not a folder": ["run/checkpoint1.pt", "--output", "nowhere/out.pt"],
    "other exists already": ["run/checkpoint1.pt", "--output", "other", "--force"],
    "dna.pt exists already": ["run/checkpoint1.pt", "--output", "dna.pt"],
}


@pytest.mark.parametrize("said", BAD)
def test_what_cannot_be_averaged_is_refused(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n in (1, 2):
        save(tmp_path / "run" / f"checkpoint{n}.pt", n, float(n))
    save(tmp_path / "run" / "checkpoint_last.pt", 2, 2.0)
    save(tmp_path / "both" / "checkpoint1.pt")
    save(tmp_path / "both" / "checkpoint_2_15.pt")
    save(tmp_path / "metrics" / "checkpoint1.pt", 1, 1.0, metric="bleu")
    save(tmp_path / "metrics" / "checkpoint2.pt", 2, 1.0)
    save(tmp_path / "wide.pt", 3, model={"w": torch.ones(2, 4)})
    save(tmp_path / "more.pt", 3, model={"w": torch.ones(2, 3), "v": torch.ones(1)})
    save(tmp_path / "dna.pt", 3, _name="transformer_dna")
    for normaliser in ("softmax", "doubly"):
        save(tmp_path / f"{normaliser}.pt", encoder_normaliser=normaliser)
    (tmp_path / "damaged.pt").write_bytes((tmp_path / "wide.pt").read_bytes()[:700])
    torch.save(torch.ones(2), "tensor.pt")
    torch.save({"model": Malicious(), "optimizer_history": []}, "malicious.pt")
    for name in ("other", "empty"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=re.escape(said)):
        main(["average", "--output", "out.pt", *BAD[said]])
    assert sorted(tmp_path.rglob("*")) == before


def test_an_average_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(state, file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    one = save(tmp_path / "one.pt")
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UsageError, match="No space left"):
        main(["average", "--output", str(tmp_path / "out.pt"), str(one)])
    assert list(tmp_path.iterdir()) == [one]


def test_an_older_checkpoint_has_its_settings_in_args(tmp_path):
    files = [tmp_path / f"{heads}.pt" for heads in (2, 4)]
    for n, (file, heads) in enumerate(zip(files, (2, 4), strict=True)):
        args = Namespace(arch="transformer", encoder_attention_heads=heads)
        history = [{"num_updates": n}]
        state = {"args": args, "model": {"w": torch.ones(1)}, "optimizer_history": history}
        torch.save(state, file)
    assert average_checkpoints(files[:1])["model"]["w"] == 1
    with pytest.raises(UsageError, match="encoder_attention_heads is 2 in"):
        average_checkpoints(files)


TRAINED = {
    "common": {"seed": 1},
    "model": {"_name": "transformer"},
    "task": {"_name": "translation", "data": "/mine/data-bin/a:/mine/b"},
    "criterion": {"_name": "cross_entropy"},
    "optimization": {"lr": [0.1], "max_update": 10},
}


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("common", {"seed": 2}, "the seed 1, {}/2.pt of one with 2; give checkpoints of one train"),
        (
            "task",
            {"data": "/mine/data-bin/c:/mine/b"},
            "the data /mine/data-bin/a:/mine/b, {}/2.pt",
        ),
        ("criterion", {"_name": "other"}, "the criterion cross_entropy, {}/2.pt of one with other"),
        ("optimization", {"lr": [0.2]}, "the lr [0.1], {}/2.pt of one with [0.2]"),
        ("optimization", {"max_update": 20}, ""),  # as a training is continued
        ("task", {"data": "/moved/a:/moved/b"}, ""),
    ],
)
def test_checkpoints_of_several_trainings_are_not_averaged_unasked(part, changes, said, tmp_path):
    files = [tmp_path / "1.pt", tmp_path / "2.pt"]
    for n, cfg in enumerate((TRAINED, TRAINED | {part: TRAINED[part] | changes})):
        state = {"cfg": cfg, "model": {"w": torch.full((1,), 2.0 * n)}}
        torch.save(state | {"optimizer_history": [{"num_updates": n}]}, files[n])
    line = ["average", *map(str, files), "--output", str(tmp_path / "out.pt")]
    if said:
        with pytest.raises(UsageError, match=re.escape(said.format(tmp_path))):
            main(line)
        assert sorted(tmp_path.iterdir()) == files
        line.append("--different-trainings")
    main(line)
    assert torch.load(tmp_path / "out.pt")["model"]["w"] == 1
