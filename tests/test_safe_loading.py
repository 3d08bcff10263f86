"""Whatever a stranger's checkpoint holds, loading it through fairseq runs none of it."""

import argparse
import ast
import io
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLUGIN
from conftest import fairseq as run_fairseq
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils

from fairseq_ext import safe_loading
from fairseq_ext.errors import UsageError


class Call:
    """Pickled as a call of `function(*args)` (then a `state` for the result)."""

    def __init__(self, function, *args, state=None):
        self.call = (function, args, state) if state else (function, args)

    def __reduce__(self):
        return self.call


class Built:
    """Pickled as an empty object and a state, which runs when it is set."""

    def __init__(self, path):
        self.ran = str(path)

    def __setstate__(self, state):
        Path(state["ran"]).touch()


def checkpoint(**changes):
    """The least that fairseq takes for a checkpoint."""
    history = {"criterion_name": "C", "optimizer_name": "O", "num_updates": 7}
    state = {
        "args": argparse.Namespace(task="translation", arch="transformer"),
        "model": OrderedDict(w=torch.arange(3.0)),
        "optimizer_history": [{**history, "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}, "ema": {"w": torch.ones(3)}},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.ones(3)}}},
    }
    return {**state, **changes}


def touch(path):
    return Call(os.system, f"touch {path}")


PAYLOADS = {
    "top level": lambda ran: touch(ran),
    "weights": lambda ran: checkpoint(model={"w": touch(ran)}),
    "Namespace": lambda ran: checkpoint(args=argparse.Namespace(arch=touch(ran))),
    "cfg": lambda ran: checkpoint(cfg={"model": {"_name": [touch(ran)]}}),
    "optimizer": lambda ran: checkpoint(last_optimizer_state={"state": {0: touch(ran)}}),
    "eval": lambda ran: checkpoint(extra=Call(eval, f"open({str(ran)!r}, 'w')")),
    "exec": lambda ran: checkpoint(extra=Call(exec, f"open({str(ran)!r}, 'w')")),
    "open": lambda ran: checkpoint(extra=Call(open, str(ran), "w")),
    "key": lambda ran: checkpoint(extra={Call(os.mkdir, str(ran)): 1}),
    "setstate": lambda ran: checkpoint(extra=Built(ran)),
    "object array": lambda ran: checkpoint(extra=np.array([touch(ran)], dtype=object)),
}


@pytest.fixture(params=PAYLOADS)
def payload(request, tmp_path):
    """(what to save, the file that appears if it runs)."""
    return PAYLOADS[request.param](tmp_path / "ran"), tmp_path / "ran"


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_no_payload_runs(payload, zipped, tmp_path, monkeypatch):
    state, ran = payload
    path = tmp_path / "evil.pt"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    for load in checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.load_ema_from_checkpoint:
        with pytest.raises(UsageError, match=r"evil\.pt asks for \S+.*, which could run code"):
            load(str(path))
    with path.open("rb") as file, pytest.raises(UsageError):
        checkpoint_utils.torch.load(file, weights_only=False)  # as upstream fairseq calls it
    with pytest.raises(UsageError, match="sent by the first process asks for"):
        distributed_utils.torch.load(io.BytesIO(path.read_bytes()), map_location="cpu")
    assert not ran.exists()


def test_each_payload_runs_in_an_ordinary_load(payload, tmp_path):
    state, ran = payload
    torch.save(state, tmp_path / "evil.pt")
    torch.load(tmp_path / "evil.pt", weights_only=False)
    assert ran.exists()


def test_generate_refuses_with_one_sentence(tmp_path):
    for language in "de", "en":
        (tmp_path / f"dict.{language}.txt").write_text("a 1\n")
    torch.save(checkpoint(args=argparse.Namespace(arch=touch(tmp_path / "ran"))), tmp_path / "x.pt")
    flags = ["--user-dir", PLUGIN, "--cpu", "-s", "de", "-t", "en", "--path", tmp_path / "x.pt"]
    done = run_fairseq("generate", tmp_path, *flags, check=False)
    errors = [line for line in done.stderr.split("\n") if line.startswith("error: ")]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert len(errors) == 1 and f"{tmp_path / 'x.pt'} asks for posix.system" in errors[0]
    assert not (tmp_path / "ran").exists()


def dtype(code, order="<", inner=None):
    return Call(np.dtype, code, False, True, state=(3, order, inner, None, None, 8, 1, 0))


def array(dtype, data=b"A" * 8):
    return Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (1,), dtype, False, data))


RECONSTRUCT = np.empty(0).__reduce__()[0]
POINTERS = {
    "list": np.array([None], dtype=object),
    "buffer": Call(np.ndarray, (1,), "O", b"A" * 8),
    "objects": array(dtype("O8", "|")),
    "subarray": array(dtype("i8", inner=(np.dtype("O"), (1,)))),
    "record": array(dtype("i8", "O,")),
}


@pytest.mark.parametrize("kind", POINTERS)
def test_numpy_makes_no_pointers_of_the_bytes_of_a_file(kind, tmp_path):
    torch.save(checkpoint(extra=POINTERS[kind]), tmp_path / "evil.pt")
    try:
        extra = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "evil.pt"))["extra"]
    except UsageError:
        return
    assert not extra.dtype.hasobject and (
        extra.size == 0 or extra.item() == int.from_bytes(b"A" * 8)
    )


def test_an_array_is_filled_once():
    number, array = safe_loading._Dtype("i8"), safe_loading._Array()
    number.__setstate__((3, "<"))
    array.__setstate__((1, (1,), number, False, b"A" * 8))
    with pytest.raises(pickle.UnpicklingError):
        array.__setstate__((1, (2,), number, False, b"A" * 16))


def rewrite(path, change):
    """Apply `change` to the pickle inside a checkpoint."""
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in entries.items():
            new.writestr(name, change(data) if name.endswith("data.pkl") else data)


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_arrays_load_from_both_numpys_and_are_saved_as_plain_ones(core, tmp_path):
    arrays = [np.arange(6).reshape(2, 3), np.array([0.5, -1], "f4"), np.array(True), np.array([])]
    arrays += [np.asfortranarray(np.ones((2, 3))), np.array([1, 2], ">i4"), np.float64(1.5)]
    path = tmp_path / "numpy.pt"
    values = arrays
    for _ in "loaded", "saved and loaded again":
        torch.save(checkpoint(extra=values), path)
        assert b"fairseq_ext" not in path.read_bytes()
        rewrite(path, lambda data: re.sub(rb"numpy\._?core", core.encode(), data))
        values = checkpoint_utils.load_checkpoint_to_cpu(str(path))["extra"]
        for array, copy in zip(arrays, values, strict=True):
            assert array.dtype.newbyteorder("=") == copy.dtype and np.array_equal(array, copy)


def test_a_real_checkpoint_loads(tmp_path):
    torch.save(checkpoint(), tmp_path / "good.pt")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "good.pt"))
    assert state["args"].arch == "transformer" and state["cfg"].task._name == "translation"
    assert torch.equal(state["model"]["w"], torch.arange(3.0))
    ema = checkpoint_utils.load_ema_from_checkpoint(str(tmp_path / "good.pt"))
    assert torch.equal(ema["model"]["w"], torch.ones(3))


BROKEN = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("what is this\n"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-900]),
    "random": lambda path: path.write_bytes(np.random.default_rng(1).bytes(999)),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"model": 1})),
    "tensor": lambda path: torch.save(torch.ones(2), path),
    "list": lambda path: torch.save(["model"], path),
    "state dict": lambda path: torch.save({"w": torch.ones(2)}, path),
    "other project": lambda path: torch.save({"model": {"w": torch.ones(2)}}, path),
    "torchscript": lambda path: torch.jit.save(torch.jit.script(torch.nn.Identity()), path),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_checkpoint_is_refused_in_one_sentence(kind, tmp_path):
    path = tmp_path / "broken.pt"
    torch.save(checkpoint(), path)
    BROKEN[kind](path)
    with pytest.raises(
        UsageError, match=r"broken\.pt (cannot be read|is a PyTorch file)"
    ) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert "\n" not in str(caught.value)


def test_torch_load_outside_fairseq_is_left_alone(tmp_path):
    class Mine: ...

    before = set(torch.serialization.get_safe_globals())
    with torch.serialization.safe_globals([Mine]):
        test_a_real_checkpoint_loads(tmp_path)
        assert set(torch.serialization.get_safe_globals()) == {*before, Mine}
    assert torch.load.__module__ == "torch.serialization"
    with pytest.raises(pickle.UnpicklingError, match="argparse.Namespace"):
        torch.load(tmp_path / "good.pt", weights_only=True)


def test_threads_do_not_disturb_each_other(tmp_path):
    torch.save(checkpoint(extra=np.arange(3)), tmp_path / "good.pt")

    def read(_):
        with (tmp_path / "good.pt").open("rb") as file:
            return checkpoint_utils.torch.load(file)["extra"].tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(200))) == 200 * [[0, 1, 2]]


@pytest.mark.parametrize(
    "text",
    [
        "[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)]",
        " (0.9, 0.98) ",
        "{'a': [1, None], 'b': -2.5}",
        "[(8, 3 * 2)]",
        "True",
        "-1e-8",
        "0.1,0.2",
    ],
)
def test_settings_are_read_as_eval_reads_them(text):
    assert safe_loading.parse_literal(text) == eval(text.strip())


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch ran')",
        "[().__class__]",
        "[1] * open('ran', 'w').write('')",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "f'{1}'",
        "name",
        "{**{}}",
        "2 ** 9",
        "[1] + (",
        "",
        "'a' + 1",
        "(" * 9999,
    ],
)
def test_anything_else_in_a_setting_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is no plain value"):
        safe_loading.parse_literal(text)
    assert not any(tmp_path.iterdir())


def test_code_in_the_settings_of_a_checkpoint_does_not_run(tmp_path):
    code = f"__import__('os').system('touch {tmp_path / 'ran'}')"
    args = argparse.Namespace(arch="fconv", task="translation", data=str(tmp_path))
    args.source_lang, args.target_lang = "de", "en"
    args.encoder_layers = args.decoder_layers = args.decoder_attention = code
    args.encoder_embed_path = args.decoder_embed_path = args.share_input_output_embed = None
    args.encoder_embed_dim = args.decoder_embed_dim = args.decoder_out_embed_dim = 8
    args.dropout = args.max_source_positions = args.max_target_positions = 9
    for language in "de", "en":
        (tmp_path / f"dict.{language}.txt").write_text("a 1\n")
    torch.save(checkpoint(args=args), tmp_path / "x.pt")
    with pytest.raises(UsageError, match="the setting .*__import__"):
        checkpoint_utils.load_model_ensemble([str(tmp_path / "x.pt")])
    assert not (tmp_path / "ran").exists()


def test_literal_refuses_what_is_no_text_as_eval_does():
    for value in True, 3, ast.parse("1", mode="eval"):
        with pytest.raises(TypeError):
            safe_loading.parse_literal(value)
