"""RoBERTa-style models: parity with fairseq's own, sizes, segments, heads, padding."""

from argparse import ArgumentParser, Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from omegaconf import OmegaConf

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.errors import UsageError
from fairseq_ext.models.architectures import FAMILIES

SMALL = {"encoder_layers": 3, "encoder_embed_dim": 48, "encoder_ffn_embed_dim": 96}
SMALL |= {"encoder_attention_heads": 6}
TOKENS = torch.tensor([[0, 5, 6, 7, 8, 9, 2], [0, 10, 11, 2, 1, 1, 1]])
REAL = TOKENS.ne(1)
MECHANISMS = list(FAMILIES["roberta"].mechanisms)


def task(positions=16, **more):
    words = Dictionary()
    for i in range(30):
        words.add_symbol(f"w{i}" if i else ",", n=50 - i)
    return Namespace(source_dictionary=words, max_positions=lambda: positions, **more)


def build(name="roberta_una_tiny", made_for=None, **options):
    torch.manual_seed(3)
    config = OmegaConf.create({"_name": name, "dropout": 0.0, "attention_dropout": 0.0, **options})
    return build_model(config, made_for or task())


def build_stock(**options):
    torch.manual_seed(3)
    given = {"arch": "roberta", "dropout": 0.0, "attention_dropout": 0.0, **SMALL, **options}
    return build_model(Namespace(**given), task())


def loss_and_gradients(model):
    model.zero_grad()
    loss = model(TOKENS, masked_tokens=REAL)[0].log_softmax(-1)[:, 5:9].sum()
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_normalize_before": True, "layernorm_embedding": False},
        {"untie_weights_roberta": True, "activation_fn": "relu"},
        {"max_positions": 40},
        {"encoder_layers_to_keep": "0,2"},
    ],
)
def test_softmax_models_are_fairseqs(options):
    """Same parameters from the same seed, same losses and gradients, both ways."""
    ours, stock = build(**SMALL, **options), build_stock(**options)
    torch.testing.assert_close(ours.state_dict(), stock.state_dict(), atol=0, rtol=0)
    stock.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(stock.state_dict(), strict=True)
    results = [loss_and_gradients(model.double()) for model in (ours, stock)]
    torch.testing.assert_close(*results, atol=5e-6, rtol=1e-6)
    with torch.no_grad():
        logits = [model.eval()(TOKENS)[0][REAL] for model in (ours, stock)]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=0)


def test_roles_by_layer_are_those_of_the_layers_that_remain():
    roles = {"encoder_roles": "relative/separator", "encoder_layers_to_keep": "0,2"}
    assert len(build(**SMALL, **roles).encoder.sentence_encoder.layers) == 2


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("size", "stock", "more"),
    [
        ("_8", "roberta", {"encoder_layers": 8}),
        ("_12", "roberta", {}),
        ("_16", "roberta", {"encoder_layers": 16, "encoder_attention_heads": 16}),
        ("_large", "roberta_large", {}),
    ],
)
def test_sizes(mechanism, size, stock, more):
    args = Namespace()
    ARCH_CONFIG_REGISTRY[stock](args)
    cls = ARCH_MODEL_REGISTRY[f"roberta_{mechanism}{size}"]
    ours = OmegaConf.structured(getattr(cls, "__dataclass"))
    expected = {name: value for name, value in (vars(args) | more).items() if name in ours}
    assert {name: ours[name] for name in expected} == expected and len(expected) > 15
    preset = FAMILIES["roberta"].mechanisms[mechanism]
    assert ours.encoder_normaliser == preset.get("encoder_normaliser", "softmax")


def test_stock_options_are_there():
    flags = []
    for name in ("roberta", "roberta_hna_8"):
        parser = ArgumentParser(allow_abbrev=False)
        ARCH_MODEL_REGISTRY[name].add_args(parser)
        flags.append({flag for action in parser._actions for flag in action.option_strings})
    pruning = {"--mha-reg-scale-factor", "--ffn-reg-scale-factor", "--mha-heads-to-keep"}
    assert flags[0] - flags[1] == pruning | {"--ffn-blocks-to-remove"}
    assert {"--encoder-normaliser", "--segments"} <= flags[1]
    assert not [flag for flag in flags[1] if flag.startswith(("--decoder", "--cross"))]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_batch_and_padding_change_nothing(mechanism):
    model = build(f"roberta_{mechanism}_tiny").eval()
    with torch.no_grad():
        together = model(TOKENS)[0]
        for row, tokens in enumerate(TOKENS):
            alone = tokens[tokens.ne(1)]
            for extra in (0, 3):
                padded = torch.cat([alone, alone.new_full((extra,), 1)])[None]
                out = model(padded)[0][0, : len(alone)]
                torch.testing.assert_close(out, together[row, : len(alone)], atol=2e-5, rtol=1e-5)


def test_only_masked_tokens_are_projected():
    model, masked = build().eval(), torch.zeros_like(REAL)
    masked[0, 2] = masked[1, 1] = True
    torch.testing.assert_close(model(TOKENS, masked_tokens=masked)[0], model(TOKENS)[0][masked])
    alone = model.encoder(TOKENS, masked_tokens=masked)[0]  # as the encoder of fairseq's model does
    torch.testing.assert_close(alone, model(TOKENS)[0][masked])


def test_segments_are_embedded_before_the_normalisation():
    model = build(segments=2).eval()
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0]])
    plain, both = model(TOKENS)[0], model(TOKENS, segments=segments)[0]
    assert (plain - both)[REAL].abs().max() > 1e-4
    torch.testing.assert_close(model(TOKENS, segments=torch.zeros_like(segments))[0], plain)
    encoder = model.encoder.sentence_encoder
    given = encoder.embed_tokens(TOKENS) + model.encoder.embed_segments(segments)
    summed = encoder(TOKENS, token_embeddings=given)["encoder_out"][0].transpose(0, 1)
    features = model(TOKENS, segments=segments, features_only=True)[0]
    torch.testing.assert_close(features[REAL], summed[REAL])


def test_a_task_of_pairs_brings_segments():
    assert build(made_for=task(segments=2)).encoder.embed_segments.num_embeddings == 2
    assert build().encoder.embed_segments is None
    assert build(made_for=task(segments=2), segments=0).encoder.embed_segments is None


def test_positions_are_those_of_the_task_unless_given():
    def positions(**options):
        model = build(**options)
        return model.max_positions(), model.encoder.sentence_encoder.embed_positions.num_embeddings

    assert positions() == (16, 18)
    assert positions(max_positions=40) == (40, 42)
    assert positions(made_for=task(None)) == (512, 514)
    with pytest.raises(UsageError, match="up to 16 tokens, and --max-positions is 8"):
        build(max_positions=8)


def test_heads_beside_the_main_output():
    model = build().eval()
    model.register_classification_head("pair", num_classes=2)
    model.register_token_head("each", 3)
    logits, extra = model(TOKENS, further_heads=("pair", "each"))
    assert extra["heads"]["pair"].shape == (2, 2) and extra["heads"]["each"].shape == (2, 7, 3)
    torch.testing.assert_close(logits, model(TOKENS)[0])
    for name in ("pair", "each"):
        alone = model(TOKENS, classification_head_name=name)[0]
        torch.testing.assert_close(alone, extra["heads"][name])
    torch.testing.assert_close(
        model.classification_heads["each"](extra["features"][:, 3:4]),
        extra["heads"]["each"][:, 3:4],
    )


def test_a_head_with_spectral_normalisation_is_loaded_again():
    """Its weight has another name in checkpoints than fairseq looks for."""
    made, again = (build(spectral_norm_classification_head=True) for _ in range(2))
    for model in (made, again):
        model.register_classification_head("pair", num_classes=2)
    features = torch.randn(2, 5, 128)
    for _ in range(3):  # each is a step of power iteration
        made.classification_heads["pair"](features)
    state = made.state_dict()
    again.upgrade_state_dict(state)
    again.load_state_dict(state, strict=True)
    said = [model.eval().classification_heads["pair"](features) for model in (made, again)]
    torch.testing.assert_close(*said, atol=0, rtol=0)


def test_a_frozen_head_leaves_the_embeddings_to_train():
    for untied in (False, True):
        model = build(untie_weights_roberta=untied)
        model.encoder.freeze_lm_head()
        assert model.encoder.sentence_encoder.embed_tokens.weight.requires_grad
        frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        assert len(frozen) == 5 + untied and all("lm_head" in name for name in frozen)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_maps_reach_the_listener_with_their_gradient(mechanism):
    """With and without activation checkpointing."""
    results = []
    for saved in (False, True):
        model = build(f"roberta_{mechanism}_tiny", checkpoint_activations=saved)
        recorder = AttentionRecorder(lambda site, layer: [0, 5])
        extra = model(TOKENS, recorder=recorder)[1]
        assert extra["attention_maps"] is recorder.maps and len(recorder.maps) == 4
        sum(map_.square().sum() for map_ in recorder.maps.values()).backward()
        results.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*results)
    assert results[0]["encoder.sentence_encoder.layers.0.self_attn.q_proj.weight"].abs().max() > 0


def test_hard_coded_heads_fit_in():
    model = build(encoder_gaussian_heads="all").eval()
    assert model(TOKENS)[0].isfinite().all()
