"""Language models of today and Llamas or Qwen3s of transformers: logits, in both directions."""

from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from safetensors.torch import load_file, save_file
from stock_models import build_model, checkpoint
from tokenizers import Tokenizer, models, pre_tokenizers

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange.hf_llama import to_halves, to_pairs

ARCHITECTURE = "transformer_lm_una_today_tiny"
NEAR = {"rtol": 0, "atol": 1e-5}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def data(tmp_path) -> Path:
    words = Dictionary()
    for number in range(36):
        words.add_symbol(f"w{number}")
    (tmp_path / "data").mkdir()
    words.save(str(tmp_path / "data" / "dict.txt"))
    return tmp_path / "data"


def export(data: Path, **options) -> tuple[torch.nn.Module, Path]:
    model = build_model(ARCHITECTURE, Dictionary.load(str(data / "dict.txt")), **options)
    task = {"_name": "language_modeling", "data": str(data)}
    torch.save(checkpoint(ARCHITECTURE, model, task, **options), data.parent / "model.pt")
    cli.main(["export-hf", str(data.parent / "model.pt"), str(data.parent / "out")])
    return model, data.parent / "out"


def test_pairs_and_halves_are_the_same_rows():
    rows = torch.arange(8)
    assert to_halves(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert to_pairs(to_halves(rows, 2), 2).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"qk_norm": False}, "LlamaForCausalLM"),
        ({"qk_norm": False, "decoder_kv_heads": 1, "ffn": "geglu"}, "LlamaForCausalLM"),
        ({"decoder_kv_heads": 2, "share_decoder_input_output_embed": True}, "Qwen3ForCausalLM"),
    ],
)
def test_exported_models_are_those_of_transformers(options, kind, data, hugging_face):
    """And import brings them back, parameter for parameter."""
    model, out = export(data, **options)
    theirs = hugging_face.AutoModelForCausalLM.from_pretrained(out).eval()
    assert type(theirs).__name__ == kind
    tokens = torch.randint(4, 40, (2, 12))
    with torch.no_grad():
        expected = model(tokens)[0]
        torch.testing.assert_close(theirs(tokens).logits, expected, **NEAR)
    assert expected.std() > 0.1
    cli.main(["import-hf", str(out), str(data.parent / "again")])
    state = torch.load(data.parent / "again" / "model.pt", weights_only=True)["model"]
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_random_model_of_transformers_is_imported(kind, tmp_path, hugging_face):
    """Its tokens are numbered as in fairseq; the symbol that it lacks has a row of zeros."""
    config = getattr(hugging_face, f"{kind}Config")(**SIZES, bos_token_id=5, eos_token_id=6)
    theirs = getattr(hugging_face, f"{kind}ForCausalLM")(config).eval()
    folder, out = tmp_path / "theirs", tmp_path / "ours"
    theirs.save_pretrained(folder)
    names = ["<unk>", *(f"t{i}" for i in range(1, 5)), "<|begin|>", "<|end|>"]
    names += [f"t{i}" for i in range(7, 40)]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    cli.main(["import-hf", str(folder), str(out)])
    words = Dictionary.load(str(out / "dict.txt"))
    overrides = {"data": str(out)}
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(out / "model.pt")], arg_overrides=overrides
    )
    known = {"<|begin|>": "<s>", "<|end|>": "</s>"}
    numbers = torch.tensor([words.index(known.get(name, name)) for name in names])
    assert len(words) == 41 and sorted(numbers.tolist()) == [0, *range(2, 41)]
    tokens = torch.randint(7, 40, (2, 12))
    with torch.no_grad():
        ours = model.eval()(numbers[tokens])[0]
        torch.testing.assert_close(ours[..., numbers], theirs(tokens).logits, **NEAR)
    assert not ours[..., words.pad()].any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"no_scale_embedding": False}, "--no-scale-embedding False, which Llama and Qwen3"),
        ({"layernorm_embedding": True}, "--layernorm-embedding True, which Llama and Qwen3"),
    ],
)
def test_what_they_do_not_compute_is_refused(options, said, data):
    with pytest.raises(UsageError, match=said):
        export(data, **options)
    assert not (data.parent / "out").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rope_theta": 500000.0}, "other rotary positions than those of theta 10000"),
        ({"rms_norm_eps": 1e-6}, "has rms_norm_eps 1e-06, which our models cannot do"),
        ({"attention_bias": True}, "has attention_bias True"),
        ({"head_dim": 16}, "has head_dim 16"),
    ],
)
def test_what_ours_do_not_compute_is_refused(settings, said, tmp_path, hugging_face):
    config = {**SIZES, **settings}
    hugging_face.LlamaForCausalLM(hugging_face.LlamaConfig(**config)).save_pretrained(
        tmp_path / "x"
    )
    with pytest.raises(UsageError, match=said):
        cli.main(["import-hf", str(tmp_path / "x"), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.pop("model.norm.weight"), "model.norm.weight is missing, where config"),
        (
            lambda x: x.update({"model.norm.weight": torch.ones(31)}),
            r"norm.weight is torch.float32 \[31\], where config.json asks .* \[32\]",
        ),
        (
            lambda x: x.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}),
            r"without a place in our models \(model.layers.0.self_attn.q_proj.bias\)",
        ),
    ],
    ids=["missing", "of another shape", "without a place"],
)
def test_parameters_that_do_not_fit_are_named(change, said, tmp_path, hugging_face):
    model = hugging_face.LlamaForCausalLM(hugging_face.LlamaConfig(**SIZES))
    model.save_pretrained(tmp_path / "x")
    file = tmp_path / "x" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UsageError, match=said):
        cli.main(["import-hf", str(tmp_path / "x"), str(tmp_path / "out")])
