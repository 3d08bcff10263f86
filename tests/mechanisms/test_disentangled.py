"""Disentangled attention: a naive twin, worked buckets, options, models, what is refused."""

import math

import pytest
import torch
from cases import slow_but_first
from mechanism_cases import Case
from naive import normalise

from fairseq_ext.attention import SCORERS, Attention, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.disentangled import Disentangled, RelativeEmbeddings
from fairseq_ext.mechanisms.kernels import distances
from fairseq_ext.models.config import check_requirements
from fairseq_ext.models.options import DEFAULTS, OPTION_REQUIREMENTS
from fairseq_ext.testing import check_model
from fairseq_ext.testing.mechanisms import build_tiny_model

H, D, T = 3, 4, 9
OWN = {"disentangled_own_projections": True}
OPTIONS = {
    "v3": {},
    "v1": {"disentangled_buckets": 0, "disentangled_distance": 20, **OWN},
    "short": {"disentangled_buckets": 0, "disentangled_distance": 4, **OWN},
    "c2p": {"disentangled_terms": "c2p"},
    "p2c": {"disentangled_terms": "p2c", **OWN},
}
SMALL = {"disentangled_buckets": 4, "disentangled_distance": 7}
CASES = [
    Case(
        "disentangled",
        "scorer",
        options=(SMALL,),
        flags="--encoder-scorer disentangled --disentangled-buckets 4 --disentangled-distance 6",
        own="relative.embedding.weight",
        encoder_only=True,
        biases={},  # both are compared with distances, too
    )
]


def bucket(distance, buckets, largest):
    """The row of a distance, after the formula of the second paper's code."""
    span, middle = buckets or largest, buckets // 2
    row = distance
    if buckets and abs(distance) > middle:
        share = math.log(abs(distance) / middle) / math.log((largest - 1) / middle)
        row = math.copysign(middle + math.ceil(share * (middle - 1)), distance)
    return int(min(max(row + span, 0), 2 * span - 1))


def attention(options, normaliser="softmax"):
    torch.manual_seed(0)
    scorer = SCORERS.build("disentangled", H, **(SMALL | options))
    group = HeadGroup(H, normaliser=build_normaliser(normaliser, H), scorer=scorer)
    module = Attention(H * D, H, site="encoder", groups=[group]).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module, torch.randn(2 * scorer.span, H * D).double().requires_grad_()


def naive_attention(module, relative, x, padding, kind):
    """[T, B, C] -> [T, B, C], pair by pair."""
    scorer, project = module.groups[0].scorer, module.relative
    key, query = project.key or module.k_proj, project.query or module.q_proj
    outputs = []
    for b in range(x.size(1)):
        q, k, v = (p(x[:, b]).view(T, H, D) for p in (module.q_proj, module.k_proj, module.v_proj))
        heads = []
        for h in range(H):
            own = slice(h * D, (h + 1) * D)
            scores = []
            for i in range(T):
                for j in range(T):
                    row = relative[bucket(i - j, scorer.buckets, scorer.distance)]
                    score = q[i, h] @ k[j, h]
                    if "c2p" in scorer.terms:
                        score = score + q[i, h] @ key(row)[own]
                    if "p2c" in scorer.terms:
                        score = score + k[j, h] @ query(row)[own]
                    scores.append(score / math.sqrt(D * (1 + len(scorer.terms))))
            masked = padding[b].expand(T, T)
            scores = torch.stack(scores).view(T, T)
            heads.append(normalise(kind, scores, masked, padding[b]) @ v[:, h])
        outputs.append(torch.cat(heads, -1))
    return module.out_proj(torch.stack(outputs, 1))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", slow_but_first(["softmax", "doubly"]))
def test_twin(name, kind):
    """Outputs and every gradient, with padding."""
    module, relative = attention(OPTIONS[name], kind)
    x = torch.randn(T, 2, H * D, dtype=torch.double, requires_grad=True)
    padding = torch.zeros(2, T, dtype=torch.bool)
    padding[1, -2:] = True
    real = ~padding.T[..., None]
    inputs = Inputs(padding, relative=relative)
    pair = [
        module(x, x, x, inputs, need_weights=False)[0] * real,
        naive_attention(module, relative, x, padding, kind) * real,
    ]
    torch.testing.assert_close(*pair)
    probe, wanted = torch.randn_like(x), [x, relative, *module.parameters()]
    grads = [torch.autograd.grad(out, wanted, probe) for out in pair]
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("normaliser", ["softmax", "sink"])
def test_positions_are_trained_where_queries_are_not(normaliser, monkeypatch):
    monkeypatch.setattr(softmax, "MIN_SCORES", 0)
    module, relative = attention(OPTIONS["v3"], normaliser)
    x, relative = torch.randn(T, 2, H * D).double(), relative.requires_grad_()
    grads = []
    for trained in (True, False):
        module.q_proj.requires_grad_(trained)
        out = module(x, x, x, Inputs(relative=relative), need_weights=False)[0]
        grads += torch.autograd.grad(out.square().sum(), relative)
    assert grads[0].abs().max() > 0
    torch.testing.assert_close(*grads)


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("normaliser", ["softmax", "sink"])
def test_the_fused_kernel_computes_the_same(name, normaliser, monkeypatch):
    monkeypatch.setattr(softmax, "MIN_SCORES", 0)
    module, relative = attention(OPTIONS[name], normaliser)
    x = torch.randn(T, 2, H * D).double()
    padding = torch.zeros(2, T, dtype=torch.bool)
    padding[1, -2:] = True
    inputs = Inputs(padding, relative=relative)
    expected = module(x, x, x, inputs, need_weights=True)[0]
    monkeypatch.setattr(module.groups[0].normaliser, "weights", None)
    torch.testing.assert_close(module(x, x, x, inputs, need_weights=False)[0], expected)


@pytest.mark.parametrize(("buckets", "distance"), [(0, 6), (4, 7), (32, 90), (256, 512)])
def test_buckets(buckets, distance):
    scorer = Disentangled(1, "c2p", buckets, distance)
    every = torch.arange(-700, 701)
    theirs = [bucket(int(d), buckets, distance) for d in every]
    assert scorer.bucket(every).tolist() == theirs
    assert min(theirs) == 0 and max(theirs) == 2 * scorer.span - 1


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_blocks_are_one_product(length, monkeypatch):
    """Blocks have 4 tokens, the last one perhaps fewer; outputs and every gradient are compared."""
    x, table, scores = (
        torch.randn(*shape, dtype=torch.double, requires_grad=True)
        for shape in ((2, H, length, D), (H, D, 2 * length - 1), (2, H, length, length))
    )
    for keys in (False, True):
        terms = torch.stack(
            [
                torch.stack(
                    [
                        torch.einsum("bhd,hd->bh", x[:, :, j if keys else i], table[:, :, column])
                        for j in range(length)
                        for column in [length - 1 + (i - j if keys else j - i)]
                    ],
                    -1,
                )
                for i in range(length)
            ],
            2,
        )
        monkeypatch.setattr(distances, "BLOCKS", {"cpu": 4})
        pair = [distances.add_distances(scores + 0.0, x, table, keys), scores + terms]
        torch.testing.assert_close(*pair)
        probe = torch.randn_like(scores)
        grads = [torch.autograd.grad(each, (scores, x, table), probe) for each in pair]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("mixed", [False, True])
def test_16_bits(mixed):
    """Outputs and gradients of a model in 16 bits, or autocast, are near those in 32 bits."""
    model = build_tiny_model("deberta_una_tiny", **SMALL, **OWN)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 2], [5, 7, 6, 2, 1, 1]])
    real = tokens.ne(1)
    expected = model(tokens)[0][real].detach()
    if not mixed:
        model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        logits = model(tokens)[0][real]
    assert (logits.float() - expected).norm() < 0.03 * expected.norm()
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_worked_buckets():
    """Distances from -2 to 2 have buckets of their own; 3 to 6 share one, and so do the rest."""
    scorer = Disentangled(1, "c2p", 4, 7)
    rows = scorer.bucket(torch.arange(-8, 9))
    assert rows.tolist() == [0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7]


def test_embeddings_are_normalised_or_not():
    for raw in (False, True):
        scorer = Disentangled(1, "c2p", 4, 7, False, raw)
        embeddings = RelativeEmbeddings(scorer, 6)
        rows = embeddings()
        assert rows.shape == (8, 6)
        assert torch.allclose(rows.std(1, unbiased=False), torch.ones(8), atol=0.1) != raw


def test_relative_embeddings_are_dropped_out_in_training_alone():
    module, relative = attention({})
    module.relative.dropout.p = 0.5
    x = torch.randn(T, 1, H * D).double()
    outputs = [module(x, x, x, Inputs(relative=relative))[0] for _ in range(2)]
    assert not torch.allclose(*outputs)
    module.eval()
    outputs = [module(x, x, x, Inputs(relative=relative))[0] for _ in range(2)]
    torch.testing.assert_close(*outputs)


MODELS = [
    {"encoder_normaliser": "doubly", "encoder_roles": "relative"},
    {"encoder_normaliser": "hybrid", "encoder_gaussian_heads": "2", "checkpoint_activations": True},
    {"encoder_normaliser": "sinkformer", **OWN, "encoder_head_mixer": "talking"},
    {
        "encoder_positions": "alibi",
        "encoder_normaliser": "sink",
        "disentangled_raw_embeddings": True,
    },
    {"encoder_positions": "t5", "head_gate": "input", "disentangled_terms": "p2c"},
]


@pytest.mark.parametrize("options", slow_but_first(MODELS))
def test_invariants(options):
    """Among other parts of attention, in both families; sentences are longer than buckets."""
    for name in ("transformer_una_tiny", "roberta_una_tiny"):
        check_model(name, encoder_scorer="disentangled", **SMALL, **options)


def test_all_layers_share_the_embeddings_and_positions_matter():
    model = build_tiny_model("roberta_una_tiny", encoder_scorer="disentangled", **SMALL)
    names = [name for name in model.state_dict() if "relative" in name]
    assert names == [
        f"encoder.sentence_encoder.relative.{name}"
        for name in ("embedding.weight", "norm.weight", "norm.bias")
    ]
    options = {"encoder_positions": "none", "encoder_scorer": "disentangled", **SMALL, **OWN}
    model = build_tiny_model("roberta_una_tiny", **options)
    assert sum("self_attn.relative" in name for name in model.state_dict()) == 2 * 4
    assert not any("embed_positions" in name for name in model.state_dict())
    tokens = torch.tensor([[5, 6, 7, 8, 2], [5, 7, 6, 8, 2]])
    with torch.no_grad():
        one, other = model(tokens)[0]
    assert (one[0] - other[0]).abs().max() > 1e-4


REFUSED = [
    ({"decoder_scorer": "disentangled"}, "decoder attention cannot use a scorer of encoders alone"),
    ({"cross_scorer": "disentangled"}, "use --cross-scorer dot"),
    ({"disentangled_terms": "p2p"}, "--disentangled-terms is 'p2p'; give c2p, p2c, or c2p,p2c"),
    ({"disentangled_terms": ""}, "--disentangled-terms is ''"),
    ({"disentangled_buckets": 7}, "--disentangled-buckets is 7; give an even number"),
    ({"disentangled_buckets": 2}, "--disentangled-buckets is 2"),
    ({"disentangled_distance": 129}, "256, half as many .* own, and --disentangled-distance 129"),
    ({"encoder_positions": "rotary"}, "turns queries and keys"),
    ({"encoder_head_mixer": "differential"}, "only --encoder-scorer dot compares"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_is_refused(options, said):
    scorer = (
        {}
        if any(name.endswith("_scorer") for name in options)
        else {"encoder_scorer": "disentangled"}
    )
    with pytest.raises(UsageError, match=said):
        build_tiny_model("transformer_una_tiny", **scorer, **options)


def test_attention_without_an_encoder_is_refused():
    module, _ = attention({})
    x = torch.randn(T, 1, H * D).double()
    with pytest.raises(UsageError, match="hands down as Inputs.relative"):
        module(x, x, x)


def test_options_without_effect():
    options = {**DEFAULTS, "disentangled_buckets": 8}
    with pytest.raises(UsageError, match="with --encoder-scorer dot; leave it out") as refused:
        check_requirements(options, DEFAULTS, DEFAULTS, OPTION_REQUIREMENTS)
    assert "decoder" not in str(refused.value)
