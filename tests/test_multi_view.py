"""Multi-view attention against the naive twin, a worked example and the theorem; padding."""

import pytest
import torch
from naive import normalise
from torch import nn

from fairseq_ext.errors import UsageError
from fairseq_ext.vqa.multi_view import MultiView

WIDTH = 4
SIZES = (3, 5, 2)  # boxes of each view
KINDS = pytest.mark.parametrize("kind", ["softmax", "doubly", "hybrid", "sinkhorn"])


def build(kind, **options):
    torch.manual_seed(1)
    layer = MultiView(WIDTH, kind, hna_init=0.3, sinkhorn_sweeps=2, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer


def batch(sizes=SIZES, pictures=2):
    torch.manual_seed(2)
    return [torch.randn(pictures, size, WIDTH, dtype=torch.float64) for size in sizes]


def of_lengths(lengths, sizes=SIZES):
    """[B, N] bool for each view; lengths[picture][view] boxes are real."""
    return [
        torch.stack([torch.arange(size) >= each[view] for each in lengths])
        for view, size in enumerate(sizes)
    ]


def naive(layer, kind, views, paddings):
    """Box by box; padded ones stay 0."""
    size, out = WIDTH // layer.heads, torch.zeros_like(views[0])
    for b in range(len(views[0])):
        absent = paddings[0][b]
        sums = [box.clone() for box in views[0][b]]
        for view, padding in zip(views[1:], paddings[1:], strict=True):
            added = [[] for _ in sums]
            for head in range(layer.heads):
                own = slice(head * size, (head + 1) * size)
                scores = [
                    [layer.scale * (layer.query(x)[own] @ layer.key(z)[own]) for z in view[b]]
                    for x in views[0][b]
                ]
                scores = torch.stack([torch.stack(row) for row in scores])
                u = layer.normaliser.u()[head] if kind == "hybrid" else 0.5
                blocked = padding[b].expand_as(scores)
                weights = normalise(kind, scores, blocked, absent, u=u, sweeps=2)
                real = [j for j in range(len(view[b])) if not padding[b][j]]
                for i, parts in enumerate(added):
                    parts.append(sum(weights[i, j] * view[b][j][own] for j in real))
            sums = [box + torch.cat(parts) for box, parts in zip(sums, added, strict=True)]
        for i, box in enumerate(sums):
            if not absent[i]:
                centred = box - box.mean()
                normal = centred / (centred.square().mean() + layer.norm.eps) ** 0.5
                out[b, i] = normal * layer.norm.weight + layer.norm.bias
    return out


@KINDS
@pytest.mark.parametrize("lengths", [((3, 5, 2), (3, 5, 2)), ((3, 5, 2), (2, 3, 1))])
@pytest.mark.parametrize(("scale", "heads"), [(1.0, 1), (0.5, 1), (1.0, 2)])
def test_twin(kind, lengths, scale, heads):
    """Outputs and the gradient of every parameter and every feature."""
    layer, paddings = build(kind, scale=scale, heads=heads), of_lengths(lengths)
    views = [view.requires_grad_() for view in batch()]
    given = {**dict(layer.named_parameters()), **{f"view {m}": x for m, x in enumerate(views)}}
    real = ~paddings[0].unsqueeze(-1)
    probe = torch.linspace(-1, 1, views[0].numel()).double().view_as(views[0]) * real
    outs = layer(views, paddings) * real, naive(layer, kind, views, paddings)
    ours, twin = (torch.autograd.grad((o * probe).sum(), list(given.values())) for o in outs)
    torch.testing.assert_close(*outs, atol=1e-10, rtol=1e-10)
    for name, a, b in zip(given, ours, twin, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9, msg=name)
        assert b.abs().max() > 1e-6, name


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("doubly", [[22 / 7, 26 / 7], [33 / 17, 75 / 17]]),
        ("softmax", [[1 + 7 / 3, 4.0], [15 / 7, 1 + 26 / 7]]),
        ("hybrid", [[(22 / 7 + 10 / 3) / 2, 27 / 7], [(33 / 17 + 15 / 7) / 2, 0]]),
    ],
)
def test_worked_example(kind, expected):
    """x¹ the unit matrix, exp of the scores [[1, 2], [3, 4]], one secondary view."""
    primary, view = torch.eye(2).double(), torch.tensor([[1.0, 2], [3, 5]]).double()
    layer = MultiView(2, kind).double()
    scores = torch.tensor([[1.0, 2], [3, 4]]).double().log()
    with torch.no_grad():
        layer.query.weight.copy_((scores @ view.T.inverse()).T)
        layer.key.weight.copy_(torch.eye(2))
    normal = layer([primary[None], view[None]])[0]
    layer.norm = nn.Identity()
    plain = layer([primary[None], view[None]])[0]
    if kind == "hybrid":
        expected[1][1] = (75 / 17 + 1 + 26 / 7) / 2
    torch.testing.assert_close(plain, torch.tensor(expected).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(normal, torch.tensor([[-1.0, 1]] * 2).double(), atol=1e-4, rtol=0)


@KINDS
@pytest.mark.parametrize("rubbish", [1e3, float("nan")])
def test_padding_does_not_matter(kind, rubbish):
    """Neither its amount, nor its place, nor what stands there; gradients stay finite."""
    layer, short = build(kind), batch(pictures=1)
    plain = layer(short)
    long = [nn.functional.pad(view, (0, 0, 1, 2), value=rubbish) for view in short]
    paddings = [torch.tensor([[True, *[False] * size, True, True]]) for size in SIZES]
    for view in long:
        view.requires_grad_()
    out = layer(long, paddings)[:, 1:-2]
    torch.testing.assert_close(out, plain, atol=1e-12, rtol=1e-12)
    out.sum().backward()
    assert all(view.grad.isfinite().all() for view in long)
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    for view, padding in zip(long, paddings, strict=True):
        assert not view.grad[padding].any() and view.grad[~padding].any()


@KINDS
def test_pictures_of_a_batch_and_views_are_apart(kind):
    layer, paddings = build(kind), of_lengths(((3, 5, 2), (2, 3, 1)))
    views = batch()
    both = layer(views, paddings)
    for b, boxes in enumerate((3, 2)):
        alone = layer([x[b : b + 1] for x in views], [p[b : b + 1] for p in paddings])
        torch.testing.assert_close(alone[0, :boxes], both[b, :boxes], atol=1e-12, rtol=1e-12)
    swapped = layer([views[0], *views[:0:-1]], [paddings[0], *paddings[:0:-1]])
    torch.testing.assert_close(swapped, both, atol=1e-12, rtol=1e-12)


@KINDS
def test_a_view_without_a_box_adds_nothing(kind):
    layer, views = build(kind), batch()
    empty = layer(views, [None, None, torch.tensor([[True, True], [False, False]])])
    torch.testing.assert_close(empty[:1], layer([x[:1] for x in views[:2]]))
    torch.testing.assert_close(empty[1:], layer([x[1:] for x in views]))


@pytest.mark.parametrize(("kind", "holds"), [("doubly", True), ("softmax", False)])
def test_no_box_is_explained_away(kind, holds):
    """Theorem 2: each real key gets 1 / N at least, N being the real boxes of its view."""
    layer = build(kind, scale=4.0)
    primary, view = batch((6, 9), pictures=20)
    absent = (torch.arange(6) >= 4).expand(20, 6)
    padding = (torch.arange(9) >= 7).expand(20, 9)
    weights = layer.weights(primary, view, absent, padding).squeeze(1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(20, 6).double())
    assert not weights[..., 7:].any()
    least = weights[:, :4, :7].sum(1).min().item() * 7
    assert (least >= 1 - 1e-9) is holds


def test_it_is_printed_with_its_numbers():
    assert "heads=1, scale=4.0, dropout=0.5" in repr(build("doubly", scale=4.0, dropout=0.5))


def test_dropout_is_that_of_weights_in_training():
    layer, views = build("doubly", dropout=0.5), batch()
    assert torch.equal(layer.eval()(views), layer(views))
    torch.manual_seed(3)
    layer.train().norm = nn.Identity()
    mean = torch.stack([layer(views) for _ in range(4000)]).mean(0)
    assert not torch.equal(layer(views), layer(views))
    torch.testing.assert_close(mean, layer.eval()(views), atol=0.15, rtol=0)


def test_half_precision_is_normalised_in_float32():
    layer, views = build("hybrid").bfloat16(), [view.bfloat16() for view in batch()]
    assert layer.weights(*views[:2]).dtype == torch.float32
    out = layer(views)
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


def test_parameters_are_two_maps_a_norm_and_u():
    shapes = {name: tuple(p.shape) for name, p in MultiView(WIDTH, "hybrid").named_parameters()}
    assert shapes == {
        "query.weight": (WIDTH, WIDTH),
        "key.weight": (WIDTH, WIDTH),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "normaliser.offset": (1,),
    }
    assert MultiView(WIDTH, "hybrid").normaliser.u().item() == 0.5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scale": 0.0}, "--multi-view-scale is 0; give a number above 0"),
        ({"scale": float("nan")}, "scale is nan; give"),
        ({"heads": 3}, "3 heads cannot share features of 4; give a divisor"),
        ({"heads": 0}, "0 heads cannot share"),
        ({"dropout": 1.0}, "--attention-dropout is 1; give a number from 0 to below 1"),
        ({"normaliser": "triply"}, "normaliser is 'triply'; choose from softmax, doubly"),
        ({"normaliser": "hybrid", "hna_init": 2.0}, "--hna-init is 2; give"),
        ({"normaliser": "sinkhorn", "sinkhorn_sweeps": 0}, "--sinkhorn-sweeps is 0; give"),
    ],
)
def test_options_without_a_meaning(options, says):
    with pytest.raises(UsageError, match=says):
        MultiView(WIDTH, **options)


def test_views_that_do_not_fit():
    layer, (primary, view, _) = build("doubly"), batch()
    for views, paddings, says in (
        ([primary], None, "there are 1 views; give a primary and another one"),
        ([primary, view], [None], "1 paddings for 2 views"),
        (
            [primary, view[:1]],
            None,
            r"a view has the shape \[1, 5, 4\]; give 2 pictures x boxes x 4",
        ),
        ([primary, view[..., :3]], None, r"a view has the shape \[2, 5, 3\]"),
        ([primary, view[0]], None, r"a view has the shape \[5, 4\]"),
        (
            [primary, view],
            [None, torch.zeros(2, 3)],
            r"a padding has the shape \[2, 3\]; .*\[2, 5\]",
        ),
    ):
        with pytest.raises(UsageError, match=says):
            layer(views, paddings)
