"""Models of visual question answering: naive twin, padding, batches, 16 bits, options."""

import pytest
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from naive_vqa import answer
from omegaconf import OmegaConf
from pictures_asked import ANSWERS, WIDTH, model_options
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.errors import UsageError
from fairseq_ext.vqa.model_parts import WeightNormLinear, mask_softmax
from fairseq_ext.vqa.task import VqaConfig

MULTI_VIEW = [f"vqa_multi_view_{kind}" for kind in ("una", "dna", "hna")]
EVERY_ARCH = pytest.mark.parametrize("arch", ["vqa_pythia", "vqa_concat", *MULTI_VIEW])
LENGTHS = (3, 5, 2)  # words of each question of a batch
SIZES = ((3, 5, 2), (2, 3, 4), (4, 1, 2))  # boxes of each question's picture in each view


def new_task():
    """A task as a checkpoint makes it, without data."""
    cfg = OmegaConf.structured(VqaConfig(data="none"))
    cfg.update({"_name": "vqa", "seed": 1, "pretrained": None})
    task = TASK_REGISTRY["vqa"].setup_task(cfg, from_checkpoint=True)
    task.dictionary, task.answers, task.width = Dictionary(), ANSWERS, WIDTH
    for word in "abcdefg":
        task.dictionary.add_symbol(word)
    return task


def build(arch, **options):
    torch.manual_seed(1)
    cfg = model_options(arch, **options)
    model = new_task().build_model(cfg, from_checkpoint=True).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("embed_tokens.weight"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_batch():
    """Three questions, padded to five words and to the most boxes of each view."""
    torch.manual_seed(2)
    tokens = torch.full((3, max(LENGTHS)), Dictionary().pad())
    for row, length in zip(tokens, LENGTHS, strict=True):
        row[:length] = torch.randint(4, 11, (length,))
    boxes, paddings = [], []
    for sizes in zip(*SIZES, strict=True):
        paddings.append(torch.arange(max(sizes)) >= torch.tensor(sizes)[:, None])
        view = torch.randn(3, max(sizes), WIDTH, dtype=torch.float64)
        boxes.append(view.masked_fill(paddings[-1].unsqueeze(-1), 0))
    return {"src_tokens": tokens, "boxes": boxes, "paddings": paddings}


def select(batch, row, longer=0, value=0.0):
    """One question of a batch without its padding, or with so much more of it."""
    pad = Dictionary().pad()
    tokens = batch["src_tokens"][row : row + 1, : LENGTHS[row]]
    views = zip(batch["boxes"], SIZES[row], strict=True)
    boxes = [view[row : row + 1, :size] for view, size in views]
    return {
        "src_tokens": F.pad(tokens, (0, longer), value=pad),
        "boxes": [F.pad(view, (0, 0, 0, longer), value=value) for view in boxes],
        "paddings": [torch.arange(size + longer).unsqueeze(0) >= size for size in SIZES[row]],
    }


def naive(model, batch):
    """Question by question, without any padding."""
    parameters, scores, weights = dict(model.named_parameters()), [], []
    for row in range(len(LENGTHS)):
        alone = select(batch, row)
        views = alone["boxes"]
        if hasattr(model, "views"):  # it has a twin of its own
            joined = model.views(views)[0]
        else:
            joined = views[0][0] if model.one_view else torch.cat(views, 1)[0]
        each, shares = answer(parameters, alone["src_tokens"][0].tolist(), joined)
        scores.append(each)
        weights.append(shares)
    return torch.stack(scores), weights


OPTIONS = {
    "relu": {},
    "gated_tanh, lstm, 3 heads": {
        "nonlinear": "gated_tanh",
        "question_rnn": "lstm",
        "question_attention_heads": 3,
    },
}


@EVERY_ARCH
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_are_the_naive_twin_s(arch, options):
    """A batch with padding, against one question after the other without it."""
    model, batch = build(arch, **OPTIONS[options]), make_batch()
    batch["boxes"] = [view.requires_grad_() for view in batch["boxes"]]
    scores, extra = model(**batch)
    twin, weights = naive(model, batch)
    torch.testing.assert_close(scores, twin, atol=1e-10, rtol=1e-10)
    for row, shares in enumerate(weights):
        real = extra["weights"][row][extra["weights"][row] > 0]
        torch.testing.assert_close(real, shares, atol=1e-10, rtol=1e-10)
    read = 1 if arch == "vqa_pythia" else 3
    given = dict(model.named_parameters()) | {
        str(m): x for m, x in enumerate(batch["boxes"][:read])
    }
    probe = torch.linspace(-1, 1, scores.numel()).double().view_as(scores)
    ours, theirs = (
        torch.autograd.grad((x * probe).sum(), [*given.values()]) for x in (scores, twin)
    )
    for name, a, b in zip(given, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9, msg=name)
        assert b.abs().max() > 1e-7, name


@EVERY_ARCH
@pytest.mark.parametrize("rubbish", [0.0, 1e3])
def test_padding_and_batch_composition_do_not_matter(arch, rubbish):
    model, batch = build(arch), make_batch()
    together = model(**batch)[0]
    for row in range(len(LENGTHS)):
        for longer in (0, 3):
            alone = model(**select(batch, row, longer, rubbish))[0]
            torch.testing.assert_close(alone[0], together[row], atol=1e-12, rtol=1e-12)


def test_views_that_an_architecture_reads():
    """Pythia's model reads the primary view alone; the order of the others does not matter."""
    batch = make_batch()
    swapped = {name: [x[0], x[2], x[1]] for name, x in batch.items() if name != "src_tokens"}
    swapped["src_tokens"] = batch["src_tokens"]
    for arch in ("vqa_pythia", "vqa_concat", *MULTI_VIEW):
        model = build(arch)
        torch.testing.assert_close(model(**batch)[0], model(**swapped)[0], atol=1e-12, rtol=1e-12)
        other = {**batch, "boxes": [batch["boxes"][0], *(-x for x in batch["boxes"][1:])]}
        same = torch.allclose(model(**batch)[0], model(**other)[0])
        assert same is (arch == "vqa_pythia")


def test_a_picture_without_boxes():
    """Scores are numbers, and so are gradients."""
    model, batch = build("vqa_multi_view_hna"), make_batch()
    for padding in batch["paddings"]:
        padding[1] = True
    scores = model(**batch)[0]
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_weight_normalisation_is_torch_s():
    """Values and gradients, with one norm for the whole matrix, and in 16 bits."""
    torch.manual_seed(3)
    ours, x = WeightNormLinear(4, 3).double(), torch.randn(5, 4).double()
    theirs = nn.Linear(4, 3).double()
    theirs.load_state_dict({name: getattr(ours, name).detach() for name in ("weight", "bias")})
    torch.testing.assert_close(ours(x), theirs(x))  # at first
    theirs = weight_norm(theirs, dim=None)
    with torch.no_grad():
        ours.scale.mul_(1.7)
        theirs.parametrizations.weight.original0.mul_(1.7)
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    other = theirs.parametrizations.weight
    torch.testing.assert_close(ours.scale.grad, other.original0.grad.squeeze())
    torch.testing.assert_close(ours.weight.grad, other.original1.grad)
    half = WeightNormLinear(400, 300).half()
    exact = half.weight.float() * (half.scale.float() / half.weight.float().norm())
    torch.testing.assert_close(half.normal_weight().float(), exact, atol=1e-4, rtol=2e-3)


def test_softmax_with_padding():
    scores = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    padding = torch.tensor([[False, False, True], [True, True, True]])
    weights = mask_softmax(scores.bfloat16(), padding)
    e = torch.e
    expected = torch.tensor([[1 / (1 + e), e / (1 + e), 0], [1 / 3, 1 / 3, 1 / 3]])
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights[0], expected[0])
    assert weights[1].isfinite().all()


def test_defaults_are_pythia_s():
    """arXiv 1807.09956, and where it is silent version 0.1 of the code; MultiView has one head."""
    config = MODEL_DATACLASS_REGISTRY["vqa_multi_view_hna"]()
    assert (config.encoder_embed_dim, config.question_rnn, config.question_hidden_size) == (
        *(300, "gru", 1024),
    )
    assert (config.question_attention_hidden_size, config.question_attention_heads) == (512, 2)
    assert config.attention_hidden_size == config.fusion_hidden_size == 5000
    assert (config.answer_text_hidden_size, config.answer_image_hidden_size) == (300, 5000)
    assert (config.dropout, config.nonlinear) == (0.0, "relu")
    assert (config.multi_view_heads, config.hna_init) == (1, 0.5)


def test_dropout_is_in_three_places():
    model, batch = build("vqa_pythia", dropout=0.5), make_batch()
    plain = build("vqa_pythia")
    assert torch.equal(model(**batch)[0], plain(**batch)[0])  # in evaluation
    model.train()
    kinds = [m for m in model.modules() if isinstance(m, nn.Dropout)]
    assert [m.p for m in kinds] == [0.5] * 3
    assert not torch.equal(model(**batch)[0], model(**batch)[0])


@pytest.mark.parametrize("arch", MULTI_VIEW)
def test_16_bits(arch):
    """Features come in float16; parameters may have 32 or 16 bits."""
    batch = make_batch()
    batch["boxes"] = [view.half() for view in batch["boxes"]]
    exact = build(arch)(**batch)[0]
    single = build(arch).float()(**batch)[0]
    torch.testing.assert_close(single.double(), exact, atol=1e-4, rtol=1e-4)
    half = build(arch).bfloat16()(**batch)[0]
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, atol=0.3, rtol=0.3)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_recorder_gets_the_maps_of_each_secondary_view(heads):
    model, batch = build("vqa_multi_view_hna", multi_view_heads=heads), make_batch()
    recorder = AttentionRecorder(lambda site, layer: range(heads))
    maps = model(**batch, recorder=recorder)[1]["attention_maps"]
    assert [*maps] == [("views", 0), ("views", 1)]
    assert [tuple(x.shape) for x in maps.values()] == [(3, heads, 4, 5), (3, heads, 4, 4)]
    torch.testing.assert_close(maps["views", 0].sum(-1), torch.ones(3, heads, 4).double())
    last = AttentionRecorder(lambda site, layer: [heads - 1] if layer else None)
    (one,) = model(**batch, recorder=last)[1]["attention_maps"].values()
    assert torch.equal(one, maps["views", 1][:, -1:])
    none = AttentionRecorder(lambda site, layer: None)
    assert not model(**batch, recorder=none)[1]["attention_maps"]
    assert not build("vqa_concat")(**batch, recorder=recorder)[1]["attention_maps"]


def test_only_the_hybrid_weight_is_logged():
    names = [{*build(arch).views.statistics()} for arch in MULTI_VIEW]
    assert names == [set(), set(), {"views0_u"}]
    assert build("vqa_multi_view_hna", hna_init=0.2).views.normaliser.init == 0.2


@pytest.mark.parametrize(
    ("arch", "options", "says"),
    [
        (
            "vqa_multi_view_dna",
            {"hna_init": 0.1},
            "--hna-init 0.1 has no effect with --multi-view-",
        ),
        ("vqa_multi_view_hna", {"sinkhorn_sweeps": 2}, "--sinkhorn-sweeps 2 has no effect with"),
        ("vqa_multi_view_una", {"multi_view_heads": 4}, "4 heads cannot share features of 6"),
        ("vqa_multi_view_una", {"multi_view_scale": 0.0}, "scale is 0; give"),
        ("vqa_pythia", {"question_hidden_size": 0}, "--question-hidden-size is 0; give"),
        ("vqa_concat", {"question_attention_heads": -1}, "--question-attention-heads is -1"),
    ],
)
def test_options_without_a_meaning(arch, options, says):
    with pytest.raises(UsageError, match=says):
        build(arch, **options)


def test_sinkhorn_is_a_normaliser_of_multi_view_attention():
    model = build("vqa_multi_view_dna", multi_view_normaliser="sinkhorn", sinkhorn_sweeps=3)
    assert model.views.normaliser.sweeps == 3
    assert model.describe()["multi_view_normaliser"] == "sinkhorn"
