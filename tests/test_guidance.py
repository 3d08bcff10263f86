"""Attention guidance: patterns, loss, heads and schedule against the paper's definitions."""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance import PATTERNS, View, pattern
from fairseq_ext.mechanisms.guidance.loss import EDGES, sentence_losses
from fairseq_ext.mechanisms.guidance.plan import (
    DEFAULT_PERIODS,
    GuidedHeads,
    PatternHeads,
    parse_heads,
    plan_guidance,
    split_fraction,
)
from fairseq_ext.mechanisms.guidance.schedule import build_schedule, choose_alpha, parse_alpha
from fairseq_ext.models.model_report import get_model_report

PAD, EOS, PERIOD = 1, 2, 7
MARKS = {"delim": [0, EOS], "period": [PERIOD]}
SITES = {
    "encoder": ["next", "prev", "first", "self", "diagonal", "delim", "period"],
    "decoder": ["prev", "first", "self", "diagonal"],
    "cross": ["next", "prev", "first", "diagonal", "delim", "period"],
}
CASES = [(site, name) for site, names in SITES.items() for name in names]


# The naive twin: the paper's matrices, one sentence at a time, and its Frobenius norm.


def matrix(name, tokens, rows=None, causal=False):
    """P [T, S] of one sentence without padding; None if the sentence has nothing to look at."""
    n = len(tokens)
    m = n if rows is None else rows
    result = torch.zeros(m, n, dtype=torch.float64)
    marked = [q for q in range(n) if tokens[q] in MARKS.get(name, ())]
    if name in MARKS and not marked:
        return None
    for p in range(m):
        centre = int((p + 0.5) * n / m)
        target = {"next": centre + 1, "prev": centre - 1, "first": 0}.get(name, centre)
        if name in MARKS:
            result[p, marked] = 1 / len(marked)
        elif 0 <= target < n:
            result[p, target] = 1
        else:
            seen = min(p + 1, n) if causal else n
            result[p, :seen] = 1 / seen
    return result


def dense(maps, name, tokens, reduction, causal=False):
    """A_b of heads [k, T, S] of one sentence that follow one pattern in one layer."""
    target = matrix(name, tokens, maps.size(1), causal)
    if target is None:
        return maps.new_zeros(())
    squares = (maps - target.to(maps)).square().sum()
    return squares if reduction == "sum" else squares / maps.numel()


# Ours, on whole batches.


def guided(text, layers=1):
    guides = parse_heads("--ag-encoder-heads", text)
    heads = range(guides[-1].stop)
    return GuidedHeads(dict.fromkeys(range(layers), heads), guides, {**NO_MARKS, **MARKS})


NO_MARKS = {name: [] for name in PATTERNS}


def losses(maps, text, view, reduction="mean", site="encoder", **forms):
    """maps: [B, heads, T, S], or a list of layers of it."""
    layers = maps if isinstance(maps, list) else [maps]
    heard = {(site, layer): each for layer, each in enumerate(layers)}
    return sentence_losses(heard, site, guided(text, len(layers)), view, reduction, **forms)


def batch(sentences, side="right", extra=0):
    size = max(map(len, sentences)) + extra
    pads = [[PAD] * (size - len(s)) for s in sentences]
    return torch.tensor(
        [s + p if side == "right" else p + s for s, p in zip(sentences, pads, strict=True)]
    )


def view_of(site, sources, targets):
    keys, queries = sources.ne(PAD), targets.ne(PAD)
    return {
        "encoder": View(sources, keys, keys),
        "decoder": View(targets, queries, queries, causal=True),
        "cross": View(sources, keys, queries),
    }[site]


def plain(n=5, sentences=1):
    tokens = torch.full((sentences, n), 5)
    return View(tokens, tokens.ne(PAD), tokens.ne(PAD))


def as_matrix(name, view):
    """What a pattern of ours says, written out for the first sentence."""
    view = replace(view, marks=MARKS.get(name, []))
    rows, n = PATTERNS[name].rows(view)[0], view.tokens.size(1)
    if rows.dtype == torch.bool:
        return (rows / rows.sum()).expand(n, n)
    uniform = torch.full((n,), 1 / n)
    return torch.stack([torch.eye(n)[i] if i >= 0 else uniform for i in rows])


def test_the_paper_s_matrices():
    fifth = [0.2] * 5
    eye = torch.eye(5).tolist()
    expected = {
        "next": [*eye[1:], fifth],
        "prev": [fifth, *eye[:-1]],
        "first": [eye[0]] * 5,
        "self": eye,
    }
    for name, rows in expected.items():
        torch.testing.assert_close(as_matrix(name, plain()), torch.tensor(rows))


def test_figure_2():
    """<s> Welcome to EMNLP . </s>: delimiters are columns 1 and 6, the period is column 5."""
    tokens = torch.tensor([[0, 11, 12, 13, PERIOD, EOS]])
    view = View(tokens, tokens.ne(PAD), tokens.ne(PAD))
    half = torch.tensor([0.5, 0, 0, 0, 0, 0.5])
    torch.testing.assert_close(as_matrix("delim", view), half.expand(6, 6))
    torch.testing.assert_close(as_matrix("period", view), torch.eye(6)[4].expand(6, 6))


# The released code gives the edge rows of next and prev no target: each is 1/n^3 farther away.
EDGE = 1 / 5**3
UNIFORM = torch.full((1, 12, 5, 5), 0.2)


@pytest.mark.parametrize(
    ("text", "released", "edges"),
    [
        ("next:1", 0.136, 1),
        ("prev:1", 0.136, 1),
        ("first:1", 0.160, 0),
        ("self:1", 0.160, 0),
        ("next:1,prev:1", 0.272, 2),
        ("next:1,prev:1,first:4", 0.432, 2),
        ("next:1,prev:1,first:1", 0.432, 2),
        ("next:2,prev:2,first:2", 0.432, 2),
    ],
)
def test_uniform_heads(text, released, edges):
    loss = losses(UNIFORM, text, plain())
    torch.testing.assert_close(loss, torch.tensor([released - edges * EDGE]))


def test_the_released_code_s_edges():
    """Another number, the same gradient, since a row that sums to one is a constant farther off."""
    scores = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    text = "next:1,prev:1"
    ours, theirs = (
        losses(scores.softmax(-1), text, plain(), edges=edges) for edges in ("uniform", "zero")
    )
    torch.testing.assert_close(theirs - ours, torch.tensor([2 * EDGE], dtype=torch.float64))
    (a,), (b,) = (torch.autograd.grad(loss.sum(), scores) for loss in (ours, theirs))
    torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
    for text, released in (("next:1", 0.136), ("first:1", 0.16), ("next:1,prev:1,first:4", 0.432)):
        uniform = losses(UNIFORM, text, plain(), edges="zero")
        torch.testing.assert_close(uniform, torch.tensor([released]))
    perfect = torch.stack([matrix("next", [5] * 5)]).float()[None]
    found = losses(perfect, "next:1", plain(), edges="zero")  # its last row is uniform
    torch.testing.assert_close(found, torch.tensor([0.008]))


@pytest.mark.parametrize("edges", ["uniform", "zero"])
def test_rows_that_do_not_sum_to_one(edges):
    """The mean squared error to the written matrix, as in the released code, and its gradient.

    Rows are so after dropout, and with a sink.
    """
    torch.manual_seed(5)
    scores = torch.randn(2, 6, 5, 5, dtype=torch.float64, requires_grad=True)
    maps = torch.nn.functional.dropout(scores.softmax(-1), 0.3)
    text, wanted = "next:1,prev:1,first:4", 0
    ours = losses(maps, text, plain(5, 2), edges=edges).mean()
    for name, part in (("next", slice(0, 1)), ("prev", slice(1, 2)), ("first", slice(2, 6))):
        rows = matrix(name, [5] * 5)
        if edges == "zero" and name != "first":
            rows[-1 if name == "next" else 0] = 0
        heads = maps[:, part]
        wanted = wanted + torch.nn.MSELoss()(heads, rows.expand_as(heads))
    torch.testing.assert_close(ours, wanted)
    (a,), (b,) = (torch.autograd.grad(loss, scores, retain_graph=True) for loss in (ours, wanted))
    torch.testing.assert_close(a, b)


def test_uniform_heads_of_several_layers_and_sentences():
    loss = losses([UNIFORM.expand(2, -1, -1, -1)] * 3, "next:1,prev:1,first:4", plain(5, 2))
    torch.testing.assert_close(loss, torch.full((2,), 1.296 - 6 * EDGE))


@pytest.mark.parametrize(
    ("n", "layers", "released"),
    [
        (512, 8, 0.046723),
        (512, 12, 0.070084),
        (512, 16, 0.093445),
        (128, 8, 0.185074),
        (128, 12, 0.277611),
        (128, 16, 0.370148),
    ],
)
def test_the_paper_s_sizes(n, layers, released):
    maps = [torch.full((1, 3, n, n), 1 / n)] * layers
    loss = losses(maps, "next:1,prev:1,first:1", plain(n))
    torch.testing.assert_close(loss[0].item(), released - 2 * layers / n**3, atol=6e-7, rtol=0)


def test_frobenius_norms():
    """`sum` counts every head: 3.2 for next (3.4 in the released code) and 4 for each first."""
    torch.testing.assert_close(losses(UNIFORM, "next:1", plain(), "sum"), torch.tensor([3.2]))
    torch.testing.assert_close(losses(UNIFORM, "first:4", plain(), "sum"), torch.tensor([16.0]))


def test_heads_that_look_nearby():
    distance = (torch.arange(5)[:, None] - torch.arange(5)).abs()
    maps = (-distance.float()).softmax(-1).expand(1, 6, 5, 5)
    for text, released, edges in (
        ("next:1", 0.1744209, 1),
        ("prev:1", 0.1744209, 1),
        ("first:1", 0.2038251, 0),
        ("next:1,prev:1,first:4", 0.5526669, 2),
    ):
        expected = torch.tensor([released - edges * EDGE])
        torch.testing.assert_close(losses(maps, text, plain()), expected, atol=1e-6, rtol=0)


def test_heads_that_follow_their_pattern():
    names = ["next", "prev", *["first"] * 4]
    perfect = torch.stack([matrix(name, [5] * 5) for name in names]).float()[None]
    text = "next:1,prev:1,first:4"
    torch.testing.assert_close(losses(perfect, text, plain()), torch.zeros(1), atol=1e-7, rtol=0)
    for head, expected in ((3, 0.04), (0, 0.128)):
        spoilt = perfect.clone()
        spoilt[:, head] = 0.2
        torch.testing.assert_close(losses(spoilt, text, plain()), torch.tensor([expected]))


SOURCES = [[0, 11, PERIOD, 12, PERIOD, EOS], [13, 14, EOS], [15, EOS]]
WRITTEN = [[EOS, 21, 22], [EOS, 23, 24, 25, 26], [EOS, 27]]


def random_maps(site, sources, targets, heads=3, dtype=torch.float32):
    """Scores and the maps that they give under a random mask, padding and the future blocked."""
    torch.manual_seed(len(site))
    keys = targets if site == "decoder" else sources
    queries = sources if site == "encoder" else targets
    scores = torch.randn(
        len(keys), heads, queries.size(1), keys.size(1), dtype=dtype, requires_grad=True
    )
    real = keys.ne(PAD)
    blocked = torch.rand(scores.shape) < 0.3  # but each row sees the first token
    blocked &= torch.arange(keys.size(1)) != real.int().argmax(1)[:, None, None, None]
    blocked |= ~real[:, None, None]
    if site == "decoder":
        blocked = blocked | torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores, scores.masked_fill(blocked, -1e9).softmax(-1)


def real(site, b):
    """Tokens that are looked at, and the number of rows."""
    keys = WRITTEN[b] if site == "decoder" else SOURCES[b]
    return keys, len(SOURCES[b] if site == "encoder" else WRITTEN[b])


@pytest.mark.parametrize(("site", "name"), CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_equals_its_definition(site, name, reduction, side):
    """In value and gradient, with padding on either side of the source."""
    sources, targets = batch(SOURCES, side, 2), batch(WRITTEN)
    scores, maps = random_maps(site, sources, targets)
    ours = losses(maps, f"{name}:3", view_of(site, sources, targets), reduction, site)
    naive = []
    for b in range(len(SOURCES)):
        tokens, rows = real(site, b)
        row = sources[b] if site == "encoder" else targets[b]
        column = targets[b] if site == "decoder" else sources[b]
        part = maps[b][:, row.ne(PAD)][:, :, column.ne(PAD)]
        assert part.shape[1:] == (rows, len(tokens))
        naive.append(dense(part, name, tokens, reduction, causal=site == "decoder"))
    torch.testing.assert_close(ours, torch.stack(naive), atol=1e-6, rtol=1e-6)
    weights = torch.tensor([1.0, 2.0, 3.0])
    (a,), (b,) = (
        torch.autograd.grad((weights * loss).sum(), scores, retain_graph=True)
        for loss in (ours, torch.stack(naive))
    )
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    assert not torch.equal(a, torch.zeros_like(a))


@pytest.mark.parametrize(("site", "name"), CASES)
def test_batching_and_padding_change_nothing(site, name):
    def alone(b, side, extra):
        sources, targets = batch([SOURCES[b]], side, extra), batch([WRITTEN[b]], "right", extra)
        view = view_of(site, sources, targets)
        keys, queries = (x[0].nonzero()[:, 0] for x in (view.keys, view.queries))
        padded = torch.rand(1, 1, view.queries.size(1), view.keys.size(1))
        padded[..., ~view.keys[0]] = 0
        inner = padded[:, :, queries][..., keys]
        rows = random_rows[b][None, None, : len(queries), : len(keys)]
        padded[0, 0, queries[:, None], keys] = (rows / rows.sum(-1, keepdim=True)).expand_as(inner)
        return losses(padded, f"{name}:1", view, site=site)

    torch.manual_seed(3)
    random_rows = torch.rand(3, 6, 6)
    for b in range(3):
        bare = alone(b, "right", 0)
        for side in ("left", "right"):
            torch.testing.assert_close(alone(b, side, 3), bare)


def test_a_sentence_without_symbols_contributes_nothing():
    tokens = batch([[11, 12, 13]])
    scores, maps = random_maps("encoder", tokens, tokens)
    loss = losses(maps, "period:3", view_of("encoder", tokens, tokens))
    assert loss.tolist() == [0.0]
    (grad,) = torch.autograd.grad(loss.sum(), scores)
    assert not grad.any()


def test_a_user_s_pattern():
    @pattern("fourth", looks_ahead=False)
    def fourth(view):
        return (view.first + 3)[:, None].expand_as(view.position)

    NO_MARKS["fourth"] = []
    try:
        perfect = torch.zeros(1, 1, 5, 5)
        perfect[..., 3] = 1
        assert losses(perfect, "fourth:1", plain()).item() == 0
        assert losses(UNIFORM, "fourth:1", plain()).item() == pytest.approx(0.16)
        with pytest.raises(ValueError, match="already"):
            pattern("fourth")(fourth)
    finally:
        del PATTERNS["fourth"], NO_MARKS["fourth"]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_user_s_pattern_of_numbers(reduction):
    """Its rows are any matrix, here of a distance: the loss is the written-out one."""

    @pattern("near")
    def near(view):
        place = torch.arange(view.tokens.size(1))
        rows = (-(place[:, None] - place).abs().double()).exp() * view.keys[:, None]
        return rows / rows.sum(-1, keepdim=True)

    NO_MARKS["near"] = []
    try:
        tokens = batch(SOURCES, "right", 2)
        scores, maps = random_maps("encoder", tokens, tokens, heads=2, dtype=torch.float64)
        view = view_of("encoder", tokens, tokens)
        target, found = near(view), losses(maps, "near:2", view, reduction)
        for b, words in enumerate(SOURCES):
            n = len(words)
            squares = (maps[b, :, :n, :n] - target[b, :n, :n]).square()
            expected = squares.sum() if reduction == "sum" else squares.mean()
            torch.testing.assert_close(found[b], expected)
            (ours,), (theirs,) = (
                torch.autograd.grad(loss, scores, retain_graph=True)
                for loss in (found[b], expected)
            )
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    finally:
        del PATTERNS["near"], NO_MARKS["near"]


@pytest.mark.parametrize(
    ("hold", "end", "shares"),
    [
        (0, 100_000, {0: 1, 50_000: 0.5, 99_999: 1e-5, 100_000: 0, 100_001: 0}),
        (20_000, 100_000, {0: 1, 19_999: 1, 20_000: 1, 20_001: 0.9999875, 60_000: 0.5}),
        (20_000, 100_000, {99_999: 1.25e-5, 100_000: 0}),
        (20_000, 20_000, {19_999: 1, 20_000: 0}),
    ],
)
def test_schedule(hold, end, shares):
    schedule = build_schedule(None, hold, end)
    assert {t: schedule.factor(t) for t in shares} == pytest.approx(shares, rel=1e-9)
    assert build_schedule(end, hold, 0) == schedule


@pytest.mark.parametrize(
    ("task", "guidance", "alpha"),
    [(10, 9, 1), (10, 3.5, 1), (10, 1, 10), (10, 0.35, 10), (10, 0.1, 100), (10, 1e-4, 100)],
)
def test_the_paper_s_rule_for_alpha(task, guidance, alpha):
    assert choose_alpha(task, guidance) == alpha


@pytest.mark.parametrize(
    ("heads", "fraction", "first"),
    [
        *[(12, 1 / 4, 1), (12, 1 / 2, 4), (12, 3 / 4, 7), (12, 1, 10)],
        *[(16, 1 / 4, 2), (16, 1 / 2, 6), (16, 3 / 4, 10), (16, 1, 14)],
        *[(4, 1 / 2, 0), (4, 1, 2)],
    ],
)
def test_the_paper_s_split(heads, fraction, first):
    assert split_fraction(fraction, heads) == "next:1,prev:1" + f",first:{first}" * bool(first)


def test_heads_in_words():
    assert parse_heads("--x", "next:1, prev:1,first:4") == [
        *[PatternHeads("next", 0, 1), PatternHeads("prev", 1, 2), PatternHeads("first", 2, 6)]
    ]


def options(**given):
    usual = {f"ag_{site}_heads": None for site in SITES}
    usual |= {"ag_fraction": None, "ag_layers": "all", "ag_period": DEFAULT_PERIODS}
    return Namespace(**usual | given)


def task_with(places=None, words=("w", ".")):
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    learned = {site: {0: range(4), 1: range(4)} for site in SITES}
    return Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        model_report=Namespace(guidable=places or learned),
    )


def plan(given, task):
    return plan_guidance(given, task, get_model_report(task).guidable)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ag_encoder_heads": "nxt:1"}, ["--ag-encoder-heads", "'nxt'", "next, prev, first"]),
        ({"ag_encoder_heads": "next:one"}, ["--ag-encoder-heads", "'next:one'", "number of heads"]),
        ({"ag_encoder_heads": "next:0"}, ["--ag-encoder-heads", "'next:0'", "from 1"]),
        ({"ag_encoder_heads": ""}, ["--ag-encoder-heads", "''", "next:1"]),
        ({"ag_encoder_heads": "next:1,next:1"}, ["--ag-encoder-heads", "next twice"]),
        ({"ag_encoder_heads": "next:1,first:4"}, ["--ag-encoder-heads", "5 heads", "has 4"]),
        ({"ag_decoder_heads": "next:1"}, ["--ag-decoder-heads", "next", "prev, first, self"]),
        ({"ag_decoder_heads": "period:1"}, ["--ag-decoder-heads", "period", "prev, first, self"]),
        ({"ag_fraction": 0.25}, ["--ag-fraction 0.25", "4 heads is 1", "from 0.5"]),
        ({"ag_fraction": 1.5}, ["--ag-fraction 1.5", "to 1"]),
        ({"ag_fraction": -1.0}, ["--ag-fraction -1", "to 1"]),
        ({"ag_fraction": 1.0, "ag_encoder_heads": "next:1"}, ["--ag-fraction 1", "alone"]),
        ({"ag_layers": "0,2"}, ["--ag-layers", "'0,2'", "encoder attention 0, 1"]),
        ({"ag_layers": "top"}, ["--ag-layers", "'top'", "encoder attention 0, 1"]),
        ({"ag_encoder_heads": "period:1", "ag_period": "!"}, ["period", "!", "--ag-period SYMBOL"]),
        ({"ag_encoder_heads": "period:1", "ag_period": ""}, ["--ag-period is empty"]),
        ({"ag_period": "!"}, ["--ag-period ! has no effect without the pattern period"]),
    ],
)
def test_heads_that_cannot_be_guided(given, says):
    with pytest.raises(UsageError) as error:
        plan(options(**given), task_with())
    assert all(part in str(error.value) for part in says), str(error.value)


def test_models_that_cannot_be_guided():
    with pytest.raises(UsageError, match="--arch transformer_una"):
        plan(options(), Namespace(source_dictionary=None))
    without_cross = {"encoder": {0: range(4)}, "decoder": {}, "cross": {}}
    with pytest.raises(UsageError, match="has no cross attention"):
        plan(options(ag_cross_heads="first:1"), task_with(without_cross))
    hard_coded = {"encoder": {0: range(4, 4)}, "decoder": {}, "cross": {0: range(4)}}
    with pytest.raises(UsageError, match=r"\(here: next.*2 heads; a layer has 0 that can be"):
        plan(options(), task_with(hard_coded))
    without_encoder = {"encoder": {}, "decoder": {0: range(4)}, "cross": {0: range(4)}}
    with pytest.raises(UsageError, match=r"no encoder attention for --ag-encoder-heads \(here"):
        plan(options(), task_with(without_encoder))


def test_what_is_guided():
    (encoder,) = plan(options(), task_with()).values()
    assert {layer: list(heads) for layer, heads in encoder.layers.items()} == {0: [0, 1], 1: [0, 1]}
    assert str(encoder) == "heads 0 next, 1 prev, in layers 0, 1"
    mixed = {"encoder": {0: range(2, 4)}, "decoder": {}, "cross": {}}
    (encoder,) = plan(options(ag_fraction=1.0), task_with(mixed)).values()
    assert list(encoder.layers[0]) == [2, 3]  # the first two are hard-coded
    assert str(encoder) == "heads 2 next, 3 prev, in layers 0"
    mixed = {"encoder": {0: range(3, 4), 1: range(4), 2: range(4)}, "decoder": {}, "cross": {}}
    (encoder,) = plan(options(ag_encoder_heads="first:1"), task_with(mixed)).values()
    assert str(encoder) == "heads 3 first, in layers 0; heads 0 first, in layers 1, 2"
    (encoder,) = plan(options(ag_fraction=0.5, ag_layers="1,2"), task_with(mixed)).values()
    assert str(encoder) == "heads 0 next, 1 prev, in layers 1, 2"  # a share of their 4
    both = plan(options(ag_cross_heads="diagonal:2", ag_layers="1"), task_with())
    assert list(both) == ["cross"] and list(both["cross"].layers) == [1]


@pytest.mark.parametrize("alpha", ["-1", "nan", "inf", "much", ""])
def test_alpha_that_is_no_weight(alpha):
    with pytest.raises(UsageError, match=f"--ag-alpha is '{alpha}'; give a number from 0, or auto"):
        parse_alpha(alpha)


@pytest.mark.parametrize(
    ("decay", "hold", "max_update", "says"),
    [
        (None, 0, 0, "there is no --max-update; say .* --ag-decay-updates N"),
        (50, 51, 100, "--ag-hold-updates is 51; give 0 to 50"),
        (None, 101, 100, "--ag-hold-updates is 101; give 0 to 100"),
    ],
)
def test_schedules_that_cannot_be(decay, hold, max_update, says):
    with pytest.raises(UsageError, match=says):
        build_schedule(decay, hold, max_update)


@pytest.mark.parametrize("edges", EDGES)
def test_the_written_gradient_is_that_of_the_loss(edges):
    """It can be differentiated again, too."""
    tokens = batch([[5, 6, 5, 8, 9], [7, 5, 5]])
    view = View(tokens, tokens.ne(PAD), tokens.ne(PAD))

    def loss(maps):
        return losses(maps, "next:1,prev:2,first:1", view, edges=edges)

    maps = torch.rand(2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, maps) and torch.autograd.gradgradcheck(loss, maps)
