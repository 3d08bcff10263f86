"""Graphs for torch alone and ONNX Runtime alone: the outputs of the model, with all sizes."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import slow_but_first
from code_folders import save_model
from mechanism_cases import list_cases

from fairseq_ext import extras
from fairseq_ext.attention.sites import SITES
from fairseq_ext.attention.slots import SLOTS
from fairseq_ext.cli import main
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import export_graph
from fairseq_ext.models.architectures import FAMILIES
from fairseq_ext.models.task_heads import Linear, Product, SentenceHead, pool_first
from fairseq_ext.testing.mechanisms import build_tiny_model

TASK = Namespace(cfg=Namespace())
PAD, EOS = 1, 2
SIDES = ["left", "right"]


def list_models() -> dict[str, tuple[str, dict]]:
    """Return a model for each part of each slot, wherever it can stand, and more."""
    models = {}
    for case in list_cases():
        slot, part = case.key
        if slot in SLOTS and part in SLOTS[slot].parts:
            kind = SLOTS[slot].parts[part].default()
            sites = SLOTS[slot].sites
            if getattr(kind, "in_sequence", False):
                sites = sites[:2]
            if any(getattr(kind, name, False) for name in ("across_queries", "encoder_only")):
                sites = sites[:1]
            named = dict.fromkeys(map(SLOTS[slot].name_option, sites or ("",)), part)
            more = {"head_gate_sites": ",".join(SITES)} if slot == "head_gate" else {}
            models[f"{slot} {part}"] = {**named, **case.options[0], **more}
        models |= case.models
    models |= {
        "shared keys": {f"{site}_kv_heads": 2 for site in SITES},
        "today": {"norm": "rms", "ffn": "swiglu", "no_biases": True, "qk_norm": True},
        "pruned heads": {"encoder_heads_left": "1/0", "decoder_heads_left": "3/4"},
        "adaptive softmax": {"adaptive_softmax_cutoff": [10, 20]},
        "few cross layers": {"cross_layers": "1", "share_encoder_decoder_layers": True},
    }
    families = {
        f"{family}_{name}_tiny": (f"{family}_{name}_tiny", {})
        for family in ("roberta", "deberta", "transformer_lm")
        for name in FAMILIES[family].mechanisms
    }
    return families | {name: ("transformer_una_tiny", given) for name, given in models.items()}


MODELS = list_models()


def build(name: str, **more):
    architecture, options = MODELS[name]
    roles = {"encoder_layers": 4} if "/" in str(options.get("encoder_roles")) else {}
    return build_tiny_model(architecture, **options, **roles, **more)


def pad_rows(rows: int, length: int, side: str) -> torch.Tensor:
    """Tokens [B, S], of which each row is one shorter than the one before it."""
    tokens = torch.randint(4, 40, (rows, length), generator=torch.Generator().manual_seed(rows))
    for number, row in enumerate(tokens):
        row[slice(0, number) if side == "left" else slice(length - number, None)] = PAD
    return tokens


def check_encoder(model, run) -> None:
    paired = hasattr(model, "decoder")
    for rows, length, side in ((1, 1, "left"), (1, 6, "left"), (3, 9, "left"), (5, 17, "right")):
        tokens = pad_rows(rows, length, side)
        if paired:
            encoded = model.encoder(tokens)
            expected = encoded["encoder_out"][0].transpose(0, 1)
        else:
            expected = model(tokens, features_only=True)[0]
        real = tokens.ne(PAD)
        found = run({"tokens": tokens})
        torch.testing.assert_close(found["features"][real], expected[real], **run.tolerance)


def decode(model, run_step, memory, start) -> torch.Tensor:
    """Log-probabilities [B, T, V] of tokens [B, T], one step after the other."""
    caches = {}
    graph = run_step.graph
    for name, port in graph["inputs"].items():
        if name.startswith(("key", "value")):
            _, heads, _, width = port["shape"]
            caches[name] = torch.zeros(start.size(0), heads, 0, width)
    steps = []
    for number in range(start.size(1)):
        out = run_step({"token": start[:, number : number + 1], **memory, **caches})
        steps.append(out.pop("log_probabilities"))
        caches = {name.removeprefix("next_"): x for name, x in out.items()}
    return torch.stack(steps, 1)


def check_decoder(model, run_encoder, run_step) -> None:
    for rows, length, side in ((1, 1, "left"), (3, 9, "left"), (4, 5, "right")):
        target = torch.randint(4, 40, (rows, 7), generator=torch.Generator().manual_seed(2))
        target[:, 0] = EOS
        memory = {}
        if run_encoder is None:
            output = model(target)
        else:
            source = pad_rows(rows, length, side)
            output = model(source, None, target)
            memory = {n: x for n, x in run_encoder({"tokens": source}).items() if n != "features"}
            memory = {n: x for n, x in memory.items() if n in run_step.graph["inputs"]}
        expected = model.decoder.get_normalized_probs(output, True, None)
        found = decode(model, run_step, memory, target)
        torch.testing.assert_close(found, expected, **run_step.tolerance)


def read_graph(folder: Path, name: str, kind: str):
    """A function that runs a graph of a folder: tensors by name -> tensors by name."""
    graph = json.loads((folder / "graphs.json").read_text())["graphs"][name]
    path = folder / graph["file"]
    if kind == "torch":
        module = torch.export.load(path).module()
        tolerance = {"rtol": 0, "atol": 1e-5}

        def run(given):
            return module(given)
    else:
        session = import_module("onnxruntime").InferenceSession(str(path))
        tolerance = {"rtol": 0, "atol": 1e-4}

        def run(given):
            arrays = session.run(None, {name: x.numpy() for name, x in given.items()})
            return dict(zip(graph["outputs"], map(torch.from_numpy, arrays), strict=True))

    run.graph, run.tolerance = graph, tolerance
    return run


@torch.no_grad()
def check_model(name: str, kind: str, folder: Path) -> None:
    made = export_graph.export(build(name), TASK, kind, True, "x.pt has it", folder)
    model = build(name)
    runs = {file.partition(".")[0]: None for file in made}
    runs = {part: read_graph(folder, part, kind) for part in runs}
    if "encoder" in runs:
        check_encoder(model, runs["encoder"])
    if "decoder_step" in runs:
        check_decoder(model, runs.get("encoder"), runs["decoder_step"])


# a graph of each takes 8 minutes together
TRACED = list(MODELS)[:: 1 if os.environ.get("FAIRSEQ_EXT_EVERY_GRAPH") else 4]


@pytest.mark.parametrize("name", slow_but_first(TRACED))
def test_graphs_of_torch_compute_what_models_do(name, tmp_path):
    check_model(name, "torch", tmp_path)


ONNX = ["head_mixer differential", "transformer_lm_una_tiny", "deberta_una_tiny"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONNX)
def test_graphs_of_onnx_compute_what_models_do(name, tmp_path):
    check_model(name, "onnx", tmp_path)


@torch.no_grad()
def test_rows_may_be_pairs_and_tokens_have_segments(tmp_path):
    model = build_tiny_model("roberta_una_tiny", segments=2, encoder_layers=1)
    model.register_classification_head("order", 2)
    model.attach(SentenceHead(pool_first, Product(32, 8)))
    made = export_graph.export(model, TASK, "torch", True, "x.pt", tmp_path)
    assert made == ["encoder.pt2"]
    run = read_graph(tmp_path, "encoder", "torch")
    assert run.graph["outputs"]["logits"]["shape"] == ["batch / 2", 1]
    assert run.graph["outputs"]["logits_order"]["shape"] == ["batch", 2]
    tokens = pad_rows(6, 8, "right")
    given = {"tokens": tokens, "segments": torch.arange(8).gt(3).long().repeat(6, 1)}
    expected, extra = model(tokens, segments=given["segments"], task_head=True)
    found = run(given)
    torch.testing.assert_close(found["logits"], expected, rtol=0, atol=1e-5)
    real = tokens.ne(PAD)
    torch.testing.assert_close(found["features"][real], extra["features"][real], rtol=0, atol=1e-5)


def save(architecture: str, task: dict, folder: Path, **options):
    """Return a model, and its checkpoint as a training leaves it."""
    model, path = save_model(architecture, folder, **options)
    state = torch.load(path, weights_only=True)
    state["cfg"]["task"] = {"data": str(folder), **task}
    state["optimizer_history"] = [
        {"num_updates": 0, "optimizer_name": "", "lr_scheduler_state": {}}
    ]
    state["extra_state"] = {"train_iterator": {"epoch": 1}}
    torch.save(state, path)
    return model, path


LAYER = {"encoder_layers": 1}
MASKED_LM = {"_name": "masked_lm", "tokens_per_sample": 64}
TRANSLATION = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
TRANSLATE = """
import json, sys
KIND = sys.argv[1]
about = json.load(open("graphs/graphs.json"))["graphs"]
if KIND == "torch":
    import torch as numbers

    def read(name):
        return torch.export.load(f"graphs/{about[name]['file']}").module()

    torch = numbers
else:
    import numpy as numbers, onnxruntime

    def read(name):
        session = onnxruntime.InferenceSession(f"graphs/{about[name]['file']}")
        names = [*about[name]["outputs"]]
        return lambda given: dict(zip(names, session.run(names, given)))

convert = numbers.tensor if KIND == "torch" else numbers.array
encoder, step = read("encoder"), read("decoder_step")
words = {name: ["<s>", "<pad>", "</s>", "<unk>"] for name in about}
for name, graph in about.items():
    words[name] += [line.split()[0] for line in open(f"graphs/{graph['dictionary']}")]
source = [[words["encoder"].index(word) for word in row.split()] for row in json.loads(sys.argv[2])]
memory = encoder({"tokens": convert(source)})
del memory["features"]
cache = {
    name: numbers.zeros((len(source), port["shape"][1], 0, port["shape"][3]), dtype=numbers.float32)
    for name, port in about["decoder_step"]["inputs"].items()
    if name.startswith(("key", "value"))
}
written = [[2] for _ in source]
for _ in range(6):
    token = convert([row[-1:] for row in written])
    cache = step({"token": token, **memory, **cache})
    for row, logs in zip(written, cache.pop("log_probabilities")):
        row.append(int(logs.argmax()))
    cache = {name.removeprefix("next_"): x for name, x in cache.items()}
print(json.dumps([" ".join(words["decoder_step"][n] for n in row[1:]) for row in written]))
print(*sorted({"fairseq", "fairseq_ext", "torch", "onnxruntime"} & {*sys.modules}))
"""


@torch.no_grad()
@pytest.mark.parametrize("kind", slow_but_first(["torch", "onnx"]))
def test_graphs_translate_without_us(kind, tmp_path, capsys):
    """In a process that imports torch, or ONNX Runtime, and nothing of ours."""
    options = {"encoder_normaliser": "doubly", **LAYER, "decoder_layers": 1}
    options |= {"decoder_normaliser": "sink"} if kind == "torch" else {}  # refused for ONNX
    model, path = save("transformer_una_tiny", TRANSLATION, tmp_path, **options)
    main(["export-graph", str(path), str(tmp_path / "graphs"), "--format", kind])
    suffix = "pt2" if kind == "torch" else "onnx"
    assert f"encoder.{suffix}, decoder_step.{suffix}" in capsys.readouterr().out
    source = ["<pad> <pad> w3 w4 </s>", "w7 w6 w5 w4 </s>", "<pad> w1 w2 w3 </s>"]
    command = [sys.executable, "-c", TRANSLATE, kind, json.dumps(source)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    said, modules = done.stdout.splitlines()
    assert modules.split() == (["torch"] if kind == "torch" else ["onnxruntime"])
    words = model.encoder.dictionary
    tokens = torch.tensor([[words.index(word) for word in row.split()] for row in source])
    target = torch.full((3, 1), EOS)
    for _ in range(6):
        logits, _ = model(tokens, None, target)
        target = torch.cat([target, logits[:, -1:].argmax(-1)], 1)
    symbols = model.decoder.dictionary.symbols
    assert json.loads(said) == [" ".join(symbols[n] for n in row[1:]) for row in target]


def test_what_an_encoder_writes_and_leaves_out(tmp_path):
    _, path = save("roberta_una_tiny", MASKED_LM, tmp_path, max_positions=64, **LAYER)
    main(["export-graph", str(path), str(tmp_path / "out"), "--features"])
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files == {"encoder.pt2", "graphs.json", "dict.txt"}
    about = json.loads((tmp_path / "out" / "graphs.json").read_text())
    assert about["sizes"] == {"batch": [1, None], "length": [1, 64]}
    encoder = about["graphs"]["encoder"]
    assert encoder["inputs"] == {"tokens": {"dtype": "int64", "shape": ["batch", "length"]}}
    assert encoder["outputs"] == {
        "features": {"dtype": "float32", "shape": ["batch", "length", 32]}
    }
    assert encoder["symbols"] == {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 43}


class Fixed(Linear):
    """A head that cannot be traced."""

    def forward(self, x, *padding):
        return super().forward(x) * float(x.sum())


REFUSED = {
    "--encoder-roles dependency, of which dependency need parses": (
        "roberta_una_tiny",
        {"encoder_roles": "dependency"},
    ),
    "--arch sentence_cnn": ("sentence_cnn", {}),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_has_no_graph_is_refused_at_the_start(says, tmp_path):
    name, options = REFUSED[says]
    with pytest.raises(UsageError, match=f"x.pt has {says}"):
        export_graph.check_options({"_name": name, "encoder_layers": 2, **options}, Path("x.pt"))


def test_what_cannot_be_traced_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(export_graph, "prepare", lambda model: model.attach(Fixed(32, 3)))
    options = {"encoder_normaliser": "doubly", **LAYER}
    _, path = save("roberta_una_tiny", MASKED_LM, tmp_path, max_positions=64, **options)
    with pytest.raises(UsageError, match="has --encoder-normaliser doubly, with which its encoder"):
        main(["export-graph", str(path), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists() and not [*tmp_path.glob(".*")]


def test_a_graph_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    model = build_tiny_model("roberta_una_tiny", encoder_layers=1)
    monkeypatch.setitem(
        export_graph.SAVE, "torch", lambda *_: lambda given: {"features": torch.zeros(4, 7, 32)}
    )
    with pytest.raises(UsageError, match="features differs by .* from the model's"):
        export_graph.export(model, TASK, "torch", False, "x.pt has it", tmp_path)


@pytest.mark.parametrize("name", export_graph.ONNX)
def test_packages_of_onnx_are_asked_for_at_the_start(name, tmp_path, monkeypatch):
    version = extras.metadata.version
    older = SimpleNamespace(
        version=lambda package: "0.1" if package == name else version(package),
        requires=lambda _: [f"{name}>=0.4; extra == 'onnx'"],
        PackageNotFoundError=extras.metadata.PackageNotFoundError,
    )
    command = ["export-graph", "x.pt", str(tmp_path / "out"), "--format", "onnx"]
    monkeypatch.setattr(extras, "metadata", older)
    with pytest.raises(UsageError, match=f"needs {name}>=0.4, and 0.1 is installed; pip install"):
        main(command)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"--format onnx needs {name}, which is not installed"):
        main(command)
