"""--share-encoder-decoder-layers: what is shared, saved, trained and refused; headline models."""

import copy
from argparse import Namespace

import pytest
import restore
import torch
import torch.distributed as dist
from conftest import train
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.data import Dictionary
from fairseq.dataclass.configs import EMAConfig
from fairseq.models import build_model
from fairseq.models.ema.ema import EMA
from omegaconf import OmegaConf
from torch.nn.parallel import DistributedDataParallel

from fairseq_ext import cli
from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import count_parameters
from fairseq_ext.safe_loading import load_checkpoint

SOURCE = torch.tensor([[1, 1, 5, 6, 7, 2], [8, 9, 10, 11, 12, 2]])
PREVIOUS = torch.tensor([[2, 5, 6, 1, 1], [2, 7, 8, 9, 10]])
REAL = PREVIOUS.ne(1)
BATCH = {"src_tokens": SOURCE, "src_lengths": None, "prev_output_tokens": PREVIOUS}
SITES = ("encoder", "decoder", "cross")
KINDS = {
    "plain": {},
    "hybrid": {"encoder_normaliser": "hybrid", "head_gate": True, "asa_layers": "all"},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "gaussian": {f"{site}_gaussian_heads": "2" for site in SITES},
    "all gaussian": {f"{site}_gaussian_heads": "all" for site in SITES},
    "last cross": {"cross_layers": "last"},
    "layerdrop": {"encoder_layerdrop": 0.4, "decoder_layerdrop": 0.2},
    "no cross": {"no_cross_attention": True},
}


def words(count):
    made = Dictionary()
    for i in range(count - made.nspecial):
        made.add_symbol(f"w{i}")
    return made


def build(name="transformer_una_tiny", share=True, seed=3, size=40, **options):
    torch.manual_seed(seed)
    config = {"_name": name, "dropout": 0.0, "share_all_embeddings": True, **options}
    config["share_encoder_decoder_layers"] = share
    dictionary = words(size)
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary, cfg=Namespace())
    return build_model(OmegaConf.create(config), task)


def disturbed(**options):
    """No parameter has its initial value."""
    model = build(**options).double()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def twin(model, **options):
    """The same model, with a decoder of its own that has equal parameters."""
    own = build(share=False, **options).double()
    full = {name: value.clone() for name, value in model.named_parameters(remove_duplicate=False)}
    buffers = {name: x for name, x in own.state_dict().items() if name not in full}
    own.load_state_dict({**buffers, **full}, strict=True)
    return own


def loss(model):
    return model(**BATCH)[0].log_softmax(-1)[REAL][:, 5:9].sum()


def source_of(name):
    """The encoder's name of a parameter that a decoder layer shares, or its own."""
    parts = name.split(".")
    if parts[:2] != ["decoder", "layers"] or parts[3] == "encoder_attn_layer_norm":
        return name
    parts[0] = "encoder"
    parts[3] = parts[3].replace("encoder_attn", "self_attn")
    return ".".join(parts[:4] + parts[4:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_is_the_sum_of_those_of_an_unshared_twin(kind):
    model = disturbed(**KINDS[kind])
    own = twin(model, **KINDS[kind])
    losses = []
    for each in (model, own):
        torch.manual_seed(1)  # of LayerDrop
        losses.append(loss(each))
        losses[-1].backward()
    torch.testing.assert_close(*losses)
    sums = {}
    for name, parameter in own.named_parameters():
        if parameter.grad is not None:
            source = source_of(name)
            sums[source] = sums.get(source, 0) + parameter.grad
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(found, sums)
    assert "encoder.layers.0.fc1.weight" in sums


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_checkpoint_has(kind):
    """Every parameter once; loaded strictly, each is in all its places, and still one."""
    model = disturbed(**KINDS[kind])
    state = copy.deepcopy(model.state_dict())
    assert count_parameters(state) == sum(p.numel() for p in model.parameters())
    own = {name for name in state if name.startswith("decoder.layers")}
    assert all("encoder_attn_layer_norm" in name for name in own)
    assert bool(own) == (kind != "no cross")
    other = build(**KINDS[kind], seed=9).double()
    other.load_state_dict(state, strict=True)
    torch.testing.assert_close(loss(other.eval()), loss(model.eval()), atol=0, rtol=0)
    layer = [stack.layers._modules["3"] for stack in (other.encoder, other.decoder)]
    assert layer[0].fc1.weight is layer[1].fc1.weight
    if kind not in ("no cross", "all gaussian"):
        assert layer[0].self_attn.k_proj.weight is layer[1].encoder_attn.k_proj.weight
        assert layer[0].self_attn_layer_norm is not layer[1].encoder_attn_layer_norm
    with pytest.raises(RuntimeError, match="encoder.layers.1.fc1.weight"):
        other.load_state_dict(
            {n: x for n, x in state.items() if n != "encoder.layers.1.fc1.weight"}, strict=True
        )


def test_a_decoder_of_its_own_is_not_loaded():
    model, other = build(), build(share=False)
    with pytest.raises(UsageError, match=r"decoder\.layers\.0\.\S+ differs from encoder"):
        model.load_state_dict(other.state_dict(), strict=True)
    model.load_state_dict(twin(build()).state_dict(), strict=True)


def test_layers_that_are_kept():
    model, kept = disturbed(), {f"{side}_layers_to_keep": "0,2" for side in SITES[:2]}
    pruned = build(**kept).double()
    pruned.load_state_dict(model.state_dict(), model_cfg=Namespace(arch="any", **kept))
    layer = pruned.decoder.layers[1]
    assert layer.fc1 is pruned.encoder.layers[1].fc1
    assert torch.equal(layer.fc1.weight, model.encoder.layers[2].fc1.weight)
    assert torch.equal(
        layer.encoder_attn_layer_norm.bias, model.decoder.layers[2].encoder_attn_layer_norm.bias
    )


def test_activation_checkpointing():
    plain, saved = build(), build(checkpoint_activations=True)
    results = []
    for model in (plain, saved):
        model.zero_grad()
        recorder = AttentionRecorder(lambda site, layer: [1])
        logits, extra = model(**BATCH, recorder=recorder)
        (logits.sum() + sum(m.square().sum() for m in extra["attention_maps"].values())).backward()
        results.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(*results)


def test_a_moving_average_moves_once():
    """What fairseq finds under two names it would move twice."""
    model = build(share_all_embeddings=False)
    ema = EMA(model, EMAConfig(ema_decay=0.5))
    before = model.encoder.layers[0].fc1.weight.detach().clone()
    with torch.no_grad():
        model.encoder.layers[0].fc1.weight.add_(1)
    ema.step(model)
    average = ema.get_model()
    torch.testing.assert_close(average.decoder.layers[0].fc1.weight, before + 0.5)
    assert average.encoder.layers[0].fc1 is average.decoder.layers[0].fc1


def test_a_copy_shares_its_own_layers():
    model = build("transformer_hna_tiny")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.layers[0].fc1.weight.zero_()
    assert not other.decoder.layers[0].fc1.weight.any()
    assert model.decoder.layers[0].fc1.weight.any()
    other.load_state_dict(model.state_dict(), strict=True)
    torch.testing.assert_close(loss(other), loss(model))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_data_parallelism(tmp_path, checkpointed):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = build("transformer_hna_tiny", checkpoint_activations=checkpointed)
        loss(model).backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        parallel = DistributedDataParallel(model)
        for _ in range(2):
            model.zero_grad()
            loss(parallel).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decoder_layers": 3}, "--encoder-layers 4 and --decoder-layers 3 differ"),
        ({"decoder_embed_dim": 96, "share_all_embeddings": False}, "--decoder-embed-dim 96"),
        ({"encoder_ffn_embed_dim": 64}, "--encoder-ffn-embed-dim 64"),
        ({"decoder_attention_heads": 2}, "--decoder-attention-heads 2"),
        ({"decoder_normalize_before": True}, "--decoder-normalize-before differ"),
        ({"encoder_layers_to_keep": "0,1", "decoder_layers_to_keep": "0,2"}, "layers-to-keep"),
        ({"cross_attention_heads": 1}, "--cross-attention-heads 1"),
        ({"quant_noise_pq": 0.1}, "--quant-noise-pq"),
        ({"quant_noise_scalar": 0.1}, "--quant-noise-scalar"),
        ({"encoder_gaussian_heads": "all"}, "hard-coded heads everywhere, and self_attn.q_proj"),
        ({"cross_gaussian_heads": "2"}, "hard-coded heads everywhere, and encoder_attn.q_proj"),
    ],
)
def test_what_cannot_be_shared_is_refused(options, said):
    with pytest.raises(UsageError, match=f"--share-encoder-decoder-layers .*{said}"):
        build(**options)


def test_training_goes_on_and_is_averaged(data_bin, tmp_path):
    flags = ["--share-encoder-decoder-layers", "--save-interval-updates", 2]
    train(data_bin, "transformer_hna_tiny", tmp_path, 2, *flags)
    last = train(data_bin, "transformer_hna_tiny", tmp_path, 4, *flags)
    saved = load_checkpoint(str(last))
    own = [name for name in saved["model"] if name.startswith("decoder.layers.")]
    assert own and all("encoder_attn_layer_norm" in name for name in own)
    cli.main(["average", "--output", str(tmp_path / "mean.pt"), str(tmp_path), "--last", "2"])
    [mean], _ = load_model_ensemble([str(tmp_path / "mean.pt")], {"data": str(data_bin)})
    layer = mean.decoder.layers[1]
    assert layer.fc2 is mean.encoder.layers[1].fc2
    assert not torch.equal(layer.fc2.weight, saved["model"]["encoder.layers.1.fc2.weight"])
    apart = {**saved["cfg"]["model"], "share_encoder_decoder_layers": False}
    with pytest.raises(UsageError, match=r"share_encoder_decoder_layers True \(now False\)"):
        restore.check(str(last), apart, reset_optimizer=False)


# Headline models, with the 30,522 symbols of the paper's vocabulary.

LAYER = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 2 * 2 * 768
CROSS = 4 * (768 * 768 + 768)
NORM = 2 * 768
EMBEDDING = 30522 * 768


@pytest.mark.parametrize(
    ("share", "expected", "said"),
    [
        (False, EMBEDDING + 24 * LAYER + 12 * (CROSS + NORM), 221_916_672),
        (True, EMBEDDING + 12 * LAYER + 12 * NORM, 108_513_792),
    ],
)
@pytest.mark.parametrize(("mechanism", "more"), [("una", 0), ("dna", 0), ("hna", 12 * 12)])
def test_headline_models(share, expected, said, mechanism, more):
    """The paper says about 108 M; positions are sinusoids, so they are no parameters."""
    with torch.device("meta"):
        model = build(f"transformer_{mechanism}_gigaword", share, size=30522)
    assert expected == said
    assert sum(p.numel() for p in model.parameters()) == expected + more
    assert model.max_positions() == (128, 64)
    assert model.encoder.layers[0].self_attn.num_heads == 12
    normaliser = model.encoder.layers[11].self_attn.groups[0].normaliser
    assert getattr(normaliser, "init", 0.1) == 0.1
    assert model.decoder.layers[0].self_attn.groups[0].normaliser.across_queries is False
