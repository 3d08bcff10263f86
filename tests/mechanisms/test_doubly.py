"""DNA, HNA and Sinkhorn sweeps: twins, worked numbers, the theorem; bad input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_cases import Case
from naive import normalise, rows
from torch.autograd import gradcheck

from fairseq_ext.attention import NORMALISERS, build_normaliser
from fairseq_ext.attention.masks import mask_to_bias
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.doubly import Hybrid, Sinkhorn


def column_sweep(e, absent):
    """Divide each column by its sum over the queries that are there."""
    columns = []
    for j in range(e.size(1)):
        total = sum(e[i, j] for i in range(e.size(0)) if not absent[i])
        columns.append(e[:, j] / total if total.item() > 0 else e[:, j])
    return torch.stack(columns, 1)


def sinkhorn(scores, masked, absent, normaliser, head, sweeps=None):
    e = torch.where(masked, 0, scores.exp())
    for _ in range(sweeps or normaliser.sweeps):
        e = rows(column_sweep(e, absent))
    return e


def doubly(*problem):
    return sinkhorn(*problem, sweeps=1)


def hybrid(scores, masked, absent, normaliser, head):
    u = normaliser.u()[head]
    softmax = rows(torch.where(masked, 0, scores.exp()))
    return u * doubly(scores, masked, absent, normaliser, head) + (1 - u) * softmax


CASES = [
    Case(
        "dna",
        "normaliser",
        part="doubly",
        twin=doubly,
        flags="--encoder-normaliser doubly",
        paper=True,
        encoder_only=True,
        ignores="keys",
    ),
    Case(
        "hna",
        "normaliser",
        part="hybrid",
        twin=hybrid,
        options=({"hna_init": 0.3}, {"hna_weight": "raw"}, {"hna_weight": "clamp"}),
        flags="--encoder-normaliser hybrid",
        paper=True,
        own="normaliser.offset",
        encoder_only=True,
        ignores=None,
    ),
    Case("sinkhorn", "normaliser", twin=sinkhorn, options=({"sinkhorn_sweeps": 3},)),
]
OPTIONS = {"hna_init": 0.3, "hna_weight": "sigmoid", "sinkhorn_sweeps": 3}
KINDS = ("softmax", "doubly", "hybrid", "sinkhorn")
ALL = slice(None)


def weights(kind, scores, absent=None, masked=None, **options):
    """[B, H, T, S] weights by our normaliser."""
    normaliser = build_normaliser(kind, scores.size(1), **(OPTIONS | options))
    bias = None if masked is None else mask_to_bias(masked, scores.dtype)
    return normaliser.weights(scores, bias, absent, ALL)


def single(kind, e, **options):
    scores = torch.tensor(e, dtype=torch.float64).log()[None, None]
    return weights(kind, scores, **options)[0, 0]


def close(a, b, tol=1e-9):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tol, rtol=0)


E2 = [[1, 2], [3, 4]]
D2 = [[3 / 7, 4 / 7], [9 / 17, 8 / 17]]


def test_worked_example_of_doubly_normalised_attention():
    close(single("doubly", E2), D2)
    close(single("softmax", E2), [[1 / 3, 2 / 3], [3 / 7, 4 / 7]])
    close(single("doubly", E2).sum(0), [114 / 119, 124 / 119])


@pytest.mark.parametrize(
    ("u", "expected"),
    [
        (0.25, [[0.357142857, 0.642857143], [0.453781513, 0.546218487]]),
        (0.1, [[0.342857143, 0.657142857], [0.438655462, 0.561344538]]),
    ],
)
@pytest.mark.parametrize("weight", Hybrid.WEIGHTS)
def test_worked_example_of_hybrid_attention(u, expected, weight):
    close(single("hybrid", E2, hna_init=u, hna_weight=weight), expected, 1e-8)


@pytest.mark.parametrize(
    ("sweeps", "expected"),
    [
        (1, D2),
        (2, [[0.449275362, 0.550724638], [0.550295858, 0.449704142]]),
        (3, [[0.449487555, 0.550512445], [0.550508069, 0.449491931]]),
        (60, [[0.449489743, 0.550510257], [0.550510257, 0.449489743]]),
    ],
)
def test_worked_example_of_sinkhorn_sweeps(sweeps, expected):
    close(single("sinkhorn", E2, sinkhorn_sweeps=sweeps), expected, 1e-8)


def test_worked_gradient_flows_through_the_columns():
    scores = torch.tensor(E2, dtype=torch.float64).log()[None, None].requires_grad_()
    weights("doubly", scores)[0, 0, 0, 0].backward()
    close(scores.grad[0, 0], [[9 / 49, -8 / 49], [-9 / 49, 8 / 49]])


def test_worked_padding_example():
    scores = torch.tensor([[1, 2, 7], [3, 4, 9], [50, 60, 5]], dtype=torch.float64).log()
    absent = torch.tensor([[False, False, True]])
    key = absent[:, None, None]
    close(weights("doubly", scores[None, None], absent, key)[0, 0, :2, :2], D2)
    counted = weights("doubly", scores[None, None], None, key)[0, 0, :2, :2]
    close(counted, [[11 / 29, 18 / 29], [11 / 23, 12 / 23]])  # what a padded query would do


def test_worked_bound_that_a_padded_query_would_break():
    scores = torch.zeros(1, 1, 4, 3, dtype=torch.float64)
    scores[..., 3, :] = torch.tensor([0.0, 0.0, 30.0])
    absent = torch.tensor([[False, False, False, True]])
    right = weights("doubly", scores, absent)[0, 0, :3].sum(0)
    close(right, [1.0, 1.0, 1.0])
    wrong = weights("doubly", scores)[0, 0, :3].sum(0)
    close(wrong, [1.5, 1.5, 5.6e-13], 1e-12)


def test_worked_tight_bound():
    n = 8
    scores = torch.zeros(1, 1, n, n, dtype=torch.float64)
    scores[..., 0, :], scores[..., 1:, 0] = 200, 50
    close(weights("doubly", scores)[0, 0].sum(0), [n - 1 + 1 / n] + [1 / n] * (n - 1))
    rectangular = torch.zeros(1, 1, 3, 7, dtype=torch.float64)
    rectangular[..., 0, :], rectangular[..., 1:, 0] = 100, 40
    close(weights("doubly", rectangular)[0, 0].sum(0) * 7, [15.0] + [1.0] * 6, 1e-6)


def test_a_single_query_gives_uniform_weights():
    close(weights("doubly", torch.randn(1, 1, 1, 5))[0, 0], torch.full((1, 5), 0.2), 1e-6)


def test_constants_per_key_do_not_matter_and_per_query_do():
    scores = torch.randn(1, 1, 4, 5, dtype=torch.float64)
    key, query = torch.randn(1, 1, 1, 5).double(), torch.randn(1, 1, 4, 1).double()
    plain = weights("doubly", scores)
    close(weights("doubly", scores + key), plain)
    assert (weights("doubly", scores + query) - plain).abs().max() > 1e-3
    close(weights("softmax", scores + query), weights("softmax", scores))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("t", "s"), [(5, 5), (3, 7), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_twin(kind, t, s, dtype):
    """Outputs and the gradients of scores and u, with masked keys and padded queries."""
    torch.manual_seed(t * s)
    scores = torch.randn(2, 3, t, s, dtype=torch.float64, requires_grad=True)
    masked = torch.zeros(2, 1, t, s, dtype=torch.bool)
    masked[1, :, :, -1] = True
    absent = torch.zeros(2, t, dtype=torch.bool)
    absent[1, -1] = True
    real = ~absent[:, None, :, None]  # nothing reads what a padded query got
    probe = torch.randn(2, 3, t, s, dtype=torch.float64) * real

    ours = build_normaliser(kind, 3, **OPTIONS).to(dtype)
    mine = scores.detach().to(dtype).requires_grad_()
    out = ours.weights(mine, mask_to_bias(masked, dtype), absent, ALL)
    (out * probe.to(dtype)).sum().backward()

    u = torch.full((3,), 0.3, dtype=torch.float64, requires_grad=True)
    twin = torch.stack(
        [
            torch.stack(
                [
                    normalise(kind, scores[b, h], masked[b, 0], absent[b], u=u[h], sweeps=3)
                    for h in range(3)
                ]
            )
            for b in range(2)
        ]
    )
    (twin * probe).sum().backward()
    tol = {"atol": 1e-10, "rtol": 1e-10} if dtype == torch.float64 else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(out.double() * real, twin * real, **tol)
    torch.testing.assert_close(mine.grad.double(), scores.grad, **tol)
    if kind == "hybrid":  # du/d offset of the sigmoid is u (1 - u)
        torch.testing.assert_close(ours.offset.grad.double(), u.grad * 0.3 * 0.7, **tol)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    module = build_normaliser(kind, 2, **OPTIONS).double()
    absent = torch.tensor([[False, False, True]])
    scores = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    bias = mask_to_bias(
        torch.tensor([[0, 0, 0, 1], [0, 1, 0, 1], [1, 0, 0, 1]]).bool(), scores.dtype
    )
    for some in (None, bias, bias[:1]):

        def real_queries(scores, *_, some=some):
            return module.weights(scores, some, absent, ALL)[:, :, :2]

        assert gradcheck(real_queries, (scores, *module.parameters()))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 9), st.floats(0.1, 60), st.floats(0, 1)
)
def test_theorem_2_no_key_is_explained_away(seed, t, s, spread, u):
    """Column sums are at least 1/S under DNAS and u/S under HNAS, S = real keys."""
    torch.manual_seed(seed)
    scores = spread * torch.randn(1, 1, t, s + 1)
    masked = torch.arange(s + 1) == s
    absent = torch.rand(1, t) < 0.3
    absent[:, 0] = False
    real = ~absent[0], slice(0, s)
    doubly = weights("doubly", scores, absent, masked[None])[0, 0][real].sum(0)
    raw = {"hna_init": u, "hna_weight": "raw"}
    hybrid = weights("hybrid", scores, absent, masked[None], **raw)[0, 0][real].sum(0)
    assert doubly.min() >= (1 - 1e-4) / s
    assert hybrid.min() >= (1 - 1e-4) * u / s


@pytest.mark.parametrize("gap", [17, 60, 100, 1000])
def test_a_query_that_lost_every_key_stays_exact(gap):
    """Query 0 is `gap` nats below query 1 at all four keys; its row must not depend on the gap."""
    scores = torch.tensor([[0.0, 1, 2, 3], [gap, gap, gap, gap]])[None, None]
    expected = torch.tensor([0.0321, 0.0871, 0.2369, 0.6439])
    close(weights("doubly", scores)[0, 0, 0], expected, 1e-4)


def test_sinkhorn_becomes_doubly_stochastic_and_one_sweep_is_dna():
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 16, 16, dtype=torch.float64)
    error = [
        (weights("sinkhorn", scores, sinkhorn_sweeps=k).sum(-2) - 1).abs().max()
        for k in (1, 3, 10, 40)
    ]
    assert error == sorted(error, reverse=True) and error[-1] < 1e-6
    close(weights("sinkhorn", scores, sinkhorn_sweeps=1), weights("doubly", scores))


def test_u_of_a_hybrid_moves_in_16_bits_and_returns_from_a_bound():
    module = Hybrid(2, init=0.1).half()
    torch.nn.init.constant_(module.offset, 1e-3)
    assert module.u().dtype == torch.float32
    assert (module.u() - 0.1).abs().min() > 5e-5
    clamped = Hybrid(1, init=1.0, weight="clamp")
    torch.nn.init.constant_(clamped.offset, 0.2)
    clamped.u().backward()
    assert clamped.u().item() == 1.0 and clamped.offset.grad.item() == 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: build_normaliser("doubled", 2, **OPTIONS), ", ".join(NORMALISERS)),
        (lambda: Hybrid(2, init=1.5), "--hna-init is 1.5"),
        (lambda: Hybrid(2, init=-0.1, weight="raw"), "--hna-init is -0.1"),
        (lambda: Hybrid(2, init=1.0), "raw or clamp"),
        (lambda: Hybrid(2, init=0.0), "raw or clamp"),
        (lambda: Hybrid(2, weight="tanh"), "sigmoid, raw, clamp"),
        (lambda: Sinkhorn(0), "--sinkhorn-sweeps is 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make, said):
    with pytest.raises(UsageError, match=said):
        make()
