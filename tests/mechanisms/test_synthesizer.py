"""Scores without content: naive twins, padding, lengths, decoding, what is refused."""

import naive
import pytest
import torch
from cases import slow_but_first
from conftest import PLUGIN, fairseq, train
from invariants import run
from mechanism_cases import Case
from torch import Tensor

from fairseq_ext.attention import SCORERS, Attention, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention.context import AttentionContext, HeadCall
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import check_requirements
from fairseq_ext.models.options import DEFAULTS, OPTION_REQUIREMENTS
from fairseq_ext.testing import check_model
from fairseq_ext.testing.mechanisms import build_tiny_model


def dense(q: Tensor, k: Tensor, scorer, head: int) -> Tensor:
    """Scores [T, S] of an MLP of each query (Tay et al. 2020); keys count by their number alone."""
    rows = []
    for i in range(len(q)):
        hidden = [x if x > 0 else 0 * x for x in q[i]]
        row = []
        for j in range(len(k)):
            weights = scorer.weight[head, :, j]
            row.append(
                sum(w * x for w, x in zip(weights, hidden, strict=True)) + scorer.bias[head, j]
            )
        rows.append(torch.stack(row))
    return torch.stack(rows)


def random(q: Tensor, k: Tensor, scorer, head: int) -> Tensor:
    """Scores [T, S] that are parameters."""
    rows = [torch.stack([scorer.scores[head, i, j] for j in range(len(k))]) for i in range(len(q))]
    return torch.stack(rows)


CASES = [
    Case(
        "dense",
        "scorer",
        twin=dense,
        flags="--encoder-scorer dense",
        own="scorer.weight",
        biases={"keys": "scorer.bias"},  # queries are bent by ReLU
    ),
    Case(
        "random",
        "scorer",
        twin=random,
        flags="--encoder-scorer random",
        own="scorer.scores",
    ),
]
TWINS = {case.name: case.twin for case in CASES}
KINDS = pytest.mark.parametrize("kind", TWINS)
H, D, T, L = 3, 4, 7, 7


def attention(kind, length=L, normaliser="softmax", gaussian=False):
    torch.manual_seed(0)
    scorer = SCORERS.build(kind, H, width=D, synthesizer_length=length)
    group = HeadGroup(H, normaliser=build_normaliser(normaliser, H), scorer=scorer)
    module = Attention(H * D, H, site="encoder", groups=[group]).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def naive_attention(kind, module, x, padding, causal):
    """[T, B, C] -> [T, B, C], each sentence without its padding."""
    scorer = module.groups[0].scorer
    outputs = []
    for b in range(x.size(1)):
        real = x[~padding[b], b]
        v = module.v_proj(real).unflatten(-1, (H, D))
        q = v if module.q_proj is None else module.q_proj(real).unflatten(-1, (H, D))
        heads = []
        for h in range(H):
            e = TWINS[kind](q[:, h], v[:, h], scorer, h).exp()
            heads.append(naive.rows(e.tril() if causal else e) @ v[:, h])
        whole = x.new_zeros(T, H * D).masked_scatter(
            ~padding[b][:, None], module.out_proj(torch.cat(heads, -1))
        )
        outputs.append(whole)
    return torch.stack(outputs, 1)


@KINDS
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_twin(kind, side, causal):
    """Outputs and every gradient; positions count from the first real token, 5 at most."""
    module = attention(kind, 5)
    x = torch.randn(T, 3, H * D, dtype=torch.double, requires_grad=True)
    padding = torch.zeros(3, T, dtype=torch.bool)
    for row, pads in enumerate((2, 3, 5)):
        padding[row, slice(pads) if side == "left" else slice(T - pads, T)] = True
    real = ~padding.T[..., None]
    pair = [
        module(x, x, x, Inputs(padding, causal), need_weights=False)[0] * real,
        naive_attention(kind, module, x, padding, causal) * real,
    ]
    torch.testing.assert_close(*pair)
    probe, wanted = torch.randn_like(x), [x, *module.parameters()]
    grads = [torch.autograd.grad(out, wanted, probe) for out in pair]
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-6)


@KINDS
def test_token_by_token_after_padding_on_the_left(kind):
    module = attention(kind, 5)
    x = torch.randn(T, 3, H * D).double()
    padding = torch.arange(T) < torch.tensor([[2], [3], [5]])
    whole, _ = module(x, x, x, Inputs(padding, causal=True), need_weights=False)
    state, steps = {}, []
    for t, step in enumerate(x.split(1)):
        inputs = Inputs(padding[:, t : t + 1])
        steps.append(module(step, step, step, inputs, state, need_weights=False)[0])
    real = ~padding.T[..., None]
    torch.testing.assert_close(torch.cat(steps) * real, whole * real)


def scores(scorer, q, first=0, keys=None, padding=None):
    """[T, S] scores of one head and sentence; q [T, D]."""
    keys = keys or len(q)
    context = AttentionContext(Inputs(), len(q), keys, first, q.device, key_padding=padding)
    call = HeadCall(q[None, None], q[None, None], q[None, None], context, slice(0, 1))
    return scorer(call)[0, 0]


def test_worked_numbers():
    learned = SCORERS.build("dense", 1, width=2, synthesizer_length=3)
    learned.weight.data = torch.tensor([[[1.0, 2, 3], [10, 20, 30]]])
    learned.bias.data = torch.tensor([[0.5, 0, -0.5]])
    q = torch.tensor([[1.0, -4], [-1, 2], [0, 0]])
    close = torch.testing.assert_close
    close(scores(learned, q), torch.tensor([[1.5, 2, 2.5], [20.5, 40, 59.5], [0.5, 0, -0.5]]))
    close(scores(learned, q[1:2], first=1, keys=2), torch.tensor([[20.5, 40]]))
    fixed = SCORERS.build("random", 1, synthesizer_length=3)
    fixed.scores.data = torch.arange(9.0).view(1, 3, 3)
    close(scores(fixed, q[:2]), torch.tensor([[0.0, 1], [3, 4]]))
    close(scores(fixed, q[:1], first=2, keys=3), torch.tensor([[6.0, 7, 8]]))
    left = torch.tensor([[True, False, False]])
    close(scores(fixed, q, padding=left)[1:, 1:], torch.tensor([[0.0, 1], [3, 4]]))


@KINDS
def test_there_are_no_projections_that_nothing_reads(kind):
    module = attention(kind)
    assert module.k_proj is None and (module.q_proj is None) == (kind == "random")
    mixed = (
        build_tiny_model("transformer_una_tiny", encoder_scorer=kind, encoder_gaussian_heads="2")
        .encoder.layers[0]
        .self_attn
    )
    assert mixed.k_proj is None
    if kind == "dense":
        assert mixed.q_proj.weight.shape == (16, 32)


def test_a_score_does_not_depend_on_keys():
    """And a random one on no token at all."""
    for kind in TWINS:
        module = attention(kind)
        x = torch.randn(T, 1, H * D).double()
        y = torch.cat([x[:1], torch.randn(T - 1, 1, H * D).double()])
        maps = [module(each, each, each)[1] for each in (x, y)]
        torch.testing.assert_close(maps[0][:, :1], maps[1][:, :1])
        assert torch.allclose(*maps) == (kind == "random")


def test_dropout_is_of_each_sentence():
    module = attention("random")
    module.dropout_module.p = 0.5
    x = torch.randn(T, 1, H * D).double().expand(-1, 2, -1)
    out, _ = module.train()(x, x, x, need_weights=False)
    assert not torch.allclose(out[:, 0], out[:, 1])


MIXED = [
    {"encoder_scorer": "dense", "encoder_normaliser": "doubly", "encoder_gaussian_heads": "2"},
    {"encoder_scorer": "random", "encoder_normaliser": "hybrid", "encoder_roles": "relative"},
    {"encoder_scorer": "random", "encoder_positions": "alibi", "decoder_scorer": "dense"},
    {"decoder_scorer": "random", "decoder_normaliser": "sink", "decoder_positions": "t5"},
    {"decoder_scorer": "dense", "decoder_normaliser": "sink", "checkpoint_activations": True},
]


@pytest.mark.parametrize("options", slow_but_first(MIXED))
def test_invariants(options):
    """With sentences as long as there are positions, and padding beyond them."""
    check_model(synthesizer_length=6, **options)


@KINDS
def test_encoders_and_language_models(kind):
    check_model("roberta_una_tiny", encoder_scorer=kind, synthesizer_length=6)
    check_model("transformer_lm_una_tiny", decoder_scorer=kind, synthesizer_length=5)


@KINDS
def test_lengths(kind):
    """A model says how much it reads, and refuses more."""
    both = {"encoder_scorer": kind, "decoder_scorer": kind, "synthesizer_length": 8}
    model = build_tiny_model("transformer_una_tiny", **both)
    assert model.max_positions() == (8, 8)
    one_side = {"decoder_scorer": kind, "synthesizer_length": 8, "max_target_positions": 7}
    assert build_tiny_model("transformer_una_tiny", **one_side).max_positions() == (1024, 7)
    encoder = {"encoder_scorer": kind, "synthesizer_length": 8}
    assert build_tiny_model("roberta_una_tiny", **encoder).max_positions() == 8
    lm = {"decoder_scorer": kind, "synthesizer_length": 8}
    assert build_tiny_model("transformer_lm_una_tiny", **lm).max_positions() == 8
    for sources, targets in (([[5] * 9], [[2, 5]]), ([[5, 2]], [[2] * 9])):
        with pytest.raises(UsageError, match="has 9 tokens, and --synthesizer-length is 8; give"):
            run(model, sources, targets)
    run(model, [[5] * 8], [[2] * 8])


def test_fixed_scores_are_kept_and_not_trained():
    options = {"encoder_scorer": "random", "synthesizer_fixed": True}
    model = build_tiny_model("transformer_una_tiny", **options).train()
    model(torch.tensor([[5, 6, 2]]), None, torch.tensor([[2, 7]]))[0].sum().backward()
    for layer in model.encoder.layers:
        fixed = layer.self_attn.groups[0].scorer.scores
        assert not fixed.requires_grad and fixed.grad is None
    assert sum(name.endswith("scorer.scores") for name in model.state_dict()) == 2


def test_scores_of_another_length_are_refused():
    """They would be replaced by initial ones."""
    options = {"encoder_scorer": "random"}
    state = build_tiny_model("transformer_una_tiny", **options, synthesizer_length=8).state_dict()
    model = build_tiny_model("transformer_una_tiny", **options, synthesizer_length=9)
    said = r"layers.0.self_attn.*scores is \[.*8\] in the checkpoint and \[.*9\] here; give the opt"
    with pytest.raises(UsageError, match=said):
        model.load_state_dict(state, strict=True)


REFUSED = [
    ({"cross_scorer": "dense"}, "cross attention cannot use a scorer without content"),
    ({"cross_scorer": "random"}, "use --cross-scorer dot"),
    ({"encoder_scorer": "dense", "encoder_positions": "rotary"}, "turns queries and keys"),
    ({"decoder_scorer": "random", "decoder_positions": "rotary"}, "give --decoder-scorer dot"),
    ({"encoder_scorer": "dense", "synthesizer_length": 0}, "--synthesizer-length is 0; give a"),
    (
        {"encoder_scorer": "dense", "decoder_scorer": "dense"}
        | {"share_encoder_decoder_layers": True},
        "no --encoder-scorer or --decoder-scorer",
    ),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        build_tiny_model("transformer_una_tiny", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"synthesizer_length": 9}, "has no effect with --encoder-scorer dot and --decoder-sc"),
        ({"encoder_scorer": "dense", "synthesizer_fixed": True}, "give --encoder-scorer random"),
    ],
)
def test_options_without_effect(options, said):
    with pytest.raises(UsageError, match=said) as refused:
        check_requirements({**DEFAULTS, **options}, DEFAULTS, DEFAULTS, OPTION_REQUIREMENTS)
    assert "cross" not in str(refused.value)


def test_commands(letters, tmp_path):
    """Trained, generated with as far as positions go, and too long sentences refused."""
    flags = ["--encoder-scorer", "dense", "--decoder-scorer", "random", "--synthesizer-length"]
    last = train(letters, "transformer_una_tiny", tmp_path, 2, *flags, 12)
    common = ["--user-dir", PLUGIN, "--path", last, "--gen-subset", "valid", "--cpu", "--beam", 2]
    done = fairseq("generate", letters, *common, "--unkpen", 1, "--min-len", 11)
    assert done.stdout.count("\nH-") == 40
    again = train(letters, "transformer_una_tiny", tmp_path, 3, *flags, 12)
    assert again.exists()
    command = ["--task", "translation", "-s", "de", "-t", "en", "--cpu", "--max-tokens", 600]
    command += ["--arch", "transformer_una_tiny", "--optimizer", "adam", "--no-save"]
    short = fairseq("train", letters, "--user-dir", PLUGIN, *command, *flags, 4, check=False)
    assert short.returncode and "Traceback" not in short.stderr
    assert "tokens, its end counted, and 4 are possible" in short.stderr
