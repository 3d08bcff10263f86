"""Criterions with auxiliary losses: on models, and through fairseq's commands."""

import json
from argparse import Namespace
from operator import mul

import pytest
import torch
from conftest import PLUGIN, TRAIN, fairseq, train_in_two_processes
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.models import build_model
from fairseq.tasks.fairseq_task import StatefulContainer
from omegaconf import OmegaConf

from fairseq_ext.attention import normalisers as softmax_module
from fairseq_ext.criterions.terms import unwrap
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance.loss import sentence_losses
from fairseq_ext.mechanisms.kernels import guided
from fairseq_ext.training_logs import parse_line

PAD, EOS = 1, 2
SOURCES = [[5, 6, 7, 8, 9, EOS], [10, 11, EOS], [12, 5, 7, EOS]]
TARGETS = [[20, 21, 22, EOS], [23, EOS], [24, 25, 26, 27, EOS]]
AG = {"ag_encoder_heads": "next:1,first:2", "ag_decoder_heads": "prev:1"}
AG |= {"ag_cross_heads": "diagonal:2,delim:1", "ag_alpha": "10"}


def setup(arch="transformer_una_tiny", base="label_smoothed_cross_entropy", model=None, **options):
    """A task, a model in training without dropout, and a guided criterion."""
    words = Dictionary()
    for i in range(40):
        words.add_symbol(f"w{i}")
    task = Namespace(source_dictionary=words, target_dictionary=words, state=StatefulContainer())
    torch.manual_seed(1)
    made = build_model(OmegaConf.create({"_name": arch, "dropout": 0.0, **(model or {})}), task)
    smoothing = {"label_smoothing": 0.1} if base.startswith("label") else {}
    usual = {"_name": f"{base}_ag", "sentence_avg": False, "max_update": 100, **smoothing, **AG}
    criterion = build_criterion(OmegaConf.create(usual | options), task)
    made.train()
    made.set_num_updates(0)
    return made, criterion


def padded(sentences, side="right"):
    size = max(map(len, sentences))
    pads = [[PAD] * (size - len(s)) for s in sentences]
    return torch.tensor(
        [s + p if side == "right" else p + s for s, p in zip(sentences, pads, strict=True)]
    )


def sample(rows=(0, 1, 2), side="right"):
    sources, targets = padded([SOURCES[b] for b in rows], side), padded([TARGETS[b] for b in rows])
    written = padded([[EOS, *TARGETS[b][:-1]] for b in rows])
    inputs = {"src_tokens": sources, "src_lengths": None, "prev_output_tokens": written}
    return {"net_input": inputs, "target": targets, "ntokens": int(targets.ne(PAD).sum())}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("base", ["cross_entropy", "label_smoothed_cross_entropy"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_is_the_sum_of_its_sentences(base, average, reduction, side):
    """So that batching, padding, --update-freq and the number of processes change nothing."""
    model, criterion = setup(base=base, sentence_avg=average, ag_reduction=reduction)
    loss, size, log = criterion(model, sample(side=side))
    alone = [criterion(model, sample([b])) for b in range(3)]
    assert size == sum(each[1] for each in alone) == (3 if average else 11)
    for name in ("loss", "nll_loss", "ag_loss", "ag_alpha"):
        if name in log:
            total = torch.as_tensor(sum(each[2][name] for each in alone))
            torch.testing.assert_close(torch.as_tensor(log[name]), total)
    torch.testing.assert_close(loss, sum(each[0] for each in alone))
    ours, theirs = gradients(model, loss), gradients(model, sum(each[0] for each in alone))
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def test_the_loss_is_the_task_s_and_the_weighted_guidance():
    model, criterion = setup(ag_hold_updates=20)
    for updates, alpha in ((0, 10), (20, 10), (60, 5), (100, 0), (101, 0)):
        model.set_num_updates(updates)
        loss, size, log = criterion(model, sample())
        assert log["ag_alpha"] == pytest.approx(alpha * size)
        added = alpha * log["ag_loss"] if alpha else 0.0
        torch.testing.assert_close(loss, log["loss"] + added)
    assert "ag_loss" not in log  # nothing is observed any more


def test_the_released_code_as_one_option():
    """Maps after dropout, edges that are 0, and 20,000 updates, or all, before the weight falls."""
    model, criterion = setup(model={"attention_dropout": 0.5}, ag_preset="released")
    [part], seen = criterion.parts, []
    model.register_forward_hook(lambda *call: seen.append(call[-1][1]["attention_maps"]))
    torch.manual_seed(7)
    batch = sample([0])
    _, size, log = criterion(model, batch)
    maps = seen[0]["encoder", 0]
    assert maps.eq(0).float().mean() > 0.3 and not torch.allclose(maps.sum(-1), torch.ones(()))
    views = part._build_views(batch["net_input"])
    wanted = sum(
        sentence_losses(seen[0], site, part.guided[site], views[site], "mean", "zero")
        for site in part.guided
    )
    torch.testing.assert_close(log["ag_loss"], wanted.sum() * size)
    assert log["ag_alpha"] == 10 * size
    for updates, share in ((0, 1), (99, 1), (100, 0)):
        assert part.schedule.factor(updates) == share
    long = setup(ag_preset="released", max_update=100_000)[1].parts[0].schedule
    assert [long.factor(n) for n in (20_000, 60_000, 100_000)] == [1, 0.5, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ag_hold_updates": 10}, "--ag-hold-updates 10 contradicts --ag-preset released; leave"),
        ({"ag_reduction": "sum"}, "--ag-reduction sum contradicts"),
        ({"ag_edges": "uniform"}, "--ag-edges uniform contradicts"),
        ({"ag_maps": "before"}, "--ag-maps before contradicts"),
    ],
)
def test_options_that_contradict_the_released_code(options, says):
    with pytest.raises(UsageError, match=says):
        setup(ag_preset="released", **options)


def test_updates_out_of_range():
    with pytest.raises(UsageError, match="--ag-decay-updates is 0; give a whole number from 1"):
        setup(ag_decay_updates=0)


def test_evaluation_has_no_guidance():
    model, criterion = setup()
    model.eval()
    loss, _, log = criterion(model, sample())
    assert torch.equal(loss, log["loss"]) and "ag_loss" not in log


def test_all_attention_that_is_guided_gets_gradients():
    model, criterion = setup()
    loss, _, log = criterion(model, sample())
    with_it, without = gradients(model, loss), gradients(model, criterion.base(model, sample())[0])
    changed = {n for n in with_it if not torch.allclose(with_it[n], without[n], atol=1e-6)}
    for site in ("encoder.layers.0.self", "decoder.layers.3.self", "decoder.layers.0.encoder"):
        assert {f"{site}_attn.{p}_proj.weight" for p in "qk"} <= changed


@pytest.mark.parametrize("kind", ["checkpoint_activations", "offload_activations"])
def test_activation_checkpointing_keeps_the_gradient(kind):
    results = []
    for options in ({}, {"checkpoint_activations": True, kind: True}):
        model, criterion = setup(model=options)
        results.append(gradients(model, criterion(model, sample())[0]))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ag", {}),
        ("ag", {"checkpoint_activations": True}),
        ("ag_rdrop", {}),
    ],
)
def test_guidance_without_maps(name, options, monkeypatch):
    """Encoder and decoder have a kernel; a pattern of cross-attention has several targets a row."""
    results, seen = [], []
    for least in (0, 1 << 40):
        monkeypatch.setattr(guided, "MIN_SCORES", least)
        made = f"label_smoothed_cross_entropy_{name}"
        model, criterion = setup(model={"attention_dropout": 0.0, **options}, _name=made)
        model.register_forward_hook(lambda *call: seen.append(call[-1][1]["attention_maps"]))
        loss, _, log = criterion(model, sample(side="left"))
        results.append([loss, log["ag_loss"], gradients(model, loss)])
        widths = {site: maps.dim() for (site, _), maps in seen[-1].items()}
        assert widths == {"encoder": 4 - (not least), "decoder": 4 - (not least), "cross": 4}
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_dropped_layers_are_left_out():
    model, criterion = setup(model={"encoder_layerdrop": 0.5})
    torch.manual_seed(0)
    logs = [criterion(model, sample())[2]["ag_loss"].item() for _ in range(5)]
    assert len({round(value, 4) for value in logs}) > 1


def test_only_guided_heads_leave_the_fused_kernel(monkeypatch):
    monkeypatch.setattr(softmax_module, "MIN_SCORES", 0)
    fused, plain, softmax = [], [], softmax_module.Softmax
    for name, seen in (("fused", fused), ("weights", plain)):
        original = getattr(softmax, name)

        def spy(self, *args, original=original, seen=seen):
            heads = args[-1] if isinstance(args[-1], slice) else args[0].heads
            seen.append(heads.stop - heads.start)
            return original(self, *args)

        monkeypatch.setattr(softmax, name, spy)
    options = {"ag_decoder_heads": None, "ag_cross_heads": None, "ag_layers": "0,2"}
    model, criterion = setup(**options | {"ag_encoder_heads": "next:1,prev:1"})
    criterion(model, sample())
    assert plain == [2, 2]
    assert sorted(fused) == sorted([2, 2] + [4] * 10)


@pytest.mark.parametrize("arch", ["transformer_dna_tiny", "transformer_hna_tiny"])
def test_other_normalisers_can_be_guided(arch):
    model, criterion = setup(arch)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    distances = []
    for _ in range(30):
        loss, _, log = criterion(model, sample())
        distances.append(log["ag_loss"].item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert distances[-1] < 0.5 * distances[0]


def test_auto_alpha_is_chosen_once():
    model, criterion = setup(ag_alpha="auto")
    _, size, log = criterion(model, sample())
    chosen = log["ag_alpha"] / size
    expected = min((1, 10, 100), key=lambda a: abs(torch.log(log["loss"] / (a * log["ag_loss"]))))
    assert chosen == expected
    assert criterion.parts[0].task.state.state_dict == {"ag_alpha": chosen}
    model.set_num_updates(50)
    _, size, log = criterion(model, sample([1]))
    assert log["ag_alpha"] / size == chosen / 2


@pytest.mark.parametrize("base", ["cross_entropy", "label_smoothed_cross_entropy"])
@pytest.mark.parametrize(("given", "chosen"), [(None, 1), ("auto", 10), ("3", 3)])
def test_the_initial_weight_in_translation(base, given, chosen):
    """By the paper's rule if asked for; else 1, since what the rule takes slowed training."""
    usual = {"ag_encoder_heads": None, "ag_decoder_heads": None, "ag_cross_heads": None}
    model, criterion = setup(base=base, ag_alpha=given, ag_layers="0", **usual)
    _, size, log = criterion(model, sample())
    assert log["ag_alpha"] == chosen * size


def test_a_resumed_training_keeps_the_weight_that_it_chose():
    """Also one that began when the rule was the default in translation."""
    model, criterion = setup(ag_alpha=None)
    criterion.parts[0].task.state.merge_state_dict({"ag_alpha": 10.0})
    model.set_num_updates(50)
    _, size, log = criterion(model, sample())
    assert log["ag_alpha"] == 10 * size / 2


def dropping(**options):
    """A guided encoder that drops layers, and the encoder's layers."""
    others = {"ag_alpha": "auto", "ag_decoder_heads": None, "ag_cross_heads": None}
    model, criterion = setup(model={"encoder_layerdrop": 0.5}, **others | options)
    return model, criterion, model.encoder.layers


def test_auto_alpha_waits_for_what_it_compares():
    """A dropped layer says nothing, and neither does a batch without targets."""
    model, criterion, layers = dropping(ag_layers="0", ag_encoder_heads="next:1")
    chosen = criterion.parts[0].task.state.state_dict
    layers.p = 1.0
    _, size, log = criterion(model, sample())
    assert log["ag_alpha"] == size and log["ag_loss"] == 0
    layers.p, empty = 0.0, sample()
    empty["target"].fill_(PAD)
    criterion(model, empty)
    assert not chosen
    _, size, log = criterion(model, sample())
    assert log["ag_alpha"] == chosen["ag_alpha"] * size > size


def test_auto_alpha_is_of_all_guided_layers(monkeypatch):
    model, criterion, layers = dropping(ag_encoder_heads="next:4")
    totals = []
    guidance = criterion.parts[0]
    monkeypatch.setattr(guidance, "_choose_alpha", lambda step, total: totals.append(total))
    for layers.p, seed in [(0.0, 0), *((0.5, seed) for seed in range(5))]:
        torch.manual_seed(seed)
        criterion(model, sample())
    whole, *others = (total.item() for total in totals if total)  # none, if all are dropped
    assert len(set(others)) > 2
    assert others == pytest.approx([whole] * len(others), rel=0.2)


# Through fairseq's commands.

CRITERION = "--criterion label_smoothed_cross_entropy_ag".split()


def values(folder, name, kind="train_inner"):
    records = map(parse_line, (folder / "train.log").read_text().split("\n"))
    lines = [r.values for r in records if r is not None and r.kind == kind]
    return [line[name] for line in lines if name in line]


def run(data, folder, updates, *args):
    """A guided training with its train.log; the checkpoint it ended with."""
    where = ["--arch", "transformer_una_tiny", "--max-update", updates, "--save-dir", folder]
    done = fairseq("train", data, *TRAIN, *where, *CRITERION, *args)
    (folder / "train.log").write_text(done.stdout + done.stderr)
    return torch.load(folder / "checkpoint_last.pt", weights_only=False)


def test_a_guided_training(data_bin, tmp_path):
    """It logs both losses apart, starts like an unguided one and is validated on its task alone."""
    options = "--ag-alpha 10 --ag-encoder-heads next:1,prev:1,period:1"
    run(data_bin, tmp_path, 4, *options.split())
    plain = tmp_path / "plain"
    run(data_bin, plain, 1, "--criterion", "label_smoothed_cross_entropy")
    for name in ("loss", "nll_loss"):
        assert values(tmp_path, name)[0] == values(plain, name)[0]
    assert values(tmp_path, "ag_alpha") == [10, 7.5, 5, 2.5]
    assert all(0 < value < 5 for value in values(tmp_path, "ag_loss"))
    text = (tmp_path / "train.log").read_text()
    assert "encoder: heads 0 next, 1 prev, 2 period, in layers 0, 1, 2, 3" in text
    (valid,) = [r for line in text.split("\n") if (r := parse_line(line)) and r.kind == "valid"]
    assert {"loss", "nll_loss"} <= valid.values.keys()
    assert not [name for name in valid.values if name.startswith("ag")]
    checked = fairseq(
        "validate", data_bin, "--user-dir", PLUGIN, "--path", tmp_path / "checkpoint_last.pt",
        *"--task translation -s de -t en --cpu --max-tokens 600 --num-workers 0".split(),
    )  # fmt: skip
    assert f"nll_loss {valid.values['nll_loss']:.3f}".rstrip("0") in checked.stdout + checked.stderr


def test_resuming_is_exact(data_bin, tmp_path):
    """The weight's choice and its decay go on where they were."""
    options = "--ag-alpha auto --ag-decay-updates 6 --ag-decoder-heads prev:2".split()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = run(data_bin, whole, 6, *options)["model"]
    run(data_bin, cut, 3, *options)
    state = run(data_bin, cut, 6, *options)
    assert "as before" in (cut / "train.log").read_text()
    assert "as before" not in (whole / "train.log").read_text()
    assert state["task_state"]["ag_alpha"] in (1, 10, 100)
    torch.testing.assert_close(state["model"], expected, atol=0, rtol=0)


@pytest.mark.slow
def test_the_average_loss_of_a_run(data_bin, tmp_path):
    """Over epochs, also when training goes on from the end of one (4 updates) or from within."""
    options = ["--max-tokens", "3000", "--criterion", "label_smoothed_cross_entropy"]
    whole = run(data_bin, tmp_path, 6, *options)
    losses, tokens = (values(tmp_path, name) for name in ("nll_loss", "wpb"))
    average = sum(map(mul, losses, tokens)) / sum(tokens)
    assert len(losses) == 6 and len(values(tmp_path, "nll_loss", "train")) == 2
    assert values(tmp_path, "nll_avg")[-1] == pytest.approx(average, abs=2e-3)
    for cut in (4, 5):
        folder = tmp_path / f"cut-{cut}"
        run(data_bin, folder, cut, *options)
        resumed = run(data_bin, folder, 6, *options)
        torch.testing.assert_close(resumed["model"], whole["model"], atol=0, rtol=0)
        assert values(folder, "nll_avg", "train")[-1] == values(tmp_path, "nll_avg", "train")[-1]


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_equal_one(data_bin, tmp_path):
    """They agree on the weight, each sees half of the sentences, the sum is the same."""
    options = "--ag-alpha auto --dropout 0 --disable-validation".split()
    one = run(data_bin, tmp_path / "one", 3, *options, "--update-freq", "2")
    where = ["--max-update", 3, "--save-dir", tmp_path / "two", "--arch", "transformer_una_tiny"]
    flags = [flag for flag in TRAIN if flag != "--cpu"]
    train_in_two_processes(data_bin, *flags, *where, *CRITERION, *options)
    two = torch.load(tmp_path / "two" / "checkpoint_last.pt", weights_only=False)
    assert two["task_state"] == one["task_state"]
    torch.testing.assert_close(two["model"], one["model"], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("arch", "options", "says"),
    [
        ("transformer", [], "this --arch has no attention to guide; give another"),
        ("transformer_una_tiny", ["--ag-alpha=-1"], "--ag-alpha is '-1'; give a number from 0"),
        ("transformer_una_tiny", ["--ag-encoder-heads", "next:5"], "5 heads; a layer has 4"),
    ],
)
def test_refusals_before_data_is_read(data_bin, tmp_path, arch, options, says):
    for words in data_bin.glob("dict.*"):
        (tmp_path / words.name).write_bytes(words.read_bytes())  # dictionaries, but no data
    refused = fairseq(
        "train", tmp_path, "--user-dir", PLUGIN, *"--task translation -s de -t en --cpu".split(),
        *"--max-tokens 600 --optimizer adam --max-update 3".split(), "--arch", arch, "--save-dir",
        tmp_path / "run", *CRITERION, *options, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    last = refused.stderr.strip().split("\n")[-1]
    assert last.startswith("error: ") and says in last


def test_a_user_s_own_pattern(data_bin, tmp_path):
    """One decorated function in a package of the user's."""
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import fairseq_ext\n"
        "from fairseq_ext.mechanisms.guidance import pattern\n\n\n"
        "@pattern('last')\n"
        "def last(view):\n"
        "    return view.last[:, None].expand_as(view.position)\n"
    )
    options = ["--user-dir", package, "--ag-encoder-heads", "last:2", "--ag-alpha", "1"]
    run(data_bin, tmp_path, 2, *options)
    assert len(values(tmp_path, "ag_loss")) == 2


def test_hydra(data_bin, tmp_path):
    """The weight's end follows optimization.max_update there too."""
    config = {
        "common": {"user_dir": str(PLUGIN), "cpu": True, "seed": 1},
        "task": {"_name": "translation", "data": str(data_bin), "source_lang": "de"}
        | {"target_lang": "en"},
        "model": {"_name": "transformer_una_tiny", "share_all_embeddings": True},
        "criterion": {"_name": "label_smoothed_cross_entropy_ag", "ag_alpha": "auto"},
        "dataset": {"max_tokens": 600, "num_workers": 0},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "optimization": {"max_update": 2, "lr": [0.001]},
        "checkpoint": {"save_dir": str(tmp_path)},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(config))
    fairseq("hydra-train", "--config-dir", tmp_path, "--config-name", "mine", cwd=tmp_path)
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert saved["cfg"]["criterion"]["max_update"] == 2
    assert saved["task_state"]["ag_alpha"] in (1, 10, 100)


@pytest.mark.parametrize("names", [["module"], ["_fsdp_wrapped_module", "_fpw_module"], []])
def test_the_model_inside_wrappers(names):
    model = inside = torch.nn.Linear(1, 1)
    for name in reversed(names):
        wrapper = torch.nn.Module()
        wrapper.add_module(name, model)
        model = wrapper
    assert unwrap(model) is inside
