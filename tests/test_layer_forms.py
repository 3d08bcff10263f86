"""RMSNorm, gated feed-forward layers, layers without biases, and the sizes made of them."""

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY, build_model
from omegaconf import OmegaConf
from torch._subclasses import FakeTensorMode

from fairseq_ext.attention import Attention, Inputs
from fairseq_ext.attention.scorers import Scorer
from fairseq_ext.errors import UsageError
from fairseq_ext.models.architectures import FAMILIES
from fairseq_ext.models.pretrained import adopt_options
from fairseq_ext.testing import check_model
from fairseq_ext.testing.mechanisms import build_tiny_model
from fairseq_ext.training.resuming_checks import check_attention

TODAY = {"norm": "rms", "ffn": "swiglu", "no_biases": True, "qk_norm": True}


def rms(x, module):
    """RMSNorm of each vector of the last axis, by the definition."""
    rows = []
    for row in x.reshape(-1, x.size(-1)):
        mean = sum(value * value for value in row) / len(row)
        rows.append(row / (mean + 1e-5).sqrt() * module.weight)
    return torch.stack(rows).view_as(x)


def gated(kind, x, layer):
    """(activation(x W) * (x V)) W_2, unit by unit; gelu is x times the normal distribution."""
    w, v = layer.fc1.weight.chunk(2)
    a, b = x @ w.T, x @ v.T
    gate = a / (1 + (-a).exp()) if kind == "swiglu" else a * (1 + torch.erf(a / 2**0.5)) / 2
    return (gate * b) @ layer.fc2.weight.T


def attend(module, x):
    """Attention [T, B, C] by heads, with normalised queries and keys; there is no padding."""
    heads, outputs = module.num_heads, []
    for b in range(x.size(1)):
        q, k, v = (
            projection(x[:, b]).view(len(x), heads, -1)
            for projection in (module.q_proj, module.k_proj, module.v_proj)
        )
        q, k = rms(q, module.q_norm), rms(k, module.k_norm)
        maps = [(q[:, h] @ k[:, h].T / q.size(-1) ** 0.5).softmax(-1) for h in range(heads)]
        outputs.append(torch.cat([maps[h] @ v[:, h] for h in range(heads)], -1))
    return module.out_proj(torch.stack(outputs, 1))


@pytest.mark.parametrize("kind", ["swiglu", "geglu"])
def test_a_layer_is_its_equations(kind):
    """Output and every gradient of a layer, with all forms, are those of a naive twin."""
    options = {**TODAY, "ffn": kind, "encoder_normalize_before": True}
    layer = build_tiny_model("transformer_una_tiny", **options).encoder.layers[0].double()
    x = torch.randn(5, 2, 32, dtype=torch.double, requires_grad=True)
    y = x + attend(layer.self_attn, rms(x, layer.self_attn_layer_norm))
    naive = y + gated(kind, rms(y, layer.final_layer_norm), layer)
    pair = layer(x, Inputs()), naive
    torch.testing.assert_close(*pair)
    probe, wanted = torch.randn_like(x), [x, *layer.parameters()]
    torch.testing.assert_close(*(torch.autograd.grad(out, wanted, probe) for out in pair))


@pytest.mark.parametrize("kind", ["transformer", "transformer_lm", "roberta"])
def test_what_holds_of_models_of_today(kind):
    check_model(f"{kind}_today_tiny")


def test_all_norms_and_biases_of_a_model():
    """Only the head for masked words, which RoBERTa has, keeps biases and its layer norm."""
    model = build_tiny_model("roberta_una_tiny", norm="rms", no_biases=True, layer_norm_eps=1e-6)
    encoder = model.encoder.sentence_encoder
    norms = [m for m in model.modules() if hasattr(m, "normalized_shape")]
    assert isinstance(encoder.layernorm_embedding, torch.nn.RMSNorm)
    assert [type(m) for m in norms].count(torch.nn.LayerNorm) == 1
    assert {m.eps for m in norms} == {1e-6}
    assert not [name for name, _ in encoder.named_parameters() if name.endswith("bias")]
    before = build_tiny_model("transformer_lm_una_tiny", norm="rms", decoder_normalize_before=True)
    assert isinstance(before.decoder.layer_norm, torch.nn.RMSNorm)


def test_layer_norm_without_biases():
    """The mean is still subtracted."""
    norm = build_tiny_model("transformer_una_tiny", no_biases=True).encoder.layers[0]
    norm = norm.self_attn_layer_norm
    x = torch.randn(3, 32)
    wanted = (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, keepdim=True, unbiased=False) + 1e-5
    ) ** 0.5
    torch.testing.assert_close(norm(x), wanted * norm.weight)


@pytest.mark.parametrize("family", ["transformer", "transformer_lm", "roberta"])
@pytest.mark.parametrize("today", ["tiny", "base"])
def test_sizes_of_today_have_as_many_parameters(family, today, task_of_30000):
    """Within 2 %, with a dictionary of 30,000 symbols, whatever the mechanism."""
    plain = {"base": {"roberta": "_12"}.get(family, ""), "tiny": "_tiny"}[today]
    names = f"{family}_una{plain}", f"{family}_today_{today}"
    before, after = (count(name, task_of_30000) for name in names)
    assert abs(after / before - 1) < 0.02, (before, after)


def count(name, task):
    length = {"tokens_per_sample": 512, "max_target_positions": 512} if "_lm_" in name else {}
    with FakeTensorMode():
        model = build_model(OmegaConf.create({"_name": name, **length}), task)
    return sum(p.numel() for p in model.parameters())


@pytest.fixture
def task_of_30000():
    words = Dictionary()
    for n in range(30000 - len(words)):
        words.add_symbol(f"w{n}")
    return Namespace(
        source_dictionary=words, target_dictionary=words, max_positions=lambda: 512, cfg=Namespace()
    )


def test_sizes_of_today_are_those_of_every_mechanism():
    for kind in ("transformer", "transformer_lm", "roberta"):
        for name in FAMILIES[kind].mechanisms:
            assert f"{kind}_{name}_today_tiny" in MODEL_REGISTRY
    assert "deberta_una_today_tiny" not in MODEL_REGISTRY
    with pytest.raises(UsageError, match="--norm rms does not go with --encoder-scorer disent"):
        build_tiny_model("deberta_una_tiny", norm="rms")


def halves(weight, heads):
    """Rows of a projection whose heads turn pairs (2n, 2n + 1), as Llama has them: halves."""
    width = len(weight) // heads
    order = [*range(0, width, 2), *range(1, width, 2)]
    return weight.view(heads, width, -1)[:, order].reshape(len(weight), -1)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_language_model_of_today_is_llama(kv_heads, hugging_face):
    """Logits are those of a random Llama with the same parameters, for sentences and pieces."""
    options = {"qk_norm": False, "decoder_kv_heads": kv_heads}
    model = build_tiny_model("transformer_lm_today_tiny", **options)
    tokens = torch.randint(4, 40, (2, 50))
    decoder, layers = model.decoder, model.decoder.layers
    llama = hugging_face.LlamaForCausalLM(
        hugging_face.LlamaConfig(
            vocab_size=len(decoder.dictionary),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=len(layers),
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-5,
            max_position_embeddings=64,
        )
    ).eval()
    state = {
        "model.embed_tokens.weight": decoder.embed_tokens.weight,
        "model.norm.weight": decoder.layer_norm.weight,
        "lm_head.weight": decoder.output_projection.weight,
    }
    for number, layer in enumerate(layers):
        attention, prefix = layer.self_attn, f"model.layers.{number}."
        gate, up = layer.fc1.weight.chunk(2)
        state |= {
            f"{prefix}self_attn.q_proj.weight": halves(attention.q_proj.weight, 4),
            f"{prefix}self_attn.k_proj.weight": halves(attention.k_proj.weight, kv_heads),
            f"{prefix}self_attn.v_proj.weight": attention.v_proj.weight,
            f"{prefix}self_attn.o_proj.weight": attention.out_proj.weight,
            f"{prefix}mlp.gate_proj.weight": gate,
            f"{prefix}mlp.up_proj.weight": up,
            f"{prefix}mlp.down_proj.weight": layer.fc2.weight,
            f"{prefix}input_layernorm.weight": layer.self_attn_layer_norm.weight,
            f"{prefix}post_attention_layernorm.weight": layer.final_layer_norm.weight,
        }
    assert sum(x.numel() for x in state.values()) == sum(p.numel() for p in model.parameters())
    llama.load_state_dict(state)
    with torch.no_grad():
        pair = model(tokens)[0], llama(tokens).logits
    torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)
    assert pair[0].std() > 0.1


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"norm": "rms"}, "layer_norm.bias"),
        ({"ffn": "swiglu"}, "fc1.weight"),
        ({"no_biases": True}, "fc1.bias"),
        ({"qk_norm": True}, "self_attn.q_norm.weight"),
        ({"encoder_kv_heads": 2}, "self_attn.k_proj.weight"),
    ],
)
def test_parameters_of_another_form_are_not_loaded(form, named):
    """Nothing is filled in or left out, and a training does not continue in another form."""
    plain = build_tiny_model("transformer_una_tiny")
    formed = build_tiny_model("transformer_una_tiny", **form)
    for model, other in ((plain, formed), (formed, plain)):
        with pytest.raises(RuntimeError, match=named):
            model.load_state_dict(other.state_dict())
    sizes = {"encoder_layers": 2, "decoder_layers": 2}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    state = {"cfg": {"model": {**sizes, "encoder_normaliser": "softmax"}}}
    with pytest.raises(UsageError, match=f"trained with {next(iter(form))} .*now"):
        check_attention("old.pt", state, {**state["cfg"]["model"], **form}, False)


def test_fine_tuning_takes_the_form_over(tmp_path):
    """An --arch without a size has the form of its checkpoint; one of another form is refused."""
    model = build_tiny_model("roberta_today_tiny")
    options = {**vars(model.args), "arch": "roberta_today_tiny"}
    path = tmp_path / "today.pt"
    torch.save({"args": Namespace(**options), "model": model.state_dict(), "best_loss": 1.0}, path)
    sizeless = Namespace(**getattr(MODEL_REGISTRY["roberta_una"], "__dataclass")().__dict__)
    adopt_options(sizeless, str(path))
    assert {name: getattr(sizeless, name) for name in TODAY} == TODAY
    sizeless.ffn = "geglu"
    with pytest.raises(UsageError, match="has --ffn swiglu and the model to be fine-tuned geglu"):
        adopt_options(sizeless, str(path))


def test_queries_and_keys_that_are_not_multiplied_are_not_normalised():
    with pytest.raises(UsageError, match="--qk-norm .* --encoder-scorer dot, or leave out"):
        build_tiny_model("transformer_una_tiny", qk_norm=True, encoder_scorer="random")
    assert not Scorer.multiplies
    hard = build_tiny_model("transformer_una_tiny", qk_norm=True, encoder_gaussian_heads="4")
    names = [name for name, _ in hard.named_parameters() if "q_norm" in name]
    assert names and not [name for name in names if name.startswith("encoder")]


def test_scores_of_normalised_queries_are_bounded():
    """They are at most sqrt(D) with gains of 1, however large inputs are."""
    module = Attention(32, 4, site="encoder", qk_norm=True).double()
    x = 1e4 * torch.randn(6, 1, 32).double()
    q, k, *_ = module.project(x, x, x, Inputs(), None, False)
    assert (q @ k.transpose(-1, -2) / 8**0.5).abs().max() <= 8**0.5
