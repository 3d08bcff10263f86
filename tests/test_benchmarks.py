"""The benchmarks: their statistics on made-up timings, and a tiny run of each."""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, train

sys.path.insert(0, str(ROOT / "benchmarks"))
import alternatives  # noqa: E402
import asa  # noqa: E402
import attention  # noqa: E402
import authors  # noqa: E402
import deberta  # noqa: E402
import finetuning  # noqa: E402
import growth  # noqa: E402
import measure  # noqa: E402
import pretraining  # noqa: E402
import serving  # noqa: E402
import steps  # noqa: E402
import stock  # noqa: E402
import training  # noqa: E402
from measure import AGAIN, Aim, Quiet, Ratio, Row, Table  # noqa: E402

from fairseq_ext.errors import UsageError  # noqa: E402
from fairseq_ext.models import task_heads  # noqa: E402

SCRIPTS = {
    module.__name__: module
    for module in (
        *(alternatives, asa, attention, authors, deberta, finetuning, growth),
        *(pretraining, serving, training),
    )
}
QUIET = Quiet(deviation=0.03, spread=0.1)


# Statistics.


def test_ratios_are_taken_within_a_round():
    measured = {"peer": [1.0, 2.0, 4.0, 8.0, 16.0], "ours": [1.1, 2.4, 4.4, 9.6, 24.0]}
    row = measure.compare("x", measured, "peer", 1e3)
    assert row.peer == 4000
    assert row.ratios.keys() == {"ours"}
    assert row.ratios["ours"] == pytest.approx((1.1, 1.2, 1.2))


def test_interleaved():
    """Every candidate once a round, in changing order; work shorter than LEAST is repeated."""
    now, ran = 0.0, []

    def work(name, seconds):
        def run(turn):
            nonlocal now
            now += seconds
            ran.append((turn, name))

        return run

    candidates = {"peer": work("peer", measure.LEAST / 3.5), "ours": work("ours", measure.LEAST)}
    seconds = measure.interleave(candidates, "peer", 8, lambda: now, 1, "x")
    assert seconds["peer"] == pytest.approx([measure.LEAST / 3.5] * 8)
    assert seconds["ours"] == pytest.approx([measure.LEAST] * 8)
    rounds = {turn: [name for each, name in ran if each == turn] for turn, _ in ran}
    assert list(rounds) == list(range(-measure.WARMUP, 8))
    assert sorted(rounds[0]) == ["ours"] * 4 + ["peer"] * 4
    assert {order[0] for order in rounds.values()} == {"ours", "peer"}


def tables(again, **ours):
    """A table of one row `x`, and one of memory, which has no AGAIN."""
    ratios = {AGAIN: Ratio(*again), **{name: Ratio(m, m, m) for name, m in ours.items()}}
    memory = Row("memory", 26.0, {"doubly": Ratio(1.5, 1.5, 1.5)})
    return [
        Table("Time", "SDPA", "ms", [Row("x", 12.5, ratios)]),
        Table("Memory", "SDPA", "MiB", [memory]),
    ]


AIMS = [
    Aim("x", "doubly", 1.3),
    Aim("x", "hybrid", 2.0),
    Aim("memory", "doubly", 3.0),
    Aim("absent", "doubly", 1.0),
    Aim("x", "absent", 1.0),
]


def test_verdict():
    lines, code = measure.verdict(tables((0.99, 1.01, 1.02), doubly=1.3, hybrid=2.01), AIMS, QUIET)
    assert code == 0
    assert [line.split(",")[0] for line in lines] == [
        "- met: doubly at x is 1.300",
        "- missed: hybrid at x is 2.010",
        "- met: doubly at memory is 1.500",
    ]


@pytest.mark.parametrize("again", [(1.0, 1.04, 1.05), (0.95, 0.96, 0.99), (0.94, 1.0, 1.05)])
def test_no_verdict_with_noise(again):
    lines, code = measure.verdict(tables(again, doubly=1.0), AIMS, QUIET)
    assert code == measure.TOO_NOISY == 3
    assert len(lines) == 1
    assert "too noisy at x (" in lines[0]


def test_table():
    rows = [
        Row("32", 1.0, {"a": Ratio(0.9, 1, 1.1), "b": Ratio(2, 2, 2)}),
        Row("64", 2000.0, {"a": Ratio(1, 1, 1)}),
    ]
    assert Table("Time", "SDPA", "ms", rows).markdown().split("\n") == [
        "### Time",
        "",
        "|  | SDPA, ms | a | b |",
        "| --- | ---: | ---: | ---: |",
        "| 32 | 1 | 1.000 [0.900, 1.100] | 2.000 |",
        "| 64 | 2,000 | 1.000 | – |",
    ]


def test_extra_memory_counts_what_is_freed_again():
    code = (
        "import measure; print(measure.extra_memory(lambda: bytearray(100 << 20) and None, 'cpu'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True
    )
    assert float(done.stdout) == pytest.approx(100, abs=5), done.stderr


# Candidates.


@pytest.mark.parametrize("padding", [0.0, 0.3])
def test_forms_of_one_attention_agree(padding):
    torch.manual_seed(1)
    given = argparse.Namespace(scores=4 * 8 * 20**2, device="cpu", dtype="float64", padding=padding)
    problem = attention.build_problem(20, given)
    assert problem.qkv[0].shape == (4, 8, 20, attention.WIDTH)
    outs = {name: build(problem)[0]() for name, build in attention.CANDIDATES.items()}
    real = torch.ones(4, 1, 20, 1, dtype=torch.bool)
    if padding:
        real = ~problem.context.key_padding[:, None, :, None]
        assert 1 - real.double().mean() == pytest.approx(padding, abs=0.02)
    agreeing = [
        ("softmax", "SDPA"),
        ("talking", "SDPA"),
        ("literal DNA", "doubly"),
        ("log DNA", "doubly"),
    ]
    for name, like in agreeing:
        torch.testing.assert_close(outs[name] * real, outs[like] * real)
    torch.testing.assert_close(outs["conv1d"] * real, outs["gaussian"] * real, atol=1e-6, rtol=0)
    assert not torch.allclose(outs["doubly"] * real, outs["SDPA"] * real, atol=1e-3)


def test_what_does_not_fit_on_a_gpu():
    def full(_):
        raise torch.OutOfMemoryError

    assert not attention.fits(full)
    assert attention.fits(lambda _: None)


def test_candidates_differ_from_their_peer_in_one_thing(tmp_path):
    """Parameters are the same: guidance is of the criterion, Gaussian heads lack projections."""
    training.write_synthetic(tmp_path, 50, 1)
    given = argparse.Namespace(max_tokens=128, seed=1, device="cpu", precision="fp32")
    built = training.build("una", "training", "tiny", tmp_path, given)
    una, states = built["una"], {name: each.model.state_dict() for name, each in built.items()}
    for name in (AGAIN, "ag"):
        assert type(built[name].model) is type(una.model)
        torch.testing.assert_close(states[name], states["una"])
    criterions = {name: each.cfg.criterion._name for name, each in built.items()}
    assert criterions.pop("ag") == f"{criterions['una']}_ag"
    assert len(set(criterions.values())) == 1
    missing = states["una"].keys() - states["gaussian"].keys()
    assert missing and all("self_attn" in key and re.search("[qk]_proj", key) for key in missing)
    shared = {key: states["una"][key] for key in states["gaussian"]}
    torch.testing.assert_close(states["gaussian"], shared)


def test_layers_of_one_candidate_are_compiled(tmp_path):
    training.write_synthetic(tmp_path, 50, 1)
    given = argparse.Namespace(max_tokens=128, seed=1, device="cpu", precision="fp32")
    built = training.build_compiled("una", "tiny", tmp_path, given)
    for name, each in built.items():
        assert each.model.encoder.layers[0].compiled == (name == training.COMPILED)
    assert "FAIRSEQ_EXT_COMPILE" not in os.environ


def test_candidates_in_pretraining(tmp_path):
    """Parameters are the stock ones; HNA has its own besides."""
    pretraining.write_synthetic(tmp_path, 50, 1)
    given = argparse.Namespace(
        max_tokens=128, seed=1, device="cpu", precision="fp32", dropout_free=True
    )
    built = pretraining.build("roberta", "tiny", 32, tmp_path, given)
    states = {name: each.model.state_dict() for name, each in built.items()}
    stock = states["roberta"]
    for name, each in built.items():
        torch.testing.assert_close({key: states[name][key] for key in stock}, stock)
        more = states[name].keys() - stock.keys()
        assert bool(more) == (name == "hna") and all(key.endswith(".offset") for key in more)
        assert each.cfg.model.attention_dropout == 0 < each.cfg.model.dropout
    archs = [type(built[name].model).__name__ for name in ("una", "dna", "hna")]
    assert archs == ["RobertaUna12", "RobertaDna12", "RobertaHna12"]
    batch = steps.read_batches(built["roberta"], 1)[0]
    assert batch["net_input"]["src_tokens"].shape == (4, 32)
    assert steps.tokens_of(batch) == 128
    guided = pretraining.build("una", "tiny", 32, tmp_path, given)["ag"]
    assert guided.cfg.criterion._name == "masked_lm_ag"
    assert type(guided.model) is type(built["una"].model)


@pytest.mark.slow
def test_candidates_in_finetuning(tmp_path):
    """They share the encoder's parameters, and differ in blocks of attention alone."""
    finetuning.write_synthetic(tmp_path, 50, 1)
    given = argparse.Namespace(max_tokens=256, seed=1, device="cpu", precision="fp32")
    for task, blocks in (("sentiment", 2), ("paraphrase", 1), ("similarity", 3)):
        built = finetuning.build(task, "frozen", "tiny", tmp_path, given)
        assert list(built) == ["mean", "again", "first", "attention"]
        states = {name: each.model.state_dict() for name, each in built.items()}
        for state in states.values():
            shared = {key: x for key, x in state.items() if "pooling" not in key}
            torch.testing.assert_close(shared, states["mean"])
        heads = {name: each.model.task_head for name, each in built.items()}
        assert len(heads["attention"].pooling.blocks) == blocks
        assert heads["first"].pooling is task_heads.pool_first
        trained = [n for n, p in built["attention"].model.named_parameters() if p.requires_grad]
        assert trained and all(name.startswith("task_head.") for name in trained)


@pytest.mark.slow
def test_baselines_of_adversaries(tmp_path):
    """They share the encoder's parameters and are trained by the criterions that they are named
    after."""
    asa.write_synthetic(tmp_path, 50, 1)
    given = argparse.Namespace(max_tokens=256, seed=1, device="cpu", precision="fp32")
    given.candidates = [*asa.CANDIDATES]
    built = asa.build("tiny", 128, tmp_path, given)
    assert list(built) == ["naive", "again", *[*asa.CANDIDATES][1:]]
    naive = built["naive"].model.state_dict()
    for each in built.values():
        state = each.model.state_dict()
        shared = {key: x for key, x in state.items() if "adversary" not in key}
        torch.testing.assert_close(shared, naive)
    layers = {name: each.task.model_report.adversary_layers for name, each in built.items()}
    assert layers["asa"] == layers["sequence"] == [0, 1] and layers["upper"] == [1]
    assert not any(layers[name] for name in ("naive", "two_pass", "freelb_2", "smart_2"))
    cfg = {name: each.cfg.criterion for name, each in built.items()}
    assert cfg["sequence"].asa_in_sequence and not cfg["asa"].asa_in_sequence
    assert (str(cfg["freelb_3"].asa_baseline), cfg["freelb_3"].asa_steps) == ("freelb", 3)
    batches = steps.first_batches(built, argparse.Namespace(rounds=1))
    assert {batch["ntokens"] % 128 for batch in batches} == {0}


# As a user runs them.


def benchmark(script, *arguments):
    return subprocess.run(
        ["python", ROOT / "benchmarks" / f"{script}.py", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def assert_report(done, path, candidates):
    """Rows with these candidates and a ratio of each; JSON that says the same."""
    assert done.returncode in (0, measure.TOO_NOISY), done.stderr
    assert ("No verdict" in done.stdout) == (done.returncode == measure.TOO_NOISY)
    content = json.loads(path.read_text())
    printed = re.findall(r"^\| (\w.*?) \|", done.stdout, re.M)
    assert printed == [row["label"] for table in content["tables"] for row in table["rows"]]
    rows = {row["label"]: row["ratios"] for table in content["tables"] for row in table["rows"]}
    for label, names in candidates.items():
        assert rows[label].keys() == {AGAIN, *names}
        assert all(low <= mid <= high for low, mid, high in rows[label].values())
    assert {"CPU", "clock", "versions", "commit", "command", "rounds"} <= content["facts"].keys()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.slow
def test_attention(tmp_path):
    path = tmp_path / "results.json"
    done = benchmark(
        *"attention --lengths 32 --memory-length 64 --scores 16384 --rounds 2".split(),
        *("--only", "hybrid", "--padding", 0.2, "--json", path),
    )
    assert_report(done, path, {"32": ["hybrid"]})
    assert "| memory at 64 |" in done.stdout


@pytest.mark.slow
def test_training(tmp_path):
    path = tmp_path / "results.json"
    done = benchmark(*"training --sizes tiny --max-tokens 128 --rounds 1 --json".split(), path)
    stock, una = "transformer", "una"
    found = {training.label(stock, part, "tiny"): ["una", "dna", "hna"] for part in training.PARTS}
    found[training.label(una, "training", "tiny")] = ["ag", "gaussian", "roles"]
    found[training.label(una, "generation", "tiny")] = ["gaussian", "roles"]
    assert_report(done, path, found)


@pytest.mark.slow
def test_training_of_compiled_layers(tmp_path):
    path = tmp_path / "results.json"
    words = "training --sizes tiny --max-tokens 128 --rounds 1 --compile una --json"
    done = benchmark(*words.split(), path)
    assert_report(done, path, {training.label("una", "compiled training", "tiny"): ["compiled"]})


@pytest.mark.slow
def test_serving(data_bin, tmp_path):
    pytest.importorskip("ctranslate2")
    checkpoint = train(data_bin, "transformer_una_tiny", tmp_path / "run", 3)
    (tmp_path / "results").mkdir()
    path = tmp_path / "results" / "results.json"
    words = "--split valid --sentences 9 --batch-size 4 --rounds 1 --threads 1 --json"
    done = benchmark("serving", checkpoint, "--data", data_bin, *words.split(), path)
    names = [f"CTranslate2, {kind}" for kind in serving.COMPUTED]
    assert_report(done, path, {"9 sentences": names})
    for kind in serving.COMPUTED:  # the longest ones differ by a rule of search
        assert re.search(rf"^{kind}: \d of 9 translations are equal$", done.stdout, re.M)


def test_alternatives_are_those_of_the_recipe():
    """With the flags of the recipe; aims are of candidates that there are."""
    candidates = alternatives.read_candidates("_tiny")
    assert {"una", "dna", "off-by-one", "rdrop"} <= candidates.keys()
    assert candidates.keys() >= alternatives.LIMITS.keys()
    line = alternatives.command_line("off-by-one", "tiny", "data")
    assert line[-4:] == ["--sink", "off-by-one", "--encoder-attention-heads", "8"]
    assert "transformer_una_tiny" in line and "label_smoothed_cross_entropy" in line


@pytest.mark.slow
def test_alternatives(tmp_path):
    path, names = tmp_path / "results.json", ["alibi", "l0", "rdrop"]
    done = benchmark(
        *"alternatives --sizes tiny --max-tokens 128 --rounds 1 --only".split(),
        *(*names, "--json", path),
    )
    assert_report(done, path, {"training tiny": names})
    assert re.search(r"^\| memory tiny \| [\d.]+ \|", done.stdout, re.M)


AUTHORS = """
import torch

class AsaBertForSequenceClassification(torch.nn.Module):
    def __init__(self, config, tau):
        super().__init__()
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, 2)

    def forward(self, tokens, mask, types, labels):
        assert mask.shape == types.shape == tokens.shape and labels.shape == tokens.shape[:1]
        logits = self.head(self.embed(tokens).mean(1))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return loss, logits, loss, logits
"""


AUTHORS_OF_AG = {
    "modeling_roberta": """
import requests, torch

class RobertaConfig:
    def __init__(self, **sizes):
        self.__dict__.update(sizes)

class RobertaForMaskedLM(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        assert (config.num_hidden_layers, config.num_attention_heads) == (4, 4)
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
""",
    "trainer_ag": """
import torch
from dataclasses import dataclass
from .modeling_roberta import RobertaForMaskedLM

@dataclass
class TrainingArguments:
    output_dir: str
    ag: bool
    scale: float
    attn_head_types: str
    no_cuda: bool
    max_grad_norm: float = 1.0

class TrainerAG:
    def __init__(self):
        raise AssertionError("writes folders")

    def get_optimizers(self, updates):
        assert self.optimizers is None and self.args.ag and self.args.attn_head_types == "0,1,1,0"
        optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        return optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 1)

    def _training_step(self, model, inputs, optimizer):
        tokens, labels = inputs["input_ids"], inputs["labels"]
        assert isinstance(model, RobertaForMaskedLM) and tokens.shape == labels.shape == (2, 128)
        masked = labels != -100
        assert 0.05 < masked.float().mean() < 0.3
        assert self.global_step < self.t_total
        states = model.embed(tokens[masked])
        torch.nn.functional.cross_entropy(states @ model.embed.weight.T, labels[masked]).backward()
""",
}


@pytest.mark.slow
def test_authors(tmp_path):
    """Stand-ins have the names and the arguments of the authors' models and trainers."""
    path, fork = tmp_path / "out" / "results.json", tmp_path / authors.FORK
    for folder in (path.parent, tmp_path / "modeling", fork):
        folder.mkdir(parents=True)
    (tmp_path / "modeling" / "bert.py").write_text(AUTHORS)
    (fork / "__init__.py").write_text("import what_is_no_more")
    for name, text in AUTHORS_OF_AG.items():
        (fork / f"{name}.py").write_text(text)
    done = benchmark(
        *("authors", "--asa", tmp_path, "--ag", tmp_path, "--lengths", 128, "--max-tokens", 256),
        *("--rounds", 1, "--json", path),
    )
    assert_report(
        done, path, {authors.label(name, "small", 128): ["ours"] for name in ("asa", "ag")}
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", growth.KINDS)
def test_growth_of(kind, tmp_path):
    args = argparse.Namespace(smallest=4, seed=1, rounds=1, threads=1, device="cpu", clock="cpu")
    args.json = None
    seconds, memory = growth.KINDS[kind](4, tmp_path / "4", args)
    # commands of tests run in a server: what is measured here is its client
    assert 0.001 < seconds < 300 and 5 < memory < 4000


def test_growth_is_reported_and_drawn(tmp_path, monkeypatch, capsys):
    """Work that is proportional to its size, in memory that stays."""
    asked = []

    def work(size, folder, args):
        asked.append((size, folder.name))
        return growth.Cost(size / 10, 50)

    monkeypatch.setattr(growth, "KINDS", {"work": work})
    path, picture = tmp_path / "results.json", tmp_path / "growth.png"
    given = ["growth", "--smallest", "5", "--json", str(path), "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", given)
    assert growth.main() == 0
    assert asked == [(5, "1"), (20, "4"), (80, "16")]
    said = capsys.readouterr().out
    assert "| work | 0.5 | 4.000 | 16.000 |" in said
    assert "| work | 50 | 1.000 | 1.000 |" in said
    assert json.loads(path.read_text())["tables"] and picture.stat().st_size > 10_000


def test_growth_says_what_failed():
    with pytest.raises(UsageError, match="'raise SystemExit.* failed: no such data"):
        growth.run([sys.executable, "-c", "raise SystemExit('no such data')"])


def test_growth_counts_all_processes_of_a_command():
    """A shell that waits for two others costs the time of both, and the memory of the larger."""
    work = "import time; x = bytearray(150 * 2**20); y = [0 for _ in range(2 * 10**6)]"
    one, two = (
        growth.run(["sh", "-c", "; ".join([f"{sys.executable} -c '{work}'"] * n + [":"])])
        for n in (1, 2)
    )
    assert 1.2 < two.seconds / one.seconds < 3.5
    assert 150 < two.memory < 300 and two.memory == pytest.approx(one.memory, rel=0.2)


@pytest.mark.slow
def test_pretraining(tmp_path):
    path = tmp_path / "results.json"
    done = benchmark(
        *"pretraining --sizes tiny --lengths 32 64 --max-tokens 128 --rounds 1 --json".split(), path
    )
    found = {
        pretraining.label(peer, "tiny", length): names
        for peer, names in pretraining.CANDIDATES.items()
        for length in (32, 64)
    }
    assert_report(done, path, found)


@pytest.mark.slow
def test_deberta(tmp_path):
    path = tmp_path / "results.json"
    done = benchmark(
        *"deberta --sizes tiny --lengths 16 --max-tokens 64 --rounds 1 --json".split(), path
    )
    found = {deberta.label(kind, "tiny", 16): deberta.CANDIDATES for kind in deberta.KINDS}
    assert_report(done, path, found)


@pytest.mark.slow
def test_finetuning(tmp_path):
    path = tmp_path / "results.json"
    done = benchmark(*"finetuning --sizes tiny --max-tokens 256 --rounds 1 --json".split(), path)
    rows = [*finetuning.TASKS, "all three"]
    found = {
        finetuning.label(mode, "tiny", row): ["first", "attention"]
        for mode in finetuning.MODES
        for row in rows
    }
    assert_report(done, path, found)


@pytest.mark.slow
def test_asa(tmp_path):
    path = tmp_path / "results.json"
    names = ["asa", "upper", "freelb_2"]
    done = benchmark(
        *"asa --sizes tiny --lengths 128 --max-tokens 256 --rounds 1 --json".split(),
        *(path, "--candidates", *names),
    )
    assert_report(done, path, {asa.label("tiny", 128): names})


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("finetuning --data /nowhere", "--data is /nowhere"),
        ("attention --padding 0.5", "--padding is 0.5"),
        ("attention --json /nowhere/x.json", "/nowhere/x.json"),
        ("attention --rounds 0", "'0' is not a whole number from 1 upwards"),
        ("attention --only nothing", "'nothing'"),
        ("training --data /nowhere", "--data is /nowhere"),
        ("pretraining --data /nowhere", "with train*.idx and dict.txt"),
        ("pretraining --max-tokens 256", "--lengths has 512"),
        ("asa --max-tokens 256", "--lengths has 512"),
        ("asa --candidates alum", "'alum'"),
        ("growth --smallest 3", "--smallest is 3"),
        ("authors", "no clone is given; give --asa FOLDER or --ag FOLDER"),
        ("authors --asa /nowhere", "--asa is /nowhere"),
        ("authors --ag /nowhere", "--ag is /nowhere"),
        ("authors --ag . --precision bf16", "run on a CPU in fp32"),
        ("authors --ag . --max-tokens 256", "--lengths has 512"),
        ("deberta --sizes huge", "'huge'"),
        pytest.param(
            "training --device cuda",
            "--device is cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_bad_arguments(command, said, monkeypatch, capsys):
    script, *arguments = command.split()
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises((UsageError, SystemExit)) as refused:
        SCRIPTS[script].main()
    sentence = str(refused.value)
    if refused.type is SystemExit:  # argparse
        assert refused.value.code == 2
        sentence = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert said in sentence


def test_refused_in_one_sentence():
    done = benchmark("training", "--data", "/nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --data is /nowhere")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_shows_an_example_that_parses(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit):
        SCRIPTS[script].parse()
    example = re.search(rf"python benchmarks/{script}\.py (.*)", capsys.readouterr().out)
    assert example
    monkeypatch.setattr(sys, "argv", [script, *example[1].split()])
    assert SCRIPTS[script].parse().rounds


def test_stock_is_measured_with_its_own_functions():
    """Within a step the loss, Adam and products are fairseq's and torch's, and ours after it."""
    replaced = [(owner, name, getattr(owner, name)) for owner, name in stock.REPLACED]
    torch.set_float32_matmul_precision("medium")
    seen = []

    def work(turn):
        own = [getattr(owner, name) for owner, name, _ in replaced]
        seen.append((turn, own, torch.get_float32_matmul_precision()))
        raise KeyError

    with pytest.raises(KeyError):
        stock.as_released(work)(3)
    assert seen == [(3, [inspect.unwrap(ours) for *_, ours in replaced], "highest")]
    assert all(getattr(owner, name) is ours for owner, name, ours in replaced)
    assert all(inspect.unwrap(ours) is not ours for *_, ours in replaced)
    assert torch.get_float32_matmul_precision() == "medium"


# Text.


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        ("he left.&apos;", "he left . &apos;", "a final period before a quotation mark"),
        ("Power Inc. Of", "Power Inc . Of", "an abbreviation keeps its period"),
        ("of &quot; the", "of &apos; the", "a right single quotation mark"),
        ("a b", "a c", "unexplained"),
        ("e.g. x", "e.g . x", "an abbreviation keeps its period"),
        ("a.b. x", "a. b. x", "unexplained"),
        ("in 1984.", "in 1984 .", "unexplained"),
        ("Co. Inc. x", "Co . Inc . x", "an abbreviation keeps its period"),
        ("Inc. of &quot; x", "Inc . of &apos; x", "no double quote; an abbreviation"),
    ],
)
def test_differences_of_tokenisers_are_explained(theirs, ours, why):
    import recipes

    assert why in recipes.explanation(theirs.split(), ours.split())


def test_lines_that_differ_are_counted(tmp_path):
    import recipes

    (tmp_path / "a").write_text("a b\nInc. x\nc\n")
    (tmp_path / "b").write_text("a  b\nInc . x\nd\n")
    found, total = recipes.differences(tmp_path / "a", tmp_path / "b")
    assert (found.total(), found["unexplained"], total) == (2, 1, 3)


def test_pieces_that_differ_are_counted(tmp_path):
    """Where tokens are the same."""
    import recipes

    texts = "ab\ncd e\nf\n", "ab\ncd e\ng\n", "a@@ b\ncd  e\nf\n", "ab\ncd e\ng\n"
    paths = [tmp_path / name for name in "abcd"]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    assert recipes.differing_pieces(tuple(paths[:2]), tuple(paths[2:])) == (1, 2)


def test_speeds_of_steps():
    import recipes

    row = Row("all", 20.0, {recipes.OURS: measure.Ratio(0.1, 0.25, 0.5)})
    said = recipes.speeds([row], 1_000_000)
    assert said == {"tokens a second, all": f"{recipes.CHAIN} 50,000, ours 200,000"}
