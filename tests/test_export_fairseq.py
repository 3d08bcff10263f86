"""Checkpoints for stock fairseq and CTranslate2: the same outputs, in processes without us."""

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_generator import SequenceGenerator
from stock_models import CLOSING, EVERYWHERE, build_model, checkpoint

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import export_fairseq
from fairseq_ext.models.options import DEFAULTS
from fairseq_ext.prepare.toy.corpus import corpus
from fairseq_ext.safe_loading import load_checkpoint
from fairseq_ext.testing.mechanisms import build_tiny_model

LEARNED = {"encoder_positions": "learned", "decoder_positions": "learned"}
PRENORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
ADAPTIVE = {"adaptive_input": True, "tie_adaptive_weights": True, "tie_adaptive_proj": True}
ADAPTIVE |= {"adaptive_input_cutoff": "10,20", "adaptive_softmax_cutoff": "10,20"}


MODELS = {
    "sinusoids": ("transformer_una_tiny", {}),
    "learned positions": (
        "transformer_una_tiny",
        {**LEARNED, **PRENORM, "share_all_embeddings": True, "layernorm_embedding": True},
    ),
    "no biases, no positions": (
        "transformer_una_tiny",
        {"encoder_positions": "none", "decoder_positions": "none", "no_biases": True},
    ),
    "pruned heads": (
        "transformer_una_tiny",
        {"encoder_heads_left": "1/0", "decoder_heads_left": "3/4", "cross_heads_left": "0/2"},
    ),
    "shared keys": (
        "transformer_una_tiny",
        {"encoder_kv_heads": 2, "decoder_kv_heads": 1, "cross_kv_heads": 2},
    ),
    "static gates": ("transformer_una_tiny", {"head_gate": "static", **EVERYWHERE}),
    "closing gates": ("transformer_una_tiny", CLOSING),
    "shared layers": ("transformer_una_tiny", {"share_encoder_decoder_layers": True}),
    "an adversary": ("transformer_una_tiny", {"asa_layers": "0"}),
    "layers that are kept": ("transformer_una_tiny", {"encoder_layers_to_keep": "1"}),
    "a language model": ("transformer_lm_una_tiny", {"decoder_kv_heads": 2, "head_gate": "static"}),
    "adaptive embeddings": ("transformer_lm_una_tiny", ADAPTIVE),
    "an encoder": (
        "roberta_una_tiny",
        {"encoder_normalize_before": True, "untie_weights_roberta": True, "head_gate": "l0"},
    ),
}


def make(architecture: str, **options) -> dict:
    return checkpoint(architecture, build_tiny_model(architecture, **options), **options)


@pytest.mark.parametrize("architecture, options", MODELS.values(), ids=MODELS)
def test_what_is_softmax_becomes_fairseqs(architecture, options):
    """Outputs of both are compared before anything is returned."""
    made, left_out = export_fairseq.convert(make(architecture, **options), Path("x.pt"))
    assert made["args"].arch == architecture.removesuffix("_una_tiny") and left_out == []
    assert not vars(made["args"]).keys() & DEFAULTS.keys()
    assert torch.float64 not in {value.dtype for value in made["model"].values()}


def test_what_computes_something_else_is_refused(monkeypatch):
    fold, end = export_fairseq.fold_model, "out_proj.weight"
    moved = {
        "fold_model": lambda m: {n: 2 * x if n.endswith(end) else x for n, x in fold(m).items()}
    }
    monkeypatch.setattr(export_fairseq, "fold_model", moved["fold_model"])
    with pytest.raises(UsageError, match="x.pt computes something that fairseq without"):
        export_fairseq.convert(make("transformer_una_tiny"), Path("x.pt"))


REFUSED = {
    "--encoder-normaliser doubly": ("transformer_una_tiny", {"encoder_normaliser": "doubly"}),
    "--decoder-normaliser sink": ("transformer_lm_una_tiny", {"decoder_normaliser": "sink"}),
    "--head-gate input": ("transformer_una_tiny", {"head_gate": "input"}),
    "--cross-gaussian-heads 2": ("transformer_una_tiny", {"cross_gaussian_heads": "2"}),
    "--encoder-roles rare": ("roberta_una_tiny", {"encoder_roles": "rare"}),
    "--encoder-positions rotary": ("transformer_una_tiny", {"encoder_positions": "rotary"}),
    "--encoder-positions none and --": ("transformer_una_tiny", {"encoder_positions": "none"}),
    "--decoder-head-mixer talking": ("transformer_una_tiny", {"decoder_head_mixer": "talking"}),
    "--cross-layers 0": ("transformer_una_tiny", {"cross_layers": "0"}),
    "--cross-attention-heads 2": ("transformer_una_tiny", {"cross_attention_heads": 2}),
    "--norm rms": ("transformer_una_tiny", {"norm": "rms"}),
    "--ffn swiglu": ("transformer_una_tiny", {"ffn": "swiglu"}),
    "--qk-norm True": ("transformer_lm_una_tiny", {"qk_norm": True}),
    "--segments 2": ("roberta_una_tiny", {"segments": 2}),
    "--layer-norm-eps 1e-12": ("roberta_una_tiny", {"layer_norm_eps": 1e-12}),
    "--arch deberta_una_tiny": ("deberta_una_tiny", {}),
}


@pytest.mark.parametrize("architecture, options", REFUSED.values(), ids=REFUSED)
def test_every_other_mechanism_is_refused_by_its_option(architecture, options, request):
    state = make(architecture, **options)
    with pytest.raises(UsageError) as error:
        export_fairseq.convert(state, Path("x.pt"))
    assert str(error.value).startswith(f"x.pt has {request.node.callspec.id}")


def test_a_fine_tuned_encoder_has_no_head_for_masked_words(tmp_path):
    state = make("roberta_una_tiny")
    state["model"] = {n: x for n, x in state["model"].items() if "lm_head" not in n}
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(UsageError, match="has no encoder.lm_head.* pre-training or translation"):
        cli.main(["export-fairseq", str(tmp_path / "x.pt"), str(tmp_path / "out.pt")])
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


def test_parts_that_have_no_place_are_named(tmp_path, capsys):
    state = make("roberta_una_tiny")
    state["model"] |= {"pooler.weight": torch.ones(32, 32), "pooler.bias": torch.ones(32)}
    torch.save(state, tmp_path / "x.pt")
    command = ["export-fairseq", str(tmp_path / "x.pt"), str(tmp_path / "out.pt")]
    cli.main(command)
    assert "a roberta of fairseq, for --task masked_lm" in (said := capsys.readouterr().out)
    assert "left out: pooler.bias, pooler.weight\n" in said
    with pytest.raises(UsageError, match=r"out.pt exists already; .* or add --force"):
        cli.main(command)


OUTSIDE = """
import json, sys, torch
import ctranslate2
from ctranslate2.converters import FairseqConverter
from fairseq import checkpoint_utils
given = json.load(open(sys.argv[1]))
outputs = {}
for name, inputs in given["inputs"].items():
    models, args, task = checkpoint_utils.load_model_ensemble_and_task([f"{name}.pt"])
    with torch.no_grad():
        outputs[name] = models[0].eval()(*map(torch.tensor, inputs))[0].log_softmax(-1).tolist()
assert "fairseq_ext" not in sys.modules
for name in ("transformer", "transformer_lm"):
    FairseqConverter(f"{name}.pt", given["data"], unsafe_deserialization=True).convert(name)
translator = ctranslate2.Translator("transformer", inter_threads=1, intra_threads=1)
sources, targets = given["sources"], given["targets"]
options = {"beam_size": 5, "max_decoding_length": 20, "min_decoding_length": 0}
outputs["best"] = [r.hypotheses[0] for r in translator.translate_batch(sources, **options)]
outputs["pairs"] = [r.log_probs for r in translator.score_batch(sources, targets)]
generator = ctranslate2.Generator("transformer_lm", inter_threads=1, intra_threads=1)
outputs["texts"] = [r.log_probs for r in generator.score_batch([["</s>", *t] for t in targets])]
json.dump(outputs, open("outputs.json", "w"))
"""
"""Program that reads checkpoints with fairseq and CTranslate2 alone."""


ENDING = 2.8  # added to the score of the end of a sentence
LONGEST = 20  # as in OUTSIDE

SETUPS = {
    "transformer": ("translation", {"source_lang": "en", "target_lang": "de"}, CLOSING),
    "transformer_lm": ("language_modeling", {"tokens_per_sample": 64}, {"decoder_kv_heads": 2}),
    "roberta": ("masked_lm", {"tokens_per_sample": 64}, {"max_positions": 64}),
}
"""Family -> its task, options of the task, options of the model."""


def build_models(folder: Path, words: dict[str, list[Dictionary]]) -> dict:
    """Models of random parameters of each family; their checkpoints, ours and stock."""
    models = {}
    for family, (name, settings, options) in SETUPS.items():
        settings = {"_name": name, "data": str(folder), **settings}
        architecture, ending = f"{family}_una_tiny", ENDING * (family == "transformer")
        given = {**options, "ending": ending}
        model = build_model(architecture, *words[family], **given)
        state = checkpoint(architecture, model, settings, **options)
        torch.save(state, folder / "ours.pt")
        cli.main(["export-fairseq", str(folder / "ours.pt"), str(folder / f"{family}.pt")])
        models[family] = model
    return models


@pytest.fixture(scope="module")
def outside(tmp_path_factory) -> Namespace:
    """Models of random parameters, and what they compute in a process without us."""
    folder, pairs = tmp_path_factory.mktemp("outside"), corpus()["valid"][:8]
    words = Dictionary()
    rows = {
        side: [words.encode_line(pair[i], append_eos=True).tolist() for pair in pairs]
        for i, side in enumerate(("source", "target"))
    }
    words.save(str(folder / "dict.txt"))
    for language in ("en", "de"):
        shutil.copy(folder / "dict.txt", folder / f"dict.{language}.txt")
    masked = Dictionary.load(str(folder / "dict.txt"))
    masked.add_symbol("<mask>")
    models = build_models(folder, {**dict.fromkeys(SETUPS, [words]), "roberta": [masked]})
    source, target = rows["source"][0], rows["target"][0]
    inputs = {
        "transformer": [[source], [len(source)], [[words.eos(), *target[:-1]]]],
        "transformer_lm": [[[words.eos(), *target[:-1]]]],
        "roberta": [[source]],
    }
    texts = {f"{side}s": [[words[i] for i in r[:-1]] for r in rows[side]] for side in rows}
    given = {"inputs": inputs, "data": str(folder), **texts}
    (folder / "given.json").write_text(json.dumps(given))
    settings = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE, "given.json"],
        cwd=folder,
        env={n: x for n, x in os.environ.items() if n != "PYTHONPATH"} | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = json.loads((folder / "outputs.json").read_text())
    return Namespace(folder=folder, models=models, words=words, rows=rows, inputs=inputs, **outputs)


def log_probabilities(model, *inputs) -> torch.Tensor:
    with torch.no_grad():
        return model(*map(torch.tensor, inputs))[0].log_softmax(-1)


@pytest.mark.parametrize("family", export_fairseq.STOCK)
def test_stock_fairseq_without_us(outside, family):
    expected = log_probabilities(outside.models[family], *outside.inputs[family])
    found = torch.tensor(getattr(outside, family))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    state = load_checkpoint(str(outside.folder / f"{family}.pt"))  # nothing in it runs
    assert state["args"].data == str(outside.folder)


def test_ctranslate2_scores_tokens_alike(outside):
    words, model = outside.words, outside.models["transformer"]
    for source, target, found in zip(*outside.rows.values(), outside.pairs, strict=True):
        steps = [[words.eos(), *target[:-1]]]
        expected = log_probabilities(model, [source], [len(source)], steps)[0]
        expected = expected.gather(1, torch.tensor(target)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-5)
    for target, found in zip(outside.rows["target"], outside.texts, strict=True):
        steps = [[words.eos(), *target[:-2]]]
        expected = log_probabilities(outside.models["transformer_lm"], steps)[0]
        expected = expected.gather(1, torch.tensor(target[:-1])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-5)


def test_ctranslate2_finds_the_same_translations(outside):
    """Without a shortest length, which there makes the probabilities of a first token larger."""
    words, sources = outside.words, outside.rows["source"]
    options = {"beam_size": 5, "max_len_b": LONGEST - 1, "min_len": 0}
    search = SequenceGenerator([outside.models["transformer"]], words, **options)
    lengths = [len(source) for source in sources]
    tokens = collate_tokens([*map(torch.tensor, sources)], words.pad(), left_pad=True)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor(lengths)}}
    for [best, *_], found in zip(search.generate([], sample), outside.best, strict=True):
        if len(found) < LONGEST - 1:  # where there is no end, one is added here alone
            assert [words[i] for i in best["tokens"].tolist()[:-1]] == found
    assert len({len(best) for best in outside.best if len(best) < LONGEST - 1}) > 2
