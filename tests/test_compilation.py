"""Graphs that torch.compile makes of models, and layers compiled by --compile."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from torch.utils import _triton

import fairseq_ext.registry  # noqa: F401
from fairseq_ext.commands import flags
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import distances
from fairseq_ext.models import compilation

sys.path.insert(0, str(ROOT / "benchmarks"))
import operations  # noqa: E402
import steps  # noqa: E402

QUICK = ["una", "dna", "ag"]
REST = [name for name in operations.list_translation(1) if name not in {"stock", *QUICK}]
FAMILIES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)]
VARIABLE = "FAIRSEQ_EXT_COMPILE"
NO_DROPOUT = ["--dropout", "0", "--attention-dropout", "0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("translation", "masked_lm")}
    for kind, folder in folders.items():
        operations.KINDS[kind][1](folder, operations.SYMBOLS, 1)
    return folders


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    """Run graphs as they are, and list them."""
    listed = []

    def backend(graph, inputs):
        listed.append(graph)
        return graph

    torch._dynamo.reset()
    compilation.compile_function.cache_clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setenv(VARIABLE, "")
    yield listed
    compilation.compile_function.cache_clear()
    torch._dynamo.reset()


def build(kind, name, folder, *more, layers=1):
    """Return a candidate with the parameters of one seed, and ragged batches."""
    args = SimpleNamespace(device="cpu", precision="fp32", seed=1, max_tokens=256)
    line = operations.KINDS[kind][0](layers)[name]
    torch.manual_seed(1)
    candidate = steps.build_candidate([str(folder), *line, *more], args)
    return candidate, steps.read_batches(candidate, 20)


def run_whole(kind, name, folder):
    """Run a compiled model on ragged batches, with the keywords of its criterion."""
    (cfg, task, model), batches = build(kind, name, folder)
    criterion = task.build_criterion(cfg.criterion)
    keywords = {}
    for part in getattr(criterion, "parts", ()):
        keywords |= part.keywords(0)
    compiled = torch.compile(model.train(), dynamic=True, fullgraph=kind == "translation")
    for turn, batch in enumerate(batches):
        inputs = dict(batch["net_input"])
        if kind == "masked_lm":
            length = 16 + turn % 16
            inputs["src_tokens"] = inputs["src_tokens"][:, :length]
            inputs["masked_tokens"] = batch["target"][:, :length].ne(1)
        output, _ = compiled(**inputs, **keywords)
        assert output.isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_translation_is_one_graph_for_all_lengths(name, data, graphs):
    """Without a break, which `fullgraph` would refuse."""
    run_whole("translation", name, data["translation"])
    assert len(graphs) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *REST[::3]])  # translation has them all
def test_masked_words_are_two_graphs_for_all_lengths(name, data, graphs):
    """Scores of masked tokens are as many as there are."""
    run_whole("masked_lm", name, data["masked_lm"])
    assert len(graphs) <= 2 * 2


@pytest.mark.parametrize("keys", [False, True])
def test_distances_of_a_graph_are_those_of_blocks(keys):
    torch.manual_seed(1)
    x, table = torch.randn(2, 3, 5, 4), torch.randn(3, 4, 9)
    scores = torch.randn(2, 3, 5, 5)
    found = distances._add_gathered(scores, x, table, keys)
    torch.testing.assert_close(found, distances.add_distances(scores.clone(), x, table, keys))


def train(name, folder, layers, batches=3):
    (_, _, model), read = candidate = build("translation", name, folder, *NO_DROPOUT, layers=layers)
    trainer = steps.build_trainer(candidate[0])
    for batch in read[:batches]:
        trainer.train_step([batch])
    return model


@pytest.mark.parametrize("name", ["ag", pytest.param("roles", marks=pytest.mark.slow)])
def test_compiled_layers_train_alike(name, data, graphs, monkeypatch):
    """Graphs are those of two classes of layers, however many layers there are."""
    plain = train(name, data["translation"], 3).state_dict()
    assert not graphs
    monkeypatch.setenv(VARIABLE, "1")
    model = train(name, data["translation"], 3)
    made = len(graphs)
    assert 2 <= made <= 2 * 2  # two classes, with padding and without
    assert model.state_dict().keys() == plain.keys()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, plain[key], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["una", "asa"])
def test_compiled_layers_translate_alike(name, data, graphs, monkeypatch):
    hypotheses = []
    for given in ("", "1"):
        monkeypatch.setenv(VARIABLE, given)
        (cfg, task, model), batches = build("translation", name, data["translation"])
        model.eval()
        generator = task.build_generator([model], cfg.generation)
        found = task.inference_step(generator, [model], batches[0])
        hypotheses.append([[(h["tokens"], h["positional_scores"]) for h in n] for n in found])
    assert graphs
    torch.testing.assert_close(*hypotheses, atol=1e-4, rtol=1e-4)


@pytest.fixture
def given(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")


@pytest.mark.parametrize(
    ("owner", "name", "value", "says"),
    [
        (torch, "__version__", "2.6.0+cpu", r"needs torch 2.7 or newer, and this is 2.6.0\+cpu"),
        (compilation.shutil, "which", lambda name: None, "needs a GPU or a C.. compiler, .* no "),
        (torch.cuda, "is_available", lambda: True, "needs Triton on a GPU"),
    ],
)
def test_what_cannot_be_compiled_is_refused(owner, name, value, says, given, monkeypatch):
    """When flags are read, and when a model is built."""
    monkeypatch.setattr(_triton, "has_triton", lambda: False)
    monkeypatch.setattr(owner, name, value)
    for begin in (compilation.is_compiled, lambda: flags._parse(lambda: SimpleNamespace())):
        with pytest.raises(UsageError, match=f"^--compile {says}"):
            begin()


def test_only_our_models_are_compiled(given, data):
    (cfg, task, model), _ = build("translation", "stock", data["translation"])
    with pytest.raises(UsageError, match="^--compile compiles the layers of our models, and this"):
        steps.build_trainer(steps.Candidate(cfg, task, model))
