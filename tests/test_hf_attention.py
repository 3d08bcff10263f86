"""Mechanisms as attn_implementation of transformers: they are our attention; refusals."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from cases import slow_but_first
from torch import nn

from fairseq_ext.attention import Inputs
from fairseq_ext.attention.building import build_attention
from fairseq_ext.attention.presets import PRESETS
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import hf_format
from fairseq_ext.interchange.hf_attention import ATTRIBUTE, prepare, register
from fairseq_ext.mechanisms.guidance.loss import sentence_losses
from fairseq_ext.mechanisms.guidance.patterns import View
from fairseq_ext.mechanisms.guidance.plan import GuidedHeads, parse_heads
from fairseq_ext.mechanisms.guidance.recorder import GuidanceRecorder
from fairseq_ext.models.pretrained import FIRST_POSITION
from fairseq_ext.testing.mechanisms import build_tiny_model

SIZE = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = {**SIZE, "intermediate_size": 24, "pad_token_id": 1}
NEAR = {"rtol": 1e-9, "atol": 1e-9}
PAD, LENGTHS = 1, (9, 5, 1)
SAME = {"decoder_normaliser": "softmax", "cross_normaliser": "softmax"}


@pytest.fixture(scope="module")
def library(hugging_face):
    import transformers
    from transformers.masking_utils import AttentionMaskInterface

    tables = transformers.AttentionInterface, AttentionMaskInterface
    before = [dict(table._global_mapping) for table in tables]
    register()
    register("transformer_hna", normaliser="hybrid", **SAME)
    yield transformers
    for table, mapping in zip(tables, before, strict=True):
        table._global_mapping.clear()
        table._global_mapping.update(mapping)


def texts(left: bool, lengths=LENGTHS):
    """Tokens [B, S], of which the real ones do not depend on the side of padding, and masks."""
    generator = torch.Generator().manual_seed(1)
    real = torch.zeros(len(lengths), max(lengths), dtype=torch.bool)
    for row, length in zip(real, lengths, strict=True):
        row[-length if left else 0 : None if left else length] = True
    tokens = torch.full(real.shape, PAD)
    tokens[real] = torch.randint(4, 40, (sum(lengths),), generator=generator)
    return tokens, real


def build(library, kind, implementation, **config):
    torch.manual_seed(2)
    values = {"attn_implementation": implementation, **config}
    model = getattr(library, kind)(
        getattr(library, f"{kind.removesuffix('Model')}Config")(**values)
    )
    prepare(model)
    for module in model.modules():
        if (own := getattr(module, ATTRIBUTE, None)) is not None:
            for parameter in own.parameters():
                nn.init.normal_(parameter)
    return model.double().eval()


@contextmanager
def our_attention(library, mechanisms, padding, options):
    """An implementation that is our whole attention, with projections that change nothing."""

    def attend(module, q, k, v, mask, scaling, sliding_window=None, **unused):
        site, own = mechanisms[name_place(module)]
        width = q.size(1) * q.size(3)
        given = {f"{site}_{n}": v for n, v in options.items()} if site == "encoder" else {}
        ours = build_attention(width, q.size(1), given, site=site, layer=own.layer).double()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            nn.init.eye_(getattr(ours, name).weight)
            nn.init.zeros_(getattr(ours, name).bias)
        ours.groups, ours.mixer = own.groups, own.mixer
        inputs = Inputs(padding["decoder" if site == "decoder" else "encoder"], site == "decoder")
        if sliding_window is not None:
            places = torch.arange(q.size(2))
            inputs.masked = (places[:, None] - places).abs() >= sliding_window
        states = [x.permute(2, 0, 1, 3).flatten(2) for x in (q, k, v)]
        out, _ = ours(*states, inputs, need_weights=False)
        return out.transpose(0, 1), None

    library.AttentionInterface.register("ours", attend)
    yield "ours"


def name_place(module):
    return (
        type(module).__name__,
        module.layer_idx,
        module.is_causal,
        getattr(module, "is_decoder", 0),
    )


def gradients(model, outputs, real):
    """The states of real tokens, and the gradients of all parameters by name, in one order."""
    states = torch.cat([x[r] for x, r in zip(outputs, real, strict=True)])
    weights = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)
    named = dict(model.named_parameters())
    found = torch.autograd.grad((states * weights).sum(), named.values(), allow_unused=True)
    return {"states": states.detach(), **dict(zip(named, found, strict=True))}


def check_equal(library, model, options, padding, run):
    """Outputs and all gradients are those of the model with our own attention."""
    parts = [m for m in model.modules() if hasattr(m, ATTRIBUTE)]
    mechanisms = {name_place(m): (getattr(m, ATTRIBUTE).site, getattr(m, ATTRIBUTE)) for m in parts}
    assert parts
    found = run(model)
    with our_attention(library, mechanisms, padding, options) as other:
        model.set_attn_implementation(other)
        expected = run(model)
    torch.testing.assert_close(found, expected, **NEAR)


ENCODERS = {
    "Bert": BERT,
    "ModernBert": {
        **BERT,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "cls_token_id": 0,
        "sep_token_id": 2,
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
    },
}


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    "name", slow_but_first(["hna", "una", "dna", "entmax", "sink", "talking", "differential"])
)
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders(library, kind, name, left):
    tokens, real = texts(left)
    model = build(library, f"{kind}Model", name, **ENCODERS[kind])

    def run(model):
        states = model(tokens, attention_mask=real.long()).last_hidden_state
        return gradients(model, [states], [real])

    options = {k.removeprefix("encoder_"): v for k, v in PRESETS["roberta"][name].items()}
    check_equal(library, model, options, {"encoder": ~real}, run)


@pytest.mark.parametrize("left", slow_but_first([True, False]))
@pytest.mark.parametrize("name", slow_but_first(["transformer_hna", "entmax", "sink"]))
def test_an_encoder_and_decoder(library, name, left):
    """BART: its causal attention, its cross-attention, and DNA of the encoder alone."""
    tokens, real = texts(left)
    outputs, written = texts(False, (4, 9, 3))
    size = {
        f"{side}_{n}": x
        for side in ("encoder", "decoder")
        for n, x in {"layers": 2, "attention_heads": 4, "ffn_dim": 24}.items()
    }
    model = build(library, "BartModel", name, vocab_size=40, d_model=16, pad_token_id=PAD, **size)

    def run(model):
        states = model(tokens, attention_mask=real, decoder_input_ids=outputs)
        both = [states.encoder_last_hidden_state, states.last_hidden_state]
        return gradients(model, both, [real, written])

    check_equal(library, model, {}, {"encoder": ~real, "decoder": None}, run)


def test_scores_with_a_bias(library):
    """T5's positions and scale: softmax is transformers', with a gradient of the bias."""
    tokens, real = texts(True)
    size = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
    model = build(library, "T5Model", "una", **size)
    results = []
    for name in ("una", "eager"):
        model.set_attn_implementation(name)
        states = model(tokens, attention_mask=real.long(), decoder_input_ids=tokens[:, -4:])
        both = [states.encoder_last_hidden_state, states.last_hidden_state]
        results.append(gradients(model, both, [real, real[:, -4:]]))
    torch.testing.assert_close(*results, **NEAR)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", slow_but_first(["hna", "dna", "entmax"]))
def test_bert_is_our_encoder(library, name, left):
    """With the same parameters: states of a model of fairseq's."""
    ours = (
        build_tiny_model(f"roberta_{name}_tiny", segments=2, layer_norm_eps=1e-12).double().eval()
    )
    sizes = ours.args
    config = {"vocab_size": len(ours.encoder.dictionary), "hidden_act": "gelu"} | {
        "hidden_size": sizes.encoder_embed_dim,
        "num_hidden_layers": sizes.encoder_layers,
        "num_attention_heads": sizes.encoder_attention_heads,
        "intermediate_size": sizes.encoder_ffn_embed_dim,
    }
    theirs = build(library, "BertModel", name, **config)
    state = ours.state_dict()
    hf_format.rearrange(state, [*range(config["vocab_size"])], FIRST_POSITION, 0)
    rows = len(theirs.embeddings.position_embeddings.weight)
    assert len(state[hf_format.POSITIONS]) <= rows
    state[hf_format.POSITIONS] = nn.functional.pad(
        state[hf_format.POSITIONS], (0, 0, 0, rows - len(state[hf_format.POSITIONS]))
    )
    names = hf_format.list_parameters("bert", sizes.encoder_layers, head=False)
    theirs.load_state_dict({n: state[o] for n, (o, _) in names.items()}, strict=False)
    for layer, own in zip(theirs.encoder.layer, ours.encoder.sentence_encoder.layers, strict=True):
        own.self_attn.groups.load_state_dict(
            getattr(layer.attention.self, ATTRIBUTE).groups.state_dict()
        )
    tokens, real = texts(left)
    tokens = tokens.clamp(max=config["vocab_size"] - 1)
    places = (real.cumsum(1) - 1).clamp(min=0)  # fairseq counts real tokens
    expected = ours(tokens, features_only=True)[0][real]
    found = theirs(tokens, attention_mask=real.long(), position_ids=places).last_hidden_state[real]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", slow_but_first(["talking", "entmax", "sink"]))
def test_caches_and_shared_heads(library, name):
    """Llama with padding on the left, token by token and all at once; heads share keys."""
    size = {**SIZE, "intermediate_size": 24, "num_key_value_heads": 2, "pad_token_id": PAD}
    config = library.LlamaConfig(**size, attn_implementation=name)
    model = library.LlamaForCausalLM(config)
    prepare(model)
    model = model.double().eval()
    tokens, real = texts(left=True)
    with torch.no_grad():
        whole = model(tokens, attention_mask=real.long())
        first = model(tokens[:, :4], attention_mask=real[:, :4].long(), use_cache=True)
        cache, logits = first.past_key_values, [first.logits]
        for step in range(4, tokens.size(1)):
            mask = real[:, : step + 1].long()
            out = model(tokens[:, step : step + 1], attention_mask=mask, past_key_values=cache)
            logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, 1)[real], whole.logits[real], **NEAR)
    given = {"attention_mask": real.long(), "max_new_tokens": 5, "num_beams": 2, "do_sample": False}
    found = [model.generate(tokens, **given, use_cache=cached).tolist() for cached in (True, False)]
    assert found[0] == found[1]


def test_a_recorder_and_guidance_on_bert(library):
    """Maps of the wanted heads with gradients, and the guidance loss on them."""
    tokens, real = texts(left=False)
    model = build(library, "BertModel", "una", **BERT)
    view = View(tokens, real, real)
    guided = GuidedHeads(
        {0: [0, 2], 1: [0, 2]}, parse_heads("heads", "next:1,first:1"), {"next": [], "first": []}
    )
    recorder = GuidanceRecorder(
        {"encoder": guided}, lambda inputs: {"encoder": view}, "uniform", False
    )
    recorder.begin({})
    model(tokens, attention_mask=real.long(), recorder=recorder)
    loss = sentence_losses(recorder.maps, "encoder", guided, view, "mean")
    loss.sum().backward()
    assert model.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    model.set_attn_implementation("eager")
    maps = model(tokens, attention_mask=real.long(), output_attentions=True).attentions
    rows = real[:, None].expand(-1, 2, -1)
    expected = {("encoder", n): each[:, [0, 2]][rows] for n, each in enumerate(maps)}
    found = {place: each[rows] for place, each in recorder.maps.items()}
    torch.testing.assert_close(found, expected, **NEAR)


def test_what_is_saved_is_loaded(library, tmp_path):
    model = build(library, "BertModel", "hna", **BERT)
    model.save_pretrained(tmp_path)
    other = library.BertModel.from_pretrained(tmp_path, attn_implementation="hna")
    prepare(other)
    expected = {n: x for n, x in model.state_dict().items() if ATTRIBUTE in n}
    found = {n: x.double() for n, x in other.state_dict().items() if ATTRIBUTE in n}
    assert expected
    torch.testing.assert_close(found, expected)


def test_what_is_refused(library):
    tokens, real = texts(left=False)
    llama = library.LlamaForCausalLM(
        library.LlamaConfig(**SIZE, intermediate_size=24, attn_implementation="dna")
    )
    with pytest.raises(UsageError, match='"dna" looks across queries.* in a decoder'):
        llama(tokens)
    config = library.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    config._attn_implementation = "mixed"
    register("mixed", normaliser="doubly", decoder_normaliser="softmax")
    decoder = library.BertModel(config)
    with pytest.raises(UsageError, match='"mixed" looks across queries'):  # same lengths
        decoder(tokens, encoder_hidden_states=torch.randn(*tokens.shape, 16))
    bert = library.BertModel(library.BertConfig(**BERT, attn_implementation="hna"))
    with pytest.raises(UsageError, match=r'"hna" has parameters.*prepare\(model\)'):
        bert(tokens)
    with pytest.raises(UsageError, match="no option entmax_alpha here"):
        register("wrong", normaliser="softmax", entmax_alpha=1.2)
    with pytest.raises(UsageError, match="normaliser is 'nothing'"):
        register("wrong", normaliser="nothing")
    with pytest.raises(UsageError, match="--entmax-alpha is 3"):
        register("wrong", normaliser="entmax", entmax_alpha=3.0)
    gemma = SimpleNamespace(is_causal=True)
    attend = library.AttentionInterface()["entmax"]
    with pytest.raises(UsageError, match="does not know softcap"):
        attend(gemma, *[torch.randn(1, 2, 3, 4)] * 3, None, softcap=30.0)
