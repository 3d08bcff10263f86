"""Closed heads removed: the same outputs, smaller checkpoints, the command, what is refused."""

import re

import pytest
import torch
from commands import generate, read_hypotheses, read_parameters
from conftest import PLUGIN, fairseq, train, train_encoder

from fairseq_ext import cli
from fairseq_ext.attention import SCORERS, Attention, HeadGroup, build_normaliser
from fairseq_ext.attention.building import list_heads_left
from fairseq_ext.criterions.closing_heads import find_gates
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.head_gates import L0Gate
from fairseq_ext.safe_loading import load_checkpoint
from fairseq_ext.testing.mechanisms import build_tiny_model
from fairseq_ext.tools import prune

SITES = "--head-gate l0 --head-gate-sites encoder,decoder,cross".split()
PARTS = "--encoder-normaliser hybrid --decoder-normaliser sink --cross-normaliser sink".split()
PARTS += "--decoder-positions rotary".split()
CLOSED = {  # heads of a model with 2 layers of 4 heads
    "encoder.layers.0.self_attn": [1, 2],
    "encoder.layers.1.self_attn": [0, 1, 2, 3],
    "decoder.layers.0.self_attn": [0, 1, 2, 3],
    "decoder.layers.1.encoder_attn": [3],
}


def close(state: dict) -> dict:
    """Close heads in a checkpoint, open the others by other degrees, and disturb all parameters."""
    torch.manual_seed(3)
    for name, value in state["model"].items():
        if name.endswith(".gate.offset"):
            value.uniform_(-2.5, -1.0)
            value[CLOSED.get(name.removesuffix(".gate.offset"), [])] = -9
        elif value.is_floating_point() and value.dim():
            value += 0.1 * torch.randn(value.shape)
    return state


def prune_file(path):
    """`fairseq-ext prune` of a checkpoint whose gates close; the paths of both."""
    closed, pruned = path.parent / "closed.pt", path.parent / "pruned.pt"
    torch.save(close(load_checkpoint(str(path))), closed)
    cli.main(["prune", str(closed), str(pruned), "--force"])
    return closed, pruned


@pytest.fixture(scope="module")
def translation(data_bin, tmp_path_factory):
    """A translation model with every kind of part that has parameters of heads."""
    folder = tmp_path_factory.mktemp("translation")
    layers = "--encoder-layers 2 --decoder-layers 2 --lr 1e-3 --warmup-updates 1".split()
    parts = "--encoder-normaliser hybrid --decoder-normaliser sink --cross-normaliser sink".split()
    parts += "--decoder-positions rotary --asa-layers 0".split()
    criterion = ["--criterion", "label_smoothed_cross_entropy_ag_asa_l0", "--ag-alpha", 1]
    return train(data_bin, "transformer_una_tiny", folder, 1, *SITES, *layers, *parts, *criterion)


def test_translations_and_losses_are_the_same(data_bin, translation, capsys):
    paths = prune_file(translation)
    said = capsys.readouterr().out
    assert "encoder: 8 -> 2 heads, by layer 4/4 -> 2/0\n" in said
    assert "decoder: 8 -> 4 heads, by layer 4/4 -> 0/4\n" in said
    assert "cross: 8 -> 7 heads, by layer 4/4 -> 4/3\n" in said
    sizes = [sum(x.numel() for x in read_parameters(path).values()) for path in paths]
    assert sizes[1] < sizes[0]
    assert paths[1].stat().st_size < paths[0].stat().st_size
    before, after = (read_hypotheses(generate(data_bin, path)) for path in paths)
    assert len({text for _, text, _ in before.values()}) > 3
    same = [number for number, (_, text, _) in before.items() if after[number][1] == text]
    assert len(same) > 0.9 * len(before)  # a hardly trained model has near ties
    for number in same:
        assert after[number][0] == pytest.approx(before[number][0], abs=1e-4)
        assert after[number][2] == pytest.approx(before[number][2], abs=2e-4)
    validate = [
        "validate",
        data_bin,
        *"--task translation --cpu --num-workers 0 --max-tokens 1000 --user-dir".split(),
        PLUGIN,
        "--path",
    ]
    losses = [
        re.findall(r"\| loss ([\d.]+)", done.stdout + done.stderr)
        for done in (fairseq(*validate, path) for path in paths)
    ]
    assert losses[0] == losses[1] != []
    state = load_checkpoint(str(paths[1]))
    assert state["cfg"]["criterion"]["_name"] == "label_smoothed_cross_entropy"
    assert "last_optimizer_state" not in state and not [n for n in state["model"] if "gate" in n]


def test_outputs_of_a_translation_model(translation):
    """Compare a batch with padding in float64: teacher forcing, and step by step."""
    paths = prune_file(translation)
    source = torch.tensor([[1, 1, 5, 6, 7, 2], [8, 9, 10, 11, 12, 2]])
    target = torch.tensor([[2, 5, 6, 7], [2, 9, 8, 7]])
    outputs, steps = [], []
    for path in paths:
        model = _load(path)
        model.double().eval()
        encoded = model.encoder(source, None)
        outputs.append(model.decoder(target, encoded)[0])
        state: dict = {}
        each = [model.decoder(target[:, : t + 1], encoded, state)[0] for t in range(4)]
        steps.append(torch.cat(each, 1))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)
    torch.testing.assert_close(*steps, rtol=0, atol=1e-6)
    torch.testing.assert_close(steps[1], outputs[1], rtol=0, atol=1e-6)
    heads = {(m.site, m.layer): m.num_heads for m in model.modules() if isinstance(m, Attention)}
    assert heads == {
        ("encoder", 0): 2,
        ("encoder", 1): 0,
        ("decoder", 0): 0,
        ("decoder", 1): 4,
        ("cross", 0): 4,
        ("cross", 1): 3,
    }
    assert not find_gates(model) and not outputs[0].isnan().any()


def _load(path):
    from fairseq import checkpoint_utils

    return checkpoint_utils.load_model_ensemble([str(path)])[0][0]


@pytest.mark.slow
def test_every_command_reads_it(data_bin, translation, tmp_path):
    """Analyses leave out layers without heads; a training continues with fewer heads."""
    _, pruned = prune_file(translation)
    out = tmp_path / "analysis"
    cli.main(["analyse", str(pruned), "--data", str(data_bin), "--limit", "8", "--out", str(out)])
    rows = (out / "heads.csv").read_text().splitlines()[1:]
    assert len(rows) == 2 + 4 + 7
    left = "--encoder-heads-left 2/0 --decoder-heads-left 0/4 --cross-heads-left 4/3".split()
    parts = "--encoder-normaliser hybrid --decoder-normaliser sink --cross-normaliser sink".split()
    parts += "--decoder-positions rotary --lr 1e-3 --warmup-updates 1".split()
    again = ["--finetune-from-model", pruned, "--encoder-layers", 2, "--decoder-layers", 2]
    criterion = ["--criterion", "label_smoothed_cross_entropy"]
    flags = (*left, *parts, *again, *criterion)
    tuned = train(data_bin, "transformer_una_tiny", tmp_path / "tuned", 2, *flags)
    before, after = map(read_parameters, (pruned, tuned))
    assert before.keys() == after.keys()
    assert not torch.equal(
        *(x["encoder.layers.1.self_attn.out_proj.bias"] for x in (before, after))
    )


def test_an_encoder(tmp_path, encoder_data):
    flags = "--encoder-layers 2 --head-gate l0 --segments 0".split()
    path = train_encoder(
        encoder_data, "roberta_una_tiny", tmp_path, *flags, "--criterion", "masked_lm_l0"
    )
    state = load_checkpoint(str(path))
    for name, value in state["model"].items():
        if name.endswith("0.self_attn.gate.offset"):
            value[:3] = -9
    torch.save(state, path)
    cli.main(["prune", str(path), str(tmp_path / "pruned.pt")])
    tokens = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 9, 2, 1]])
    models = [_load(each).double().eval() for each in (path, tmp_path / "pruned.pt")]
    outputs = [model(tokens)[0][tokens.ne(1)] for model in models]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)
    layers = models[1].encoder.sentence_encoder.layers
    assert [layer.self_attn.num_heads for layer in layers] == [5, 8]
    assert layers[0].self_attn.q_proj.weight.shape == (80, 128)


def test_gates_are_multiplied_into_the_outputs():
    """Worked: of two heads of width 1 the second is open by 0.58; its column is 0.58 as large."""
    full = Attention(2, 2, site="encoder", gate=L0Gate(2)).eval()
    full.gate.offset.data = torch.tensor([-9.0, -2 + 0.2683])  # sigmoid(.2683) = .5667
    small = Attention(2, 2, site="encoder", heads_left=1).eval()
    full, small = full.double(), small.double()
    prune.copy_open_heads(full, small)
    expected = 0.58 * full.out_proj.weight[:, 1:]
    torch.testing.assert_close(small.out_proj.weight, expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(small.v_proj.weight, full.v_proj.weight[1:])
    prune.check_same(full, small, "here")
    small.out_proj.weight.data *= 1.001
    with pytest.raises(UsageError, match="without its closed heads here would compute something"):
        prune.check_same(full, small, "here")


def test_projections_of_relative_positions_are_those_of_the_heads_left():
    """DeBERTa's, of the first version: a column less for each channel of a closed head."""
    scorer = {"disentangled_own_projections": True, "disentangled_buckets": 4}
    scorer = SCORERS.build("disentangled", 2, disentangled_distance=6, **scorer)
    normaliser = build_normaliser("softmax", 2)
    full, small = (
        Attention(
            *(6, 2),
            site="encoder",
            groups=[HeadGroup(heads, normaliser=normaliser, scorer=scorer)],
            **more,
        )
        .double()
        .eval()
        for heads, more in ((2, {"gate": L0Gate(2)}), (1, {"heads_left": 1}))
    )
    full.gate.offset.data = torch.tensor([-9.0, -1.0])
    prune.copy_open_heads(full, small)
    torch.testing.assert_close(small.relative.key.weight, full.relative.key.weight[3:])
    prune.check_same(full, small, "here")


def test_a_layer_without_heads_is_the_bias_of_its_output():
    model = build_tiny_model("transformer_una_tiny", encoder_heads_left="0/4").double()
    attention = model.encoder.layers[0].self_attn
    x = torch.randn(3, 2, 32, dtype=torch.float64)
    out, weights = attention(x, x, x)
    torch.testing.assert_close(out, attention.out_proj.bias.expand_as(out))
    assert weights is None and attention.out_proj.weight.shape == (32, 0)
    out.sum().backward()
    torch.testing.assert_close(attention.out_proj.bias.grad, torch.full((32,), 6.0).double())


def test_every_parameter_of_a_model_with_layers_without_heads_has_a_gradient():
    """DDP asks for it."""
    left = {f"{site}_heads_left": "0/4" for site in ("encoder", "decoder", "cross")}
    before = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    model = build_tiny_model("transformer_una_tiny", **left, **before)
    tokens = torch.tensor([[5, 6, 7, 2]])
    model(tokens, torch.tensor([4]), tokens)[0].sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoder_heads_left": "3"}, "for each of the 2 layers"),
        ({"encoder_heads_left": "3/5"}, "a number from 0 to 4"),
        ({"encoder_heads_left": "3/x"}, "--encoder-heads-left 3/x: give all"),
        (
            {"encoder_heads_left": "3/3", "encoder_gaussian_heads": "1"},
            "does not go with --encoder-gaussian-heads 1",
        ),
        ({"encoder_heads_left": "3/3", "encoder_roles": "rare"}, "with --encoder-roles rare"),
        ({"decoder_heads_left": "3/3", "decoder_positions": "t5"}, "with --decoder-positions t5"),
        (
            {"cross_heads_left": "3/3", "share_encoder_decoder_layers": True},
            "--cross-heads-left 3/3 leaves out some; leave that out",
        ),
        ({"encoder_heads_left": "0/4", "asa_layers": "all"}, "layer 0, which has no head left"),
    ],
)
def test_options_that_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        build_tiny_model("transformer_una_tiny", **options)


def test_heads_of_layers():
    assert list_heads_left("cross", 4, 3, {"cross_heads_left": "all"}) == [4, 4, 4]
    assert list_heads_left("cross", 4, 3, {"cross_heads_left": "4/0/1"}) == [4, 0, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"head_gate": "none"}, "x.pt has --head-gate none, which closes no heads; give"),
        ({"head_gate": "static"}, "--head-gate static, which closes no heads"),
        ({"encoder_roles": "rare"}, "has --encoder-roles rare, which says by their place"),
        ({"encoder_gaussian_heads": "2"}, "has --encoder-gaussian-heads 2, which says"),
        ({"encoder_positions": "t5"}, "--encoder-positions t5, which .* is shared by all layers"),
        ({"share_encoder_decoder_layers": True}, "--share-encoder-decoder-layers, so that its"),
        ({"encoder_layers_to_keep": "0"}, "--encoder-layers-to-keep 0, and layers are to be"),
    ],
)
def test_models_that_cannot_be_pruned(options, said):
    from fairseq_ext.models.options import DEFAULTS

    with pytest.raises(UsageError, match=said):
        prune.check_prunable(DEFAULTS | {"head_gate": "l0"} | options, "x.pt")


def test_criterions_under_fairseq_s_name_lose_their_regularisers_too():
    """Options of regularisers go with them."""
    criterion = {"_name": "sentence_prediction_l0", "l0_weight": 0.5, "regression_target": False}
    plain = {"_name": "sentence_prediction", "regression_target": False}
    assert prune.drop_regularisers(criterion) == plain
    assert prune.drop_regularisers(plain) == plain


def test_parts_that_depend_on_the_number_of_heads(data_bin, tmp_path, capsys):
    """ALiBi's slopes do; the checkpoint is left as it is, and no other one is made."""
    more = ["--encoder-positions", "alibi", "--criterion", "label_smoothed_cross_entropy_l0"]
    layers = "--encoder-layers 1 --decoder-layers 1".split()
    path = train(data_bin, "transformer_una_tiny", tmp_path, 1, "--head-gate", "l0", *layers, *more)
    with pytest.raises(UsageError, match=r"encoder layer 0 would compute something else .* ALiBi"):
        prune_file(path)
    assert not (tmp_path / "pruned.pt").exists()
    with pytest.raises(UsageError, match=r"checkpoint_last\.pt exists already; choose another"):
        cli.main(["prune", str(path), str(path)])
    with pytest.raises(UsageError, match=r"mix is \[2, 2\] with all heads and \[1, 1\] with those"):
        prune._select_heads("mix", torch.ones(2, 2), torch.ones(1, 1), torch.tensor([True, False]))


@pytest.mark.parametrize("scorer", ["dense", "random", "disentangled"])
def test_scores_that_are_learned_for_each_head(scorer, data_bin, tmp_path):
    """The encoder's scores are made without queries, keys or both."""
    more = ["--encoder-scorer", scorer, "--criterion", "label_smoothed_cross_entropy_l0"]
    more += "--encoder-layers 2 --decoder-layers 1 --head-gate l0".split()
    path = train(data_bin, "transformer_una_tiny", tmp_path, 1, *more)
    source = torch.tensor([[1, 1, 5, 6, 7, 2], [8, 9, 10, 11, 12, 2]])
    states = []
    for each in prune_file(path):
        model = _load(each).double().eval()
        states.append(model.encoder(source, None)["encoder_out"][0])
    torch.testing.assert_close(*states, rtol=0, atol=1e-6)
    assert [layer.self_attn.num_heads for layer in model.encoder.layers] == [2, 0]
