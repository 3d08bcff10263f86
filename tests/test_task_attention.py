"""Task-specific attention (Jia 2024) and its heads, against the paper's equations and counts."""

from argparse import Namespace

import pytest
import torch
from torch import nn

from fairseq_ext.errors import UsageError
from fairseq_ext.models.task_heads import (
    Linear,
    Mlp,
    Product,
    SentenceHead,
    TaskAttention,
    parse_initialiser,
    pool_first,
    pool_max,
    pool_mean,
    swap_pairs,
)
from fairseq_ext.tasks.sentences import SentenceClassificationTask, SentenceRegressionTask

WIDTH, HEADS = 12, 3
LENGTHS = (5, 3, 1, 4)  # of two pairs, or of four sentences
EXACT = {"rtol": 0, "atol": 1e-12}
SIDES = pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])


def build(layers=2, cross=False, **options):
    torch.manual_seed(1)
    return TaskAttention(WIDTH, HEADS, layers=layers, cross=cross, **options).double()


def batch(lengths=LENGTHS, padding_to=0):
    """Features [B, S, C] and padding [B, S]; what stands at padding is large."""
    torch.manual_seed(2)
    sentences = [torch.randn(length, WIDTH, dtype=torch.float64) for length in lengths]
    longest = max(*lengths, padding_to)
    features = torch.full((len(lengths), longest, WIDTH), 1e3, dtype=torch.float64)
    padding = torch.ones(len(lengths), longest, dtype=torch.bool)
    for row, sentence in enumerate(sentences):
        features[row, : len(sentence)] = sentence
        padding[row, : len(sentence)] = False
    return features, padding


def apply(linear, x):
    return x @ linear.weight.T + (0 if linear.bias is None else linear.bias)


def eq_1_and_2(block, x, y):
    """Y_i = softmax((X Q_i)(Z K_i)^T / sqrt(d/h)) (Z V_i), then [Y_1; ...; Y_h] A, of one pair.

    With a residual and a normalisation if the block has them.
    """
    maps = block.attention
    q, k, v = (
        apply(getattr(maps, f"{name}_proj"), source)
        for source, name in ((x, "q"), (y, "k"), (y, "v"))
    )
    size, parts = WIDTH // HEADS, []
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        e = torch.einsum("td,sd->ts", q[:, own], k[:, own]).div(size**0.5).exp()
        parts.append((e / e.sum(1, keepdim=True)) @ v[:, own])
    out = apply(maps.out_proj, torch.cat(parts, 1))
    out = out if block.intermediate is None else apply(block.intermediate, out)
    out = out + x if block.residual else out
    if block.norm is None:
        return out
    centred = out - out.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    return scaled * block.norm.weight + block.norm.bias


def naive(model, features, padding):
    """Sentence by sentence, without padding, at every place of every block."""
    states = [row[~absent] for row, absent in zip(features, padding, strict=True)]
    for block in model.blocks:
        others = [states[i ^ 1] for i in range(len(states))] if model.cross else states
        states = [eq_1_and_2(block, x, y) for x, y in zip(states, others, strict=True)]
    return torch.stack([state[0] for state in states])


def gradients(model, function, features, padding):
    """What it returns, and the gradient of each parameter and of the features."""
    features = features.clone().requires_grad_()
    out = function(features, padding)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    given = {"features": features, **dict(model.named_parameters())}
    found = torch.autograd.grad((out * weights).sum(), list(given.values()))
    return out, dict(zip(given, found, strict=True))


@SIDES
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_blocks_are_those_of_the_equations(cross, layers):
    model = build(layers, cross, init="xavier_normal")
    features, padding = batch()
    out, found = gradients(model, model, features, padding)
    twin, expected = gradients(model, lambda *given: naive(model, *given), features, padding)
    assert out.shape == (len(LENGTHS), WIDTH)
    torch.testing.assert_close(out, twin, **EXACT)
    assert len(found) == 1 + layers * (5 if cross else 4)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@SIDES
@pytest.mark.parametrize(
    "parts", [("bias",), ("residual",), ("norm",), ("bias", "residual", "norm")]
)
def test_blocks_with_further_parts(cross, parts):
    model = build(2, cross, **dict.fromkeys(parts, True))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5)
    features, padding = batch()
    out, found = gradients(model, model, features, padding)
    twin, expected = gradients(model, lambda *given: naive(model, *given), features, padding)
    torch.testing.assert_close(out, twin, **EXACT)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    extra = (5 if cross else 4) * ("bias" in parts) + 2 * ("norm" in parts)
    assert len(found) == 1 + 2 * ((5 if cross else 4) + extra)


def test_normalised_blocks_do_not_overflow_from_large_weights():
    """U(0.9, 1) makes three plain blocks grow by orders of magnitude."""
    plain, normal = (build(3, True, init="uniform:0.9,1", norm=norm) for norm in (False, True))
    features, padding = batch()
    assert plain(features, padding).abs().max() > 1e4
    assert normal(features, padding).abs().max() < WIDTH**0.5


@SIDES
def test_every_token_matters_and_no_padding(cross):
    model, (features, padding) = build(1, cross), batch()
    _, found = gradients(model, model, features, padding)
    assert torch.equal(found["features"].abs().sum(-1) > 0, ~padding)


@SIDES
def test_padding_and_company_change_nothing(cross):
    model = build(2, cross)
    expected = model(*batch())
    for more in (6, 9):
        torch.testing.assert_close(model(*batch(padding_to=more)), expected, **EXACT)
    features, padding = batch()
    for pair in ([0, 1], [2, 3]):
        length = int((~padding[pair]).sum(1).max())
        alone = model(features[pair, :length], padding[pair, :length])
        torch.testing.assert_close(alone, expected[pair], **EXACT)
    order = [2, 3, 0, 1]
    torch.testing.assert_close(model(features[order], padding[order]), expected[order], **EXACT)


def test_both_directions_have_the_same_weights():
    """Sentences in each other's place: outputs in each other's place."""
    model = build(3, cross=True)
    features, padding = batch()
    exchanged = model(swap_pairs(features), swap_pairs(padding))
    torch.testing.assert_close(exchanged, swap_pairs(model(features, padding)), **EXACT)
    assert not torch.allclose(model(features, padding)[0], exchanged[0])


def test_swapped():
    x = torch.arange(12).view(2, 6)
    assert swap_pairs(x, 1).tolist() == [[1, 0, 3, 2, 5, 4], [7, 6, 9, 8, 11, 10]]
    assert swap_pairs(x).tolist() == [x[1].tolist(), x[0].tolist()]


@SIDES
def test_gradcheck(cross):
    model = build(2, cross)
    features, padding = batch((2, 3))
    head = SentenceHead(model, Product(WIDTH, 5).double() if cross else Linear(WIDTH, 2).double())
    assert torch.autograd.gradcheck(lambda x: head(x, padding), features.requires_grad_())


def test_dropout_of_attention_is_of_training_alone():
    model, given = build(1, dropout=0.5), batch()
    assert not torch.equal(model(*given), model(*given))
    model.eval()
    assert torch.equal(model(*given), model(*given))


# Parameters: Table 3 of the paper, at d = 768.


def head_of(task, labels, **options):
    """The head that a task builds for BERT-base."""
    cfg = {"pairs": "joint", "pooling": "first", "output": "mlp", "task_layers": 0}
    made = object.__new__(task)
    made.cfg, made.labels = Namespace(**cfg | {"task_init": "default"} | options), labels
    sizes = {"encoder_embed_dim": 768, "encoder_attention_heads": 12}
    return made.build_head(Namespace(**sizes, pooler_dropout=0.2, attention_dropout=0.3))


PAPER = {
    "sentiment": (SentenceClassificationTask, list("01234"), {"output": "linear"}),
    "paraphrase": (SentenceClassificationTask, list("01"), {"pairs": "apart"}),
    "similarity": (SentenceRegressionTask, [], {"pairs": "apart"}),
}


@pytest.mark.parametrize("pooling", ["first", "mean", "attention"])
@pytest.mark.parametrize(
    ("name", "baseline", "attention"),
    [
        ("sentiment", 3_840, 4_722_432),
        ("paraphrase", 589_824, 3_538_944),
        ("similarity", 2_359_296, 11_206_656),
    ],
)
def test_parameters_are_as_many_as_in_table_3(name, pooling, baseline, attention):
    task, labels, options = PAPER[name]
    head = head_of(task, labels, pooling=pooling, **options)
    expected = attention if pooling == "attention" else baseline
    assert sum(p.numel() for p in head.parameters()) == expected


@pytest.mark.parametrize(
    ("name", "count"),
    [("sentiment", 4_731_648), ("paraphrase", 3_544_320), ("similarity", 11_222_784)],
)
def test_biases_and_norms_hardly_change_the_number_of_parameters(name, count):
    """The paper says 4.72, 3.54 and 11.2 million."""
    task, labels, options = PAPER[name]
    parts = {f"task_attention_{part}": True for part in ("bias", "residual", "norm")}
    head = head_of(task, labels, pooling="attention", **options, **parts)
    assert sum(p.numel() for p in head.parameters()) == count


def test_layers_can_be_chosen():
    task, labels, options = PAPER["paraphrase"]
    for layers, blocks in ((0, 1), (1, 1), (2, 2)):
        head = head_of(task, labels, pooling="attention", task_layers=layers, **options)
        assert len(head.pooling.blocks) == blocks
    assert len(head_of(task, labels, pooling="attention").pooling.blocks) == 2  # a joint pair


@pytest.mark.parametrize("name", PAPER)
def test_dropout_is_that_of_the_options(name):
    task, labels, options = PAPER[name]
    head = head_of(task, labels, pooling="attention", **options)
    assert {m.p for m in head.output.modules() if isinstance(m, nn.Dropout)} == {0.2}
    assert {block.attention.dropout_module.p for block in head.pooling.blocks} == {0.3}


# Initialisation.


def draws(init, cross=True):
    return [weight.detach() for weight in build(3, cross, init=init).parameters()]


@SIDES
def test_uniform_reaches_every_weight_of_the_blocks(cross):
    weights = draws("uniform:0.9,1", cross)
    assert len(weights) == 3 * (5 if cross else 4)
    assert all(weight.shape == (WIDTH, WIDTH) for weight in weights)
    every = torch.cat([weight.flatten() for weight in weights])
    assert 0.9 <= every.min() < 0.901 and 0.999 < every.max() <= 1
    assert all(abs(weight.mean() - 0.95) < 0.02 for weight in weights)


def test_uniform_is_not_for_the_output():
    task, labels, options = PAPER["similarity"]
    head = head_of(task, labels, pooling="attention", task_init="uniform:0.9,1", **options)
    assert all((weight >= 0.9).all() for weight in head.pooling.parameters())
    assert all(weight.abs().max() < 0.5 for weight in head.output.parameters())


@pytest.mark.parametrize(
    ("init", "deviation"),
    [
        ("default", (1 / WIDTH / 3) ** 0.5),
        ("normal:0,0.02", 0.02),
        ("normal:0,3", 3),
        ("xavier_uniform", (1 / WIDTH) ** 0.5),
        ("xavier_normal:2", 2 * (1 / WIDTH) ** 0.5),
        ("orthogonal", (1 / WIDTH) ** 0.5),
    ],
)
def test_other_initialisers(init, deviation):
    every = torch.cat([weight.flatten() for weight in draws(init)])
    assert abs(every.mean().item()) < 0.1 * deviation
    assert every.std().item() == pytest.approx(deviation, rel=0.06)


def test_the_default_is_that_of_linear_maps():
    bound = WIDTH**-0.5
    every = torch.cat([weight.flatten() for weight in draws("default")])
    assert 0.99 * bound < every.abs().max() <= bound


def test_orthogonal_maps_are_orthogonal():
    for weight in draws("orthogonal:2"):
        torch.testing.assert_close(
            weight @ weight.T, 4 * torch.eye(WIDTH).double(), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(
    "text",
    ["uniform:1,2,3", "xavier_uniform:1,2", "normal:a", "gauss", "", "uniform:1,", "uniform:1,0"]
    + ["normal:0,-1", "default:1", "eye_"],
)
def test_refused_initialisers(text):
    with pytest.raises(UsageError, match="--task-init is .* must be default or one of uniform"):
        parse_initialiser(text)


# What is read off an encoder without attention.


def test_pooling_without_padding():
    features, padding = batch(padding_to=8)
    rows = [row[~absent] for row, absent in zip(features, padding, strict=True)]
    average = torch.stack([sum(row) / len(row) for row in rows])
    torch.testing.assert_close(pool_mean(features, padding), average, **EXACT)
    top = torch.stack([torch.stack(list(row)).amax(0) for row in rows])
    assert pool_max(features, padding).equal(top) and (top < features.amax(1)).any()
    torch.testing.assert_close(pool_first(features, padding), torch.stack([r[0] for r in rows]))


def test_product_is_the_dot_product_of_both_after_one_map():
    head, x = Product(WIDTH, 7).double(), batch()[0][:, 0]
    (w,) = head.parameters()
    pairs = [(x[0], x[1]), (x[2], x[3])]
    expected = torch.stack([((w @ one) * (w @ other)).sum() for one, other in pairs])
    torch.testing.assert_close(head(x), expected.unsqueeze(1), **EXACT)


def test_linear_and_mlp():
    x = batch()[0][:, 0]
    linear, mlp = Linear(WIDTH, 5).double(), Mlp(WIDTH, WIDTH, 5, "tanh", 0).double()
    (w,) = linear.parameters()
    torch.testing.assert_close(linear(x), torch.einsum("bc,kc->bk", x, w), **EXACT)
    a, b, c, d = mlp.parameters()
    torch.testing.assert_close(mlp(x), torch.tanh(x @ a.T + b) @ c.T + d, **EXACT)


@pytest.mark.parametrize(
    "made", [Linear(64, 4, 0.5), Mlp(64, 64, 4, "tanh", 0.5), Product(64, 4, 0.5)]
)
def test_dropout_of_heads(made):
    x = torch.ones(2, 64)
    assert not torch.equal(made(x), made(x))
    assert torch.equal(made.eval()(x), made(x))


def test_a_head_reads_what_its_pooling_reads():
    features, padding = batch()
    output = nn.Linear(WIDTH, 2).double()
    found = SentenceHead(pool_mean, output)(features, padding)
    torch.testing.assert_close(found, output(pool_mean(features, padding)))
