"""DeBERTa's models: sizes, parts around attention, masked words, replaced tokens, invariants."""

from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from cases import slow_but_first
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY, build_model
from omegaconf import OmegaConf
from restore import configure_training
from torch.nn import functional as F

from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.passes import AdversarialPass, SecondPass
from fairseq_ext.models.deberta import Convolution
from fairseq_ext.testing import check_model
from fairseq_ext.testing.mechanisms import build_tiny_model
from fairseq_ext.training import training_checks

TOKENS = torch.tensor([[0, 5, 6, 7, 8, 9, 2], [0, 10, 11, 2, 1, 1, 1]])
REAL = TOKENS.ne(1)
BUCKETS = {"disentangled_buckets": 4, "disentangled_distance": 6}
DECODER = {"enhanced_mask_decoder": True}
PARTS = {"encoder_conv_kernel": 3, "embedding_width": 20, "segments": 2, **BUCKETS}


@pytest.mark.parametrize(
    ("size", "published"),
    [
        ("_small", (6, 768, 3072, 12, 0)),  # deberta-v3-small
        ("_base", (12, 768, 3072, 12, 0)),
        ("_large", (24, 1024, 4096, 16, 0)),
        ("_xlarge", (24, 1536, 6144, 24, 3)),  # deberta-v2-xlarge
    ],
)
@pytest.mark.parametrize("mechanism", ["una", "dna", "hna", "asa", "roles"])
def test_sizes(mechanism, size, published):
    config = OmegaConf.structured(
        getattr(MODEL_REGISTRY[f"deberta_{mechanism}{size}"], "__dataclass")
    )
    names = ["layers", "embed_dim", "ffn_embed_dim", "attention_heads", "conv_kernel"]
    assert tuple(config[f"encoder_{name}"] for name in names) == published
    assert config.encoder_scorer == "disentangled" and config.encoder_positions == "none"
    assert config.layer_norm_eps == 1e-7 and config.disentangled_buckets == 256


def test_the_number_of_parameters():
    """Layers as BERT's, relative embeddings, and the layer norms of both kinds of embeddings."""
    words = Dictionary()
    task = Namespace(source_dictionary=words, max_positions=lambda: 512)
    cfg = OmegaConf.create({"_name": "deberta_una_small", "encoder_layers": 1})
    model = build_model(cfg, task)
    counts = {n: p.numel() for n, p in model.named_parameters() if "lm_head" not in n}
    layer = 4 * 768 * 769 + 768 * 3072 * 2 + 3072 + 768 + 4 * 768
    assert sum(counts.values()) == layer + 512 * 768 + 2 * 2 * 768 + 768 * len(words)


MODELS = [
    {**DECODER, **PARTS},
    {"encoder_normaliser": "doubly", "encoder_roles": "relative", **BUCKETS, **DECODER},
    {
        "encoder_normaliser": "hybrid",
        "head_gate": "static",
        **BUCKETS,
        "checkpoint_activations": True,
    },
]


@pytest.mark.parametrize("options", slow_but_first(MODELS))
def test_invariants(options):
    check_model("deberta_una_tiny", **options)


def test_convolution():
    torch.manual_seed(0)
    module = Convolution(6, 3, "gelu", 0.0).double()
    x, hidden = torch.randn(2, 5, 2, 6).double()
    padded = F.pad(x, (0, 0, 0, 0, 1, 1))
    rows = []
    for t in range(5):
        taps = (padded[t + k] @ module.conv.weight[:, :, k].T for k in range(3))
        rows.append(hidden[t] + F.gelu(sum(taps) + module.conv.bias))
    expected = F.layer_norm(torch.stack(rows), (6,))
    torch.testing.assert_close(module(x, hidden), expected)


@pytest.mark.parametrize("one_batch", [True, False])
def test_padding_that_is_embedded_does_not_reach_the_convolution(one_batch):
    """Real tokens are what they are without padding, which --asa-padded-length embeds."""
    model = build_tiny_model("deberta_asa_tiny", encoder_conv_kernel=3, **BUCKETS).eval()
    encoder, tokens = model.encoder.sentence_encoder, torch.tensor([[0, 5, 6, 2]])
    padded, outputs = F.pad(tokens, (0, 3), value=1), []
    for given, kept in ((tokens, None), (padded, "bert")):
        second = SecondPass(one_batch=one_batch, embedded_padding=kept)
        with torch.no_grad():
            outputs.append(encoder(given, second=second)["encoder_out"][0][:4])
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)


def test_masked_words_are_predicted_with_absolute_positions():
    """A sentence of equal tokens looks the same from everywhere but its ends otherwise."""
    tokens = torch.full((1, 9), 5)
    far = {"disentangled_buckets": 0, "disentangled_distance": 4}
    for options in (far, {**far, **DECODER}):
        model = build_tiny_model("deberta_una_tiny", encoder_layers=1, **options)
        with torch.no_grad():
            logits, extra = model(tokens)
        assert torch.allclose(extra["features"][0, 3], extra["features"][0, 5], atol=1e-5)
        same = torch.allclose(logits[0, 3], logits[0, 5], atol=1e-5)
        assert same == ("enhanced_mask_decoder" not in options)


def test_a_last_layer_that_may_be_dropped_decodes_nothing():
    with pytest.raises(UsageError, match="--encoder-layerdrop 0.1 may drop that layer; leave"):
        build_tiny_model("deberta_una_tiny", encoder_layerdrop=0.1, **DECODER)


def test_both_passes_are_decoded():
    """A second pass that masks nothing predicts the same, in one batch or in two."""
    model = build_tiny_model("deberta_asa_tiny", **BUCKETS, **DECODER)
    for layer in model.encoder.sentence_encoder.layers:
        layer.self_attn.adversary.query.bias.data.fill_(9.0)
        layer.self_attn.adversary.key.bias.data.fill_(9.0)
        for part in (layer.self_attn.adversary.query, layer.self_attn.adversary.key):
            part.weight.data.zero_()
    with torch.no_grad():
        expected = model(TOKENS, masked_tokens=REAL)[0]
        for one_batch in (True, False):
            second = AdversarialPass(one_batch=one_batch)
            logits, extra = model(TOKENS, masked_tokens=REAL, second=second)
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(extra["second"][0], expected, atol=1e-5, rtol=1e-5)


def test_only_masked_tokens_are_projected_to_the_width_of_embeddings():
    model, masked = build_tiny_model("deberta_una_tiny", embedding_width=20), TOKENS.eq(6)
    logits = model(TOKENS, masked_tokens=masked)[0]
    assert logits.shape == (1, len(model.encoder.dictionary))
    torch.testing.assert_close(logits, model(TOKENS)[0][masked])


def test_no_positions_are_decoded_for_heads():
    model = build_tiny_model("deberta_una_tiny", **DECODER)
    model.register_token_head("tokens", 1)
    _, extra = model(TOKENS, classification_head_name="tokens")
    assert "decoded" not in extra
    _, extra = model(TOKENS, features_only=True)
    assert "decoded" not in extra


def test_a_learned_generator_has_relative_positions_of_its_own():
    model = build_tiny_model("deberta_una_tiny", **PARTS, encoder_normaliser="doubly")
    model.register_generator(0.5)
    names = [name for name, _ in model.generator.named_parameters() if "relative" in name]
    assert names == [f"relative.{n}" for n in ("embedding.weight", "norm.weight", "norm.bias")]
    assert model.generator.relative.embedding.weight.shape == (8, 16)
    assert not any("convolution" in name for name, _ in model.generator.named_parameters())
    words = model.encoder.dictionary
    hidden = torch.where(TOKENS == 6, TOKENS, words.pad())
    masked = TOKENS.masked_fill(TOKENS == 6, words.index("<mask>"))
    replaced, scores = model.replace_tokens(masked, hidden)
    assert torch.equal(replaced[TOKENS != 6], TOKENS[TOKENS != 6])
    assert scores.shape == (1, len(words))


REFUSED = [
    ({"encoder_conv_kernel": 2}, "--encoder-conv-kernel is 2; give an odd number, such as 3"),
    ({**DECODER, "encoder_normalize_before": True}, "leave one of them out"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        build_tiny_model("deberta_una_tiny", **options)


def test_the_activation_of_a_convolution_needs_one():
    """Values that architectures preset are accepted, such as the GELU of xlarge."""
    model = build_tiny_model("deberta_una_tiny")
    for size, changed, refused in [
        ("_tiny", {"encoder_conv_activation_fn": "gelu"}, True),
        ("_tiny", {"encoder_conv_activation_fn": "gelu", "encoder_conv_kernel": 3}, False),
        ("_xlarge", {}, False),
        ("_xlarge", {"encoder_conv_activation_fn": "relu"}, False),
        ("_xlarge", {"encoder_conv_kernel": 0}, False),
    ]:
        cfg = configure_training(f"deberta_una{size}", "masked_lm", **changed)
        with (
            pytest.raises(UsageError, match="gelu has no effect with --encoder-conv-kernel 0")
            if refused
            else nullcontext()
        ):
            training_checks.check_training(model, None, cfg)
