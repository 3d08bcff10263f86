"""Folders with code for trust_remote_code: they compute what fairseq's model computes."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import slow_but_first
from code_folders import export, save_model
from commands import generate, read_hypotheses

from fairseq_ext.attention.positions import EMBEDDED
from fairseq_ext.attention.slots import SLOTS
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange.carried_files import collect, flatten_imports
from fairseq_ext.interchange.export_fairseq import FOLDED

NEAR = {"rtol": 0, "atol": 1e-5}
PAD, EOS = 1, 2
LENGTHS, WRITTEN = (9, 5, 1), (4, 8, 6)

APART = """
import sys, json, torch
from importlib.machinery import ModuleSpec
from types import ModuleType

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_ext", "hydra", "omegaconf"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Blocked())
audio = sys.modules["torchaudio"] = ModuleType("torchaudio")  # it may need libraries of a GPU
audio.__spec__, audio.__version__ = ModuleSpec("torchaudio", None), "0"
import transformers

cases = torch.load("cases.pt")
for folder, (kind, given, expected, real) in cases.items():
    model = getattr(transformers, kind).from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert tokenizer("w3 w7")["input_ids"], folder
    with torch.no_grad():
        found = model(**given).logits[real]
        torch.testing.assert_close(found, expected[real], rtol=0, atol=1e-5)
    model.train()(**given)[0].square().sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "weight" in n)
    model.save_pretrained(folder + "_again")
assert not {"fairseq", "fairseq_ext"} & set(sys.modules)
print("done")
"""


def texts(lengths, left=False):
    """Tokens [B, S], of which the real ones do not depend on the side of padding, and masks."""
    real = torch.zeros(len(lengths), max(lengths), dtype=torch.bool)
    for row, length in zip(real, lengths, strict=True):
        row[-length if left else 0 : None if left else length] = True
    tokens = torch.full(real.shape, PAD)
    generator = torch.Generator().manual_seed(1)
    tokens[real] = torch.randint(4, 40, (sum(lengths),), generator=generator)
    return tokens, real


def load(library, kind, folder):
    loaded = getattr(library, kind).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    assert not any(loaded[1].values())
    return loaded[0].eval()


def check_generation(model, tokens, real):
    given = {"num_beams": 3, "max_new_tokens": 4, "do_sample": False}
    cached, whole = (
        model.generate(tokens, attention_mask=real.long(), use_cache=use, **given)
        for use in (True, False)
    )
    assert cached.tolist() == whole.tolist()


def list_options(side):
    """Options of each part of each slot on a side."""
    for slot in SLOTS.values():
        for name in slot.parts.parts():
            part = slot.parts.parts()[name].default()
            across = getattr(part, "across_queries", False) or getattr(part, "encoder_only", False)
            plain = name == slot.off or name in EMBEDDED
            folded = slot.name == "head_gate" and name in FOLDED
            if not plain and not folded and not (side == "decoder" and across):
                yield {slot.name_option(side): name}


TODAY = {"norm": "rms", "ffn": "swiglu", "no_biases": True, "qk_norm": True}
TRANSLATION = [
    {
        "encoder_normaliser": "hybrid",
        "decoder_normaliser": "sink",
        "encoder_positions": "t5",
        "cross_head_mixer": "talking",
        "head_gate": "input",
        "decoder_positions": "rotary",
        "head_gate_sites": "encoder,cross",
        "share_all_embeddings": True,
    },
    {"encoder_gaussian_heads": "all", "decoder_gaussian_heads": "all", "cross_layers": "last"}
    | {"cross_gaussian_heads": "all", "encoder_normalize_before": True},
    {**TODAY, "decoder_kv_heads": 1, "cross_kv_heads": 2, "encoder_heads_left": "1/2"},
    {"encoder_layers_to_keep": "1", "encoder_layers": 1, "encoder_head_mixer": "differential"},
]


@torch.no_grad()
@pytest.mark.parametrize("options", slow_but_first([*TRANSLATION, *list_options("encoder")]))
def test_translation(library, tmp_path, options):
    """Logits with padding on both sides, and beam search with a cache and without."""
    ours, checkpoint = save_model("transformer_una_tiny", tmp_path / "data", **options)
    export(checkpoint, tmp_path / "out")
    model = load(library, "AutoModelForSeq2SeqLM", tmp_path / "out")
    written, existing = texts(WRITTEN)
    for left in (True, False):
        tokens, real = texts(LENGTHS, left)
        expected, _ = ours(tokens, None, written)
        found = model(tokens, real.long(), decoder_input_ids=written).logits
        torch.testing.assert_close(found[existing], expected[existing], **NEAR)
    check_generation(model, tokens, real)
    if options.get("share_all_embeddings"):
        assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight


@torch.no_grad()
@pytest.mark.parametrize("options", slow_but_first([TODAY, *list_options("decoder")]))
def test_language_models(library, tmp_path, options):
    shared = {"share_decoder_input_output_embed": True, "decoder_normaliser": "entmax"}
    options = shared | options
    ours, checkpoint = save_model("transformer_lm_una_tiny", tmp_path / "data", **options)
    export(checkpoint, tmp_path / "out")
    model = load(library, "AutoModelForCausalLM", tmp_path / "out")
    tokens, real = texts(LENGTHS)
    expected = ours(tokens)[0][real]
    for left in (True, False):
        tokens, real = texts(LENGTHS, left)
        found = model(tokens, attention_mask=real.long(), labels=tokens)
        torch.testing.assert_close(found.logits[real], expected, **NEAR)
    check_generation(model, *texts(LENGTHS, left=True))


ENCODERS = [
    ("roberta_hna_tiny", {"segments": 2, "encoder_head_mixer": "talking"}),
    ("deberta_dna_tiny", {}),
    ("roberta_una_tiny", {**TODAY, "encoder_positions": "alibi"}),
]


@torch.no_grad()
@pytest.mark.parametrize(("architecture", "options"), slow_but_first(ENCODERS))
def test_encoders(library, tmp_path, architecture, options):
    """Logits of the head, states without it, maps, and the numbers that the tokeniser gives."""
    ours, checkpoint = save_model(architecture, tmp_path / "data", **options)
    export(checkpoint, tmp_path / "out")
    model = load(library, "AutoModelForMaskedLM", tmp_path / "out")
    encoder = library.AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    tokenizer = library.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert tokenizer("w3 w7")["input_ids"][1:-1] == [4 + 3, 4 + 7]
    for left in (True, False):
        tokens, real = texts(LENGTHS, left)
        segments = torch.arange(tokens.size(1)).expand_as(tokens) % 2
        both = {"token_type_ids": segments} if "segments" in options else {}
        expected, extra = ours(tokens, **({"segments": segments} if both else {}))
        found = model(tokens, attention_mask=real.long(), output_attentions=True, **both)
        torch.testing.assert_close(found.logits[real], expected[real], **NEAR)
        states = encoder(tokens, attention_mask=real.long(), **both).last_hidden_state
        torch.testing.assert_close(states[real], extra["features"][real], **NEAR)
        assert [m.size(1) for m in found.attentions] == [4] * 2 or "heads" in options


@torch.no_grad()
@pytest.mark.slow
def test_what_fairseq_generates(library, hybrid_run, data_bin, tmp_path):
    """A trained checkpoint writes the same by greedy search, with the score of every token."""
    checkpoint = hybrid_run / "checkpoint_last.pt"
    config = export(checkpoint, tmp_path / "out")
    assert [len(config[f"{side}_side"]["numbers"]) for side in ("encoder", "decoder")] == [4, 3]
    model = load(library, "AutoModelForSeq2SeqLM", tmp_path / "out")
    read = library.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    said = generate(data_bin, checkpoint, "--beam", 1)
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", said, re.M))
    hypotheses = [(sources[str(n)], *row) for n, row in read_hypotheses(said).items()][:40]
    texts, _, written, scores = zip(*hypotheses, strict=True)
    read.padding_side = "left"
    source = read(list(texts), padding=True, return_tensors="pt", return_token_type_ids=False)
    found = model.generate(**source, num_beams=1, max_new_tokens=13)
    target = [read.convert_tokens_to_ids(text.split()) + [EOS] for text in written]
    assert [row[1 : len(ids)].tolist() for row, ids in zip(found, target, strict=True)] == [
        ids[:-1] for ids in target
    ]
    for n, (ids, row) in enumerate(zip(target, scores, strict=True)):
        given = torch.tensor([[EOS, *ids[:-1]]])
        one = {name: value[n : n + 1] for name, value in source.items()}
        lprobs = model(**one, decoder_input_ids=given).logits[0].log_softmax(-1) / math.log(2)
        scored = lprobs[range(len(ids)), ids]
        torch.testing.assert_close(scored, torch.tensor(row), rtol=0, atol=2e-4)


@pytest.mark.slow
def test_without_fairseq(tmp_path):
    """In a process that has torch and transformers alone: outputs, gradients, saved again."""
    cases, tokens, real = {}, *texts(LENGTHS)
    source = {"input_ids": tokens, "attention_mask": real.long()}
    written = {"decoder_input_ids": texts(WRITTEN)[0]}
    for kind, architecture, options, more in [
        ("AutoModelForMaskedLM", "roberta_hna_tiny", {}, {}),
        ("AutoModelForSeq2SeqLM", "transformer_una_tiny", TRANSLATION[0], written),
        ("AutoModelForCausalLM", "transformer_lm_sink_tiny", {}, {}),
    ]:
        ours, checkpoint = save_model(architecture, tmp_path / kind, **options)
        out = tmp_path / f"{kind}_out"
        export(checkpoint, out)
        given = (tokens, None, *more.values()) if more else (tokens,)
        with torch.no_grad():
            expected = ours(*given)[0]
        existing = texts(WRITTEN)[1] if more else real
        cases[str(out)] = kind, source | more, expected, existing
        files = {path.name for path in out.iterdir()}
        assert {
            "LICENSE",
            "tokenizer.json",
            "modeling_fairseq_ext.py",
            "attention_module.py",
        } <= files
        assert ("mechanisms_doubly.py" in files) == (architecture != "transformer_lm_sink_tiny")
        assert not any("fairseq_ext." in line for p in out.glob("*.py") for line in imports(p))
    torch.save(cases, tmp_path / "cases.pt")
    environment = {n: x for n, x in os.environ.items() if n != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", APART], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]


def imports(path: Path) -> list[str]:
    lines = path.read_text("utf-8").splitlines()
    return [line for line in lines if line.lstrip().startswith(("from ", "import "))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_roles": "relative,none"}, "has --encoder-roles relative,none, which folders"),
        ({"share_encoder_decoder_layers": True}, "has --share-encoder-decoder-layers True"),
    ],
)
def test_what_is_refused(tmp_path, options, message):
    architecture = "transformer_hna_tiny"
    _, checkpoint = save_model(architecture, tmp_path / "data", **options)
    with pytest.raises(UsageError, match=message):
        export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_dictionaries_that_do_not_belong(tmp_path):
    _, checkpoint = save_model("transformer_lm_sink_tiny", tmp_path / "data")
    (tmp_path / "data" / "dict.txt").write_text("a 1\n", "utf-8")
    with pytest.raises(UsageError, match="dict.txt has 5 symbols, and the model"):
        export(checkpoint, tmp_path / "out")


def test_a_dictionary_of_the_target(tmp_path):
    _, checkpoint = save_model("transformer_hna_tiny", tmp_path / "data")
    path = tmp_path / "data" / "dict.en.txt"
    path.write_text(path.read_text("utf-8").replace("w3 ", "drei "), "utf-8")
    export(checkpoint, tmp_path / "out")
    both = [
        json.loads(p.read_text("utf-8")) for p in sorted((tmp_path / "out").rglob("tokenizer.json"))
    ]
    assert ["drei" in each["model"]["vocab"] for each in both] == [True, False]


def test_files_that_are_carried():
    """All that a file imports here, in functions too, and nothing else; imports become flat."""
    files = collect(["fairseq_ext.mechanisms.doubly"], {})
    assert "fairseq_ext.mechanisms.kernels.doubly_triton_jit" in files
    assert "fairseq_ext.mechanisms.entmax" not in files
    assert all(name.split(".")[1] in ("attention", "mechanisms", "errors") for name in files)
    text = (
        "from fairseq_ext.attention import normalisers\n"
        "from fairseq_ext.attention.context import (\n    Inputs as I,\n    HeadCall,\n)\n"
        "def f():\n    from fairseq_ext.mechanisms.kernels import sink_sdpa as s\n"
    )
    assert flatten_imports(text) == (
        "from . import attention_normalisers as normalisers\n"
        "from .attention_context import Inputs as I\nfrom .attention_context import HeadCall\n"
        "def f():\n    from . import mechanisms_kernels_sink_sdpa as s\n"
    )
