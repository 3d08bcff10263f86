"""Hard-coded Gaussian attention: worked numbers, the naive twin, the fast form, options."""

import math
from argparse import Namespace
from contextlib import nullcontext

import pytest
import restore
import torch
import torch.nn.functional as F
from cases import slow_but_first
from conftest import PLUGIN, TASK, fairseq, train
from fairseq.data import Dictionary
from fairseq.models import build_model
from mechanism_cases import Case
from naive import normalise
from omegaconf import OmegaConf
from saved_state import save_state
from torch import Tensor

from fairseq_ext.attention import MASKS, Attention, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention.building import build_heads
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads
from fairseq_ext.mechanisms.kernels import toeplitz
from fairseq_ext.models import model_options
from fairseq_ext.models.options import DEFAULTS, OPTIONS
from fairseq_ext.testing.mechanisms import build_tiny_model


def gaussian(
    queries: int, keys: int, offset: float, sigma: float = 1.0, ratio: float = 1.0, causal=False
) -> Tensor:
    """[T, S] weights of a hard-coded head (You et al. 2020), densities as they are."""
    weights = torch.zeros(queries, keys, dtype=torch.float64)
    for i in range(queries):
        for j in range(keys):
            away = (j - (ratio * i + offset)) / sigma
            if not (causal and j > i):
                weights[i, j] = math.exp(-0.5 * away**2) / (sigma * math.sqrt(2 * math.pi))
    return weights


EVERYWHERE = {f"{site}_gaussian_heads": "all" for site in ("encoder", "decoder", "cross")}
CASES = [
    Case(
        "gaussian",
        "hard-coded heads",
        models={
            "gaussian": {"encoder_gaussian_heads": "all", "decoder_gaussian_heads": "all"},
            "gaussian everywhere": {
                **EVERYWHERE,
                "gaussian_ratio": 1.3,
                "gaussian_sigma": "0.7,2",
            },
            "gaussian and learned": dict.fromkeys(EVERYWHERE, "2"),
            "gaussian and hybrid": {
                "encoder_gaussian_heads": "1",
                "encoder_gaussian_offsets": "0",
                "encoder_normaliser": "hybrid",
            },
            "one cross head": {
                "cross_layers": "last",
                "cross_attention_heads": 1,
                "encoder_gaussian_heads": "all",
                "decoder_gaussian_heads": "all",
            },
        },
        flags="--encoder-gaussian-heads 2",
        paper=True,
        neutral={"encoder_gaussian_heads": "0"},
    )
]


def attention(offsets, sigmas=None, *, site="encoder", width=4, learned=0, ratio=1.0, **stock):
    sigmas = sigmas or [1.0] * len(offsets)
    groups = [build_gaussian_heads(offsets, sigmas, ratio)]
    if learned:
        groups.append(HeadGroup(learned, normaliser=build_normaliser("softmax", learned)))
    return Attention(width, len(offsets) + learned, site=site, groups=groups, **stock)


def identity(module):
    for projection in (module.v_proj, module.out_proj):
        projection.weight.data.copy_(torch.eye(module.embed_dim))
        projection.bias.data.zero_()
    return module


def maps(module, length=5, causal=False):
    """[H, T, S]"""
    x = torch.zeros(length, 1, module.embed_dim)
    return module(x, x, x, Inputs(causal=causal), need_head_weights=True)[1][:, 0]


ROWS = [
    [0.2419707, 0.0539910, 0.0044318, 0.0001338, 0.0000015],
    [0.3989423, 0.2419707, 0.0539910, 0.0044318, 0.0001338],
    [0.2419707, 0.3989423, 0.2419707, 0.0539910, 0.0044318],
    [0.0539910, 0.2419707, 0.3989423, 0.2419707, 0.0539910],
    [0.0044318, 0.0539910, 0.2419707, 0.3989423, 0.2419707],
]
SUMS = {
    (-1, False): [0.3005289, 0.6994697, 0.9413065, 0.9908656, 0.9413066],
    (0, False): [0.6994697, 0.9413065, 0.9908656, 0.9413066, 0.6994697],
    (-1, True): [0.2419707, 0.6409130, 0.8828837, 0.9368747, 0.9413066],
    (0, True): [0.3989423, 0.6409130, 0.6949040, 0.6993358, 0.6994697],
}


def test_the_released_code_s_rows():
    left, centre, right = maps(attention([-1, 0, 1, 0]))[:3]
    torch.testing.assert_close(left, torch.tensor(ROWS), atol=1e-6, rtol=0)
    torch.testing.assert_close(right, left.flip(0, 1))
    torch.testing.assert_close(centre[0], torch.tensor(ROWS[1]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("offset", "causal"), SUMS)
def test_the_released_code_s_row_sums(offset, causal):
    sums = maps(attention([offset, offset]), causal=causal)[0].sum(-1)
    torch.testing.assert_close(sums, torch.tensor(SUMS[offset, causal]), atol=1e-6, rtol=0)


VALUES = torch.tensor([[[i, 10 * i, 100 * i, 1000 * i]] for i in (1.0, 2.0, 3.0)])
EXAMPLE = {
    False: [
        [0.3632482, 3.6324821, 176.57675, 1765.76758],
        [1.0448567, 10.4485664, 173.47592, 1734.75928],
        [1.7657676, 17.6576748, 83.8325958, 838.3259277],
    ],
    True: [
        [0.3499527, 3.4995265, 103.98553, 1039.85535],
        [0.8828838, 8.8288374, 53.79324, 537.93243],
        [1.0398554, 10.3985529, 11.2413788, 112.4137802],
    ],
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_the_released_code_s_example(padded, need_weights):
    """Offsets -1 and 1, identity projections; with the third key padded."""
    padding = torch.tensor([[False, False, True]]) if padded else None
    module = identity(attention([-1, 1]))
    out, _ = module(VALUES, VALUES, VALUES, padding, need_weights=need_weights)
    torch.testing.assert_close(out[:, 0], torch.tensor(EXAMPLE[padded]), atol=1e-3, rtol=1e-6)


@pytest.mark.parametrize("left", [0, 2])
def test_a_length_ratio_moves_the_centre(left):
    """Ratio 1.5: the third query looks at the fourth token, however much padding precedes it."""
    module = attention([0, 0], site="cross", ratio=1.5)
    keys, query = torch.zeros(5 + left, 1, 4), torch.zeros(4, 1, 4)
    padding = torch.tensor([[True] * left + [False] * 5])
    _, weights = module(query, keys, keys, Inputs(padding), need_head_weights=True)
    expected = torch.tensor([0.0] * left + ROWS[3])
    expected[left:] = torch.tensor([0.0044318, 0.0539910, 0.2419707, 0.3989423, 0.2419707])
    torch.testing.assert_close(weights[0, 0, 2], expected, atol=1e-6, rtol=0)


def naive_output(module, x, padding, causal):
    """[B, T, C] by loops over sentences and heads; hard-coded heads first."""
    scorer, heads = module.groups[0].scorer, module.num_heads
    hard, rows = len(scorer.offsets), []
    for b in range(x.size(0)):
        masked = padding[b].expand(x.size(1), -1)
        if causal:
            masked = masked | torch.ones_like(masked).triu(1)
        v = module.v_proj(x[b]).chunk(heads, -1)
        out = []
        for h in range(heads):
            if h < hard:
                weights = gaussian(*masked.shape, scorer.offsets[h], scorer.sigmas[h])
                weights = torch.where(masked, 0, weights)
            else:
                q, k = (
                    p(x[b]).chunk(heads - hard, -1)[h - hard]
                    for p in (module.q_proj, module.k_proj)
                )
                scores = q @ k.T / module.head_dim**0.5
                none = torch.zeros_like(padding[b])
                weights = normalise("softmax", scores, masked, none)
            out.append(weights @ v[h])
        rows.append(module.out_proj(torch.cat(out, -1)))
    return torch.stack(rows)


@pytest.mark.parametrize("learned", [0, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_outputs_and_gradients_are_the_naive_twin_s(learned, causal, need_weights):
    """All that is learned gets gradients, beside hard-coded heads too."""
    torch.manual_seed(0)
    site = "decoder" if causal else "encoder"
    module = attention([-1, 0.5], [1.0, 0.6], site=site, width=8, learned=learned).double()
    x = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False] * 5 + [True]])
    y = x.transpose(0, 1)
    out, _ = module(y, y, y, Inputs(padding, causal), need_weights=need_weights)
    ours, theirs = out.transpose(0, 1)[~padding], naive_output(module, x, padding, causal)[~padding]
    torch.testing.assert_close(ours, theirs, atol=3e-7, rtol=1e-6)
    wanted = [x, *module.parameters()]
    weights = torch.randn_like(ours)
    a, b = (torch.autograd.grad((weights * z).sum(), wanted) for z in (ours, theirs))
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
    if learned:
        for projection in (module.q_proj, module.k_proj):
            (grad,) = torch.autograd.grad(
                module(y, y, y, need_weights=need_weights)[0].square().sum(), projection.weight
            )
            assert grad.shape == (8 * learned // (2 + learned), 8) and grad.abs().max() > 1e-6


@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 200])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("numbers", [([-1, 1], [1, 1]), ([-9, 0.5], [0.5, 2]), ([30, 70], [1, 3])])
def test_the_fast_form_is_the_full_one(length, causal, numbers):
    torch.manual_seed(0)
    module = attention(*numbers, site="decoder" if causal else "encoder", width=8)
    x = torch.randn(length, 3, 8, requires_grad=True)
    padding = torch.arange(length) >= torch.tensor([[length], [length // 2 + 1], [length]])
    results = []
    for need_weights in (False, True):
        out, _ = module(x, x, x, Inputs(padding, causal), need_weights=need_weights)
        real = out.transpose(0, 1)[~padding]
        results.append([real, *torch.autograd.grad(real.square().sum(), [x, *module.parameters()])])
    for fast, full in zip(*results, strict=True):
        torch.testing.assert_close(fast, full, atol=1e-6 * max(1, full.abs().max().item()), rtol=0)


def test_wide_heads_see_no_more_than_the_sentence(monkeypatch):
    """Neither time nor memory grow with sigma and offset beyond the length."""
    sizes, attend = [], toeplitz.attend

    def watch(v, weights, *rest):
        sizes.append(weights.size(-1))
        return attend(v, weights, *rest)

    monkeypatch.setattr(toeplitz, "attend", watch)
    module, x = attention([-1e6, 0.5], [1.0, 1e5]), torch.randn(20, 1, 4)
    module(x, x, x, need_weights=False)
    assert sizes == [3 * 20 - 2]


@pytest.mark.parametrize("length", [3, 64, 150])
@pytest.mark.parametrize(("low", "high"), [(-7, 7), (-9, 2), (0, 70), (-5, 0)])
def test_the_fast_form_is_a_grouped_convolution(length, low, high):
    torch.manual_seed(0)
    heads, width = 2, 3
    v = torch.randn(2, heads, length, width, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(heads, high - low + 1, dtype=torch.float64)
    channels = F.pad(v.transpose(2, 3).reshape(2, heads * width, length), (-low, high))
    kernel = taps.repeat_interleave(width, 0)[:, None]
    expected = F.conv1d(channels, kernel, groups=heads * width)
    expected = expected.view(2, heads, width, length).transpose(2, 3)

    def weigh(distances):
        inside = (distances >= low) & (distances <= high)
        return torch.where(inside, taps[:, distances.long().clamp(low, high) - low], 0)

    forward = weigh(toeplitz.distances(length, low, high, v.device))
    backward = weigh(-toeplitz.distances(length, -high, -low, v.device))
    out = toeplitz.attend(v, forward, backward, low, high)
    probe = torch.randn_like(out)
    slopes = [torch.autograd.grad(x, v, probe)[0] for x in (out, expected)]
    torch.testing.assert_close([out, slopes[0]], [expected, slopes[1]])


def test_what_else_is_blocked_is_honoured():
    torch.manual_seed(0)
    module, x = attention([-1, 1]), torch.randn(6, 1, 4)
    masked = torch.rand(6, 6) < 0.4
    out, _ = module(x, x, x, Inputs(masked=masked), need_weights=False)
    full, weights = module(x, x, x, Inputs(masked=masked), need_head_weights=True)
    torch.testing.assert_close(out, full)
    open_rows = ~masked.all(-1)
    assert not weights[:, 0][:, open_rows][:, masked[open_rows]].any()


def test_masks_of_a_site_are_those_of_hard_coded_heads_too(monkeypatch):
    def diagonal(context):
        return ~torch.eye(context.keys, dtype=torch.bool)[None]

    monkeypatch.setitem(MASKS, "diagonal", lambda heads, **_: diagonal)
    options = {**DEFAULTS, "encoder_gaussian_heads": "2", "encoder_masks": "diagonal"}
    groups = build_heads("encoder", 0, 4, 2, options, width=4)
    module = Attention(16, 4, site="encoder", groups=groups).eval()
    x = torch.randn(5, 2, 16)
    maps = module(x, x, x, None, need_weights=True, need_head_weights=True)[1]
    assert maps.masked_fill(torch.eye(5, dtype=torch.bool), 0).abs().max() == 0


def test_no_dropout_on_hard_coded_heads():
    torch.manual_seed(0)
    module, x = attention([-1, 1], dropout=0.9).train(), torch.randn(6, 1, 4)
    for need_weights in (False, True):
        a, b = (module(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_parameters():
    """Hard-coded heads have no queries and keys; learned ones begin as in a learned layer."""
    none, some = attention([-1, 1], width=64), attention([-1, 1], width=64, learned=2)
    assert not [name for name in none.state_dict() if name.startswith(("q_proj", "k_proj"))]
    assert not [name for name in none.state_dict() if "scorer" in name]
    assert some.q_proj.weight.shape == some.k_proj.weight.shape == (32, 64)
    assert (none.learned_heads, some.learned_heads) == ([], [2, 3])
    for projection, bound in (
        (some.q_proj, (6 / (4 * 64)) ** 0.5),
        (some.v_proj, (6 / (4 * 64)) ** 0.5),
        (none.v_proj, (6 / (2 * 64)) ** 0.5),
    ):
        assert 0.95 * bound < projection.weight.abs().max() <= bound


def test_a_decoder_s_cache_stays_short():
    """Padding in it counts as in the whole."""
    torch.manual_seed(0)
    module = attention([-1, 0], site="decoder").eval()
    x, state = torch.randn(40, 2, 4), {}
    padding = torch.arange(40) < torch.tensor([[3], [0]])
    forced, _ = module(x, x, x, Inputs(padding, causal=True), need_weights=False)
    steps = [
        module(q, q, q, Inputs(padded), state, False)[0]
        for q, padded in zip(x.split(1), padding.split(1, 1), strict=True)
    ]
    real = ~padding.T
    torch.testing.assert_close(torch.cat(steps)[real], forced[real], atol=1e-6, rtol=0)
    assert module._get_input_buffer(state)["prev_value"].size(2) == 6


@pytest.mark.parametrize("steps", [1, 3])
def test_hypotheses_of_a_sentence_share_its_keys(steps):
    """Each counts its own steps."""
    torch.manual_seed(0)
    module = attention([-1, 1], site="cross", ratio=1.3).eval()
    query, keys = torch.randn(steps, 4, 4), torch.randn(9, 2, 4)
    padding = torch.tensor([[True] * 2 + [False] * 7, [False] * 9])
    results = [
        module(query, k, k, Inputs(p, first_query=4), need_weights=False)[0]
        for k, p in (
            (keys, padding),
            (keys.repeat_interleave(2, 1), padding.repeat_interleave(2, 0)),
        )
    ]
    torch.testing.assert_close(*results)


# Options.


def options(**given):
    return {name: field.default for name, _, field in OPTIONS} | given


def heads_of(site, layer=0, heads=8, layers=2, **given):
    first = build_heads(site, layer, heads, layers, options(**given))[0]
    return None if first.learned else first


def test_offsets_are_repeated_over_the_heads():
    everywhere = {f"{site}_gaussian_heads": "all" for site in ("encoder", "decoder", "cross")}
    assert heads_of("encoder", **everywhere).scorer.offsets == (-1, 1) * 4
    assert heads_of("decoder", **everywhere).scorer.offsets == (-1, 0) * 4
    assert heads_of("cross", gaussian_ratio=1.04, **everywhere).scorer.ratio == 1.04
    assert heads_of("encoder", gaussian_ratio=1.04, **everywhere).scorer.ratio == 1
    assert heads_of("encoder") is None
    each = {"encoder_gaussian_heads": "4", "encoder_gaussian_offsets": "-1,1/-2,2"}
    assert heads_of("encoder", 0, **each).scorer.offsets == (-1, 1) * 2
    assert heads_of("encoder", 1, **each).scorer.offsets == (-2, 2) * 2
    sigma = heads_of("encoder", encoder_gaussian_heads="4", gaussian_sigma="1,2,3,4").scorer.sigmas
    assert sigma == (1, 2, 3, 4)


def test_layers_with_cross_attention():
    assert model_options.parse_cross_layers("all", 3) == [0, 1, 2]
    assert model_options.parse_cross_layers("last", 3) == [2]
    assert model_options.parse_cross_layers("2,0", 3) == [0, 2]


BAD = [
    ({"encoder_gaussian_heads": "9"}, "--encoder-gaussian-heads is '9'; give all, or .* 0 to 4"),
    ({"encoder_gaussian_heads": "some"}, "--encoder-gaussian-heads is 'some'; give all, or"),
    (
        {"encoder_gaussian_heads": "4", "encoder_gaussian_offsets": "-1,0,1"},
        "--encoder-gaussian-offsets is '-1,0,1', which fits neither 4 .* heads nor 4 layers",
    ),
    (
        {"decoder_gaussian_heads": "4", "decoder_gaussian_offsets": "-1/0"},
        "--decoder-gaussian-offsets is '-1/0', which fits neither 4 .* heads nor 4 layers",
    ),
    (
        {"cross_gaussian_heads": "4", "cross_gaussian_offsets": "left"},
        "--cross-gaussian-offsets is 'left'; give numbers .* --cross-gaussian-offsets=-1,1",
    ),
    (
        {"encoder_gaussian_heads": "4", "gaussian_sigma": "0"},
        "--gaussian-sigma is 0; give .* above 0",
    ),
    ({"encoder_gaussian_heads": "4", "gaussian_sigma": "1,-2"}, "--gaussian-sigma is -2; give"),
    ({"encoder_gaussian_heads": "4", "gaussian_sigma": "inf"}, "'inf'; give .*-sigma 1,2"),
    (
        {"encoder_gaussian_heads": "4", "encoder_gaussian_offsets": "nan"},
        "--encoder-gaussian-offsets is 'nan'; give numbers",
    ),
    ({"cross_gaussian_heads": "4", "gaussian_ratio": 0.0}, "--gaussian-ratio is 0; give"),
    ({"cross_layers": "4"}, "--cross-layers is '4'; give all, last, or .* 0, 1, 2, 3"),
    ({"cross_layers": "first"}, "--cross-layers is 'first'; give all, last"),
    (
        {"cross_attention_heads": 3},
        "--cross-attention-heads .* 3 heads do not divide the width",
    ),
    (
        {"cross_attention_heads": -1},
        "--cross-attention-heads .* -1 heads do not divide the width",
    ),
]


@pytest.mark.parametrize(("given", "says"), BAD)
def test_options_that_cannot_be(given, says):
    words = Dictionary()
    task = Namespace(source_dictionary=words, target_dictionary=words)
    with pytest.raises(UsageError, match=says):
        build_model(OmegaConf.create({"_name": "transformer_una_tiny", **given}), task)


SIZES = {f"{side}_{n}": 4 for side in ("encoder", "decoder") for n in ("attention_heads", "layers")}


def test_a_training_goes_on_with_its_own_offsets(tmp_path):
    path = tmp_path / "checkpoint.pt"
    before = options(encoder_gaussian_heads="all") | SIZES
    save_state(path, before)
    restore.check(str(path), before, False)
    for same in ({"encoder_gaussian_heads": "4"}, {"cross_layers": "0,1,2,3"}):
        restore.check(str(path), before | same, False)
    for other in (
        {"encoder_gaussian_offsets": "0"},
        {"cross_attention_heads": 1},
        {"encoder_attention_heads": 8},
    ):
        with pytest.raises(UsageError, match=f"trained with {next(iter(other))}"):
            restore.check(str(path), before | other, False)


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        ({"gaussian_sigma": "1"}, {"gaussian_sigma": "2"}, False),  # of no head
        ({"cross_gaussian_heads": "8"}, {"cross_gaussian_heads": "all"}, False),
        ({"cross_gaussian_heads": "8"}, {"cross_gaussian_heads": "2"}, True),
        ({"encoder_gaussian_heads": "8"}, {"encoder_gaussian_heads": "4"}, True),  # had more heads
        ({"no_token_positional_embeddings": True}, {}, True),
        (
            {"no_token_positional_embeddings": True},
            {"encoder_positions": "none", "decoder_positions": "none"},
            False,
        ),
        ({"activation_fn": "gelu"}, {"activation_fn": "relu"}, True),
        ({"no_scale_embedding": True}, {"no_scale_embedding": False}, True),
        ({}, {"activation_fn": "relu"}, False),  # what an older one does not say
    ],
)
def test_what_options_make_is_compared(before, now, refused, tmp_path):
    before, now = (options(cross_attention_heads=8, **some) | SIZES for some in (before, now))
    path = tmp_path / "checkpoint.pt"
    save_state(path, before)
    with pytest.raises(UsageError, match="was trained with") if refused else nullcontext():
        restore.check(str(path), now, False)


def test_a_refusal_names_what_differs_alone(tmp_path):
    before, path = options() | SIZES, tmp_path / "checkpoint.pt"
    save_state(path, before)
    now = before | {"encoder_head_mixer": "differential"}
    with pytest.raises(UsageError, match="with encoder_head_mixer none .now differential.; give"):
        restore.check(str(path), now, False)


@pytest.mark.parametrize("before", [True, False])
def test_every_parameter_has_a_gradient(before):
    """DDP wants one of the layer norm before heads that read no query, too."""
    model = build_tiny_model("transformer_gaussian_all_tiny", decoder_normalize_before=before)
    logits, _ = model(torch.tensor([[5, 6, 2]]), None, torch.tensor([[2, 7]]))
    logits.logsumexp(-1).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_architectures_that_are_not_ours_go_on(tmp_path):
    path = tmp_path / "checkpoint.pt"
    model = {"_name": "transformer_lm", "decoder_layers": 2}
    save_state(path, model)
    restore.check(str(path), model, False)


# Through fairseq's commands.


@pytest.mark.parametrize(
    "arch",
    slow_but_first(
        [
            "transformer_gaussian_tiny",
            "transformer_gaussian_all_tiny --gaussian-ratio 1.04",
            "transformer_gaussian_shx_tiny",
            "transformer_una_tiny --encoder-gaussian-heads 2 --encoder-gaussian-offsets=-1,1",
        ]
    ),
)
def test_training_and_translating(arch, data_bin, tmp_path):
    name, *flags = arch.split()
    path = train(data_bin, name, tmp_path, 3, *flags)
    common = ["--user-dir", PLUGIN, *TASK, "--path", path, "--beam", 3, "--max-len-b", 8]
    together, alone = (
        fairseq("generate", data_bin, *common, "--gen-subset", "valid", *size.split()).stdout
        for size in ("--max-tokens 800", "--batch-size 1")
    )
    hypotheses = [
        sorted(line.split("\t")[::2] for line in text.split("\n") if line.startswith("H-"))
        for text in (together, alone)
    ]
    assert len(hypotheses[0]) == 100
    assert hypotheses[0] == hypotheses[1]


def test_alignments_come_from_the_last_layer_that_attends(data_bin, tmp_path):
    flags = ["--cross-layers", "0,2"]
    path = train(data_bin, "transformer_gaussian_tiny", tmp_path, 2, *flags)
    said = fairseq(
        "generate", data_bin, "--user-dir", PLUGIN, *TASK, "--path", path, "--gen-subset", "valid",
        *"--print-alignment hard --max-len-b 5 --max-tokens 800".split(),
    )  # fmt: skip
    assert said.stdout.count("\nA-") == 100


def test_a_refusal_on_the_command_line(data_bin, tmp_path):
    refused = fairseq(
        "train", data_bin, "--user-dir", PLUGIN, *TASK, "--arch", "transformer_gaussian_tiny",
        *"--max-tokens 600 --optimizer adam --gaussian-sigma=-1 --save-dir".split(), tmp_path,
        check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    last = refused.stderr.strip().split("\n")[-1]
    assert last.startswith("error: --gaussian-sigma is '-1'; give a number above 0 ")
