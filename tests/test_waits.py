"""What a step knows of its batch before the batch is on a GPU: the same numbers, fewer waits."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.trainer import Trainer

import fairseq_ext.registry  # noqa: F401 - the patches
from fairseq_ext.data import batch_facts
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import guided, guided_triton
from fairseq_ext.patches import waits

sys.path.insert(0, str(ROOT / "benchmarks"))
import counting  # noqa: E402
import operations  # noqa: E402
import steps  # noqa: E402

PAD = 1
PINNED = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)[1]
pinned = pytest.mark.skipif(
    not torch.__version__.startswith(PINNED), reason=f"bounds are those of torch {PINNED}"
)
LAYERS = 12
BOUNDS = {
    "generation una": (234, 9, 1_900),
    "masked_lm ag": (718, 2, 6_600),
    "masked_lm alibi": (632, 2, 5_500),
    "masked_lm asa": (1_232, 2, 7_300),
    "masked_lm dense": (822, 2, 5_400),
    "masked_lm differential": (1_067, 2, 5_900),
    "masked_lm disentangled": (1_279, 2, 6_800),
    "masked_lm dna": (656, 2, 6_100),
    "masked_lm entmax": (775, 2, 7_000),
    "masked_lm entmax-learned": (895, 2, 7_200),
    "masked_lm gate": (716, 2, 5_600),
    "masked_lm gaussian": (813, 2, 8_100),
    "masked_lm hna": (680, 2, 6_300),
    "masked_lm input": (765, 2, 5_600),
    "masked_lm l0": (910, 2, 7_800),
    "masked_lm off-by-one": (752, 2, 5_800),
    "masked_lm random": (676, 2, 5_100),
    "masked_lm rdrop": (727, 2, 5_700),
    "masked_lm roles": (804, 2, 6_100),
    "masked_lm rotary": (741, 2, 5_600),
    "masked_lm sink": (764, 2, 5_900),
    "masked_lm sinkformer": (919, 2, 6_400),
    "masked_lm sparsemax": (775, 2, 7_000),
    "masked_lm t5": (715, 2, 5_600),
    "masked_lm talking": (1_076, 2, 5_900),
    "masked_lm today": (857, 2, 5_400),
    "masked_lm una": (632, 2, 5_400),
    "translation asa": (1_840, 2, 9_100),
    "translation rdrop": (945, 2, 6_800),
    "translation una": (842, 2, 6_500),
}
"""Step and candidate -> most operations, waits and Python calls, with 12 layers or 6 + 6.

Calls have some 200 to spare: a process that counted before makes fewer.
"""

QUICK = ("masked_lm ag", "masked_lm dna", "masked_lm una")


def tokens(*rows):
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("rows", "padded", "before", "positions"),
    [
        (([4, 5], [6, 7]), False, False, [0, 1, 2, 3]),
        (([4, 5], [6, PAD]), True, False, [0, 1, 2]),
        (([PAD, 5], [6, 7]), True, True, [1, 2, 3]),
        (([PAD, PAD], [PAD, PAD]), True, False, []),
    ],
)
def test_facts_of_tokens(rows, padded, before, positions):
    facts = batch_facts.take(tokens(*rows), PAD)
    assert facts[:2] == (padded, before) and facts.positions.tolist() == positions
    tokens_there = tokens(*rows)
    batch_facts.attach(tokens_there, facts)
    padding = batch_facts.pass_on(tokens_there, tokens_there.eq(PAD))
    assert batch_facts.has_padding(padding) == padded
    assert batch_facts.has_padding(tokens_there.eq(PAD)) == padded


def test_a_batch_that_moves_has_its_facts(monkeypatch):
    """One that stays where it is has none: there nothing waits."""
    source, target = tokens([4, 5, PAD]), tokens([PAD, 7, PAD])
    sample = {"net_input": {"src_tokens": source}, "target": target}
    trainer = SimpleNamespace(
        task=SimpleNamespace(source_dictionary=SimpleNamespace(pad=lambda: PAD))
    )
    moves = SimpleNamespace(to=lambda x: x.to("meta"))

    def prepare(trainer, given, is_dummy=False):
        inputs = {"src_tokens": moves.to(source)}
        return {"net_input": inputs, "target": moves.to(target)}, False

    monkeypatch.setattr(Trainer, "_prepare_sample", prepare)
    waits.know_batches()
    prepared, _ = Trainer._prepare_sample(trainer, sample)
    assert batch_facts.find(prepared["net_input"]["src_tokens"]).padded
    assert batch_facts.find(prepared["target"]).positions.shape == (1,)
    moves.to = lambda x: x
    prepared, _ = Trainer._prepare_sample(trainer, sample)
    assert batch_facts.find(prepared["target"]) is None


def test_the_loss_of_places_is_that_of_a_mask(tmp_path):
    """And every gradient, of a model with dropout."""
    write = operations.KINDS["masked_lm"][1]
    write(tmp_path, 400, 1)
    flags = [str(tmp_path), *operations.list_masked_lm(2)["una"]]
    args = SimpleNamespace(device="cpu", precision="fp32", seed=1, max_tokens=256)
    candidate = steps.build_candidate(flags, args)
    (batch,) = steps.read_batches(candidate, 1)
    criterion = candidate.task.build_criterion(candidate.cfg.criterion)
    found = []
    for known in (False, True):
        if known:
            batch_facts.attach(batch["target"], batch_facts.take(batch["target"], PAD))
        torch.manual_seed(3)
        candidate.model.zero_grad()
        loss, size, log = criterion(candidate.model, batch)
        loss.backward()
        found.append([loss, *(x.grad for x in candidate.model.parameters() if x.grad is not None)])
        assert int(size) == int(log["sample_size"]) and isinstance(size, int) == known
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_batches_without_targets_are_refused():
    with pytest.raises(UsageError, match="--d2v2-multi makes others"):
        MaskedLmLoss.forward(None, None, {"net_input": {}})


def test_numbers_of_a_log_are_read_together():
    on_gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    assert waits._read([torch.tensor(1.0), on_gpu, 2])(3) == 3
    number = torch.tensor(2.5)
    assert waits._read([number])(number) is number


def count(step, tmp_path):
    kind, name = step.split()
    layers = LAYERS if kind == "masked_lm" else LAYERS // 2  # of each side
    counts = operations.count(kind, [name], layers, tmp_path)[name].to_json()
    return [counts[column] for column in ("operations", "waits", "python_calls")]


@pinned
@pytest.mark.parametrize(
    "step", [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in BOUNDS]
)
def test_a_step_asks_little_of_its_host(step, tmp_path):
    """On tensors without numbers."""
    counted = count(step, tmp_path)
    within = [n <= most for n, most in zip(counted, BOUNDS[step], strict=True)]
    assert all(within), f"{step} has {counted}, more than {BOUNDS[step]}"


@pinned
def test_every_family_has_bounds(tmp_path):
    families = [f"masked_lm {name}" for name in operations.list_masked_lm(LAYERS)]
    lacking = [step for step in families if step not in (*BOUNDS, "masked_lm stock")]
    rows = [f'"{step}": {tuple(count(step, tmp_path))}' for step in lacking]
    assert not rows, f"enter into BOUNDS of {__file__}: {', '.join(rows)}"
    assert list(BOUNDS) == sorted(BOUNDS)


def measure_saved(names, width, length, tokens, folder, monkeypatch, layers=2):
    """Return the bytes that a step on masked words keeps for its gradient, by candidate."""
    monkeypatch.setattr(operations, "NARROW", (width, 4 * width, width // 64))
    lines, saved = operations.list_masked_lm(layers), {}
    for name in names:
        flags = [re.sub("^32$", str(length), flag) for flag in lines[name]]
        args = SimpleNamespace(device="cpu", precision="bf16", seed=1, max_tokens=tokens)
        candidate = steps.build_candidate([str(folder), *flags], args)
        (batch,) = steps.read_batches(candidate, 1)
        assert batch["net_input"]["src_tokens"].shape == (tokens // length, length)
        counts = counting.count_step(steps.build_trainer(candidate), batch, operations.WORDS)
        saved[name] = counts.saved_bytes
    return saved


@pinned
@pytest.mark.slow
def test_what_a_step_keeps_for_its_gradient(tmp_path, monkeypatch):
    """Two layers of 768 and 32,000 words, as multiples of fairseq's own model."""
    most = {"una": 0.9, "asa": 2.0, "rdrop": 2.02, "sinkformer": 1.0, "entmax": 1.0}
    operations.KINDS["masked_lm"][1](tmp_path, 32_000, 1)
    given = ("stock", *most), 768, 512, 8192, tmp_path, monkeypatch
    stock, *saved = measure_saved(*given).values()
    shares = {name: each / stock for name, each in zip(most, saved, strict=True)}
    assert all(share <= most[name] for name, share in shares.items()), shares


@pytest.mark.slow
def test_guided_attention_keeps_no_map_for_the_backward_pass(tmp_path, monkeypatch):
    """At 2,048 tokens a step saves what one without guidance does; with maps far more."""
    monkeypatch.setattr(operations, "NARROW", (256, 512, 4))
    operations.KINDS["masked_lm"][1](tmp_path, operations.SYMBOLS, 1)
    lines, saved = operations.list_masked_lm(2), {}
    for name, least in (("una", 0), ("ag", 0), ("loop", 0), ("maps", sys.maxsize)):
        monkeypatch.setattr(guided, "MIN_SCORES", least)
        if name == "loop":  # without Triton
            monkeypatch.setattr(guided_triton, "supports", lambda *_: False)
        flags = [re.sub("^32$", "2048", flag) for flag in lines.get(name, lines["ag"])]
        args = SimpleNamespace(device="cpu", precision="bf16", seed=1, max_tokens=2048)
        candidate = steps.build_candidate([str(tmp_path), *flags], args)
        (batch,) = steps.read_batches(candidate, 1)
        assert batch["net_input"]["src_tokens"].shape == (1, 2048)
        saved[name] = counting.count_step(steps.build_trainer(candidate), batch, 0.15).saved_bytes
    assert max(saved["ag"], saved["loop"]) <= 1.05 * saved["una"] < saved["maps"] / 2
