"""DeBERTa of Hugging Face in fairseq and back, against the implementation in transformers."""

import json
import struct
from pathlib import Path

import pytest
import torch
from cases import slow_but_first
from hf_encoders import (
    RELATIVE,
    TEXTS,
    V1,
    V3,
    bring_back,
    changed,
    check_ids,
    check_states,
    differing,
    load,
    make_deberta,
    refused,
    saved,
    tensors,
    write_sentence_pieces,
)
from safetensors.torch import load_file
from torch import nn

from fairseq_ext.cli import main
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.interchange.sentence_pieces import read_sentence_pieces

NEAR = {"rtol": 0, "atol": 1e-5}
CASES = {
    "v1": ("Deberta", V1),
    "v2": ("DebertaV2", {**V3, "conv_kernel_size": 3, "conv_act": "gelu"}),
    "v3": ("DebertaV2", V3),
    "v1, the other head, few distances, segments": (
        "Deberta",
        {**V1, "legacy": False, "max_relative_positions": 6, "type_vocab_size": 2},
    ),
    "v1, one term, narrow embeddings": (
        "Deberta",
        {**RELATIVE, "pos_att_type": "c2p", "embedding_size": 20},
    ),
    "v2, own projections, no buckets": (
        "DebertaV2",
        {**V3, "share_att_key": False, "position_buckets": -1, "norm_rel_ebd": "none"},
    ),
    "v2, narrow embeddings, relu": (
        "DebertaV2",
        {**V3, "embedding_size": 20, "hidden_act": "relu", "conv_kernel_size": 5},
    ),
    "v3, the other head, untied": ("DebertaV2", {**V3, "legacy": False}),
    "v3, one term, untied": (
        "DebertaV2",
        {**V3, "pos_att_type": "p2c", "tie_word_embeddings": False},
    ),
}


@pytest.fixture(scope="module")
def make(hugging_face, tmp_path_factory):
    """Folders of small encoders with random parameters, by kind and further settings."""

    def made(kind: str, settings: dict) -> Path:
        return make_deberta(hugging_face, tmp_path_factory.mktemp(kind), kind, settings)

    return made


@pytest.fixture(scope="module", params=slow_but_first(CASES))
def case(request, make, tmp_path_factory):
    """An encoder, imported, exported and imported again."""
    return bring_back(make(*CASES[request.param]), tmp_path_factory.mktemp)


@pytest.mark.parametrize("theirs", ["given", "back"])
def test_tokens_states_and_logits_are_those_of_transformers(case, theirs, hugging_face):
    check_ids(hugging_face, getattr(case, theirs), Vocabulary.load(case.ours).tokenizer)
    folders = getattr(case, theirs), case.ours
    check_states(hugging_face, *folders, TEXTS, head=True, near=NEAR)


def test_there_and_back_is_the_same(case, tmp_path):
    """The head for masked words has its usual name then."""
    (kind, given), (new_kind, back) = saved(case.given), saved(case.back)
    assert kind == new_kind
    names = {name for name in differing(given, back) if "predictions" not in name}
    assert not names
    main(["import-hf", str(case.back), str(tmp_path / "again")])
    assert differing(tensors(case.ours), tensors(tmp_path / "again")) == []


@pytest.fixture(scope="module")
def v3(make):
    return make(*CASES["v3"])


def test_an_encoder_without_a_head_loads_by_fairseq(v3, hugging_face, tmp_path):
    """A DebertaModel, strictly, for features."""
    names = [name for name in load_file(v3 / "model.safetensors") if "predictions" in name]
    folder = changed(v3, tmp_path / "given", **dict.fromkeys(names))
    main(["import-hf", str(folder), str(tmp_path / "ours")])
    assert load(tmp_path / "ours", strict=True).encoder.lm_head is None
    check_states(hugging_face, v3, tmp_path / "ours", TEXTS, head=False, near=NEAR)


@pytest.fixture(scope="module")
def v1(make):
    return make(*CASES["v1"])


def ours(folder: Path, path: Path) -> list:
    main(["import-hf", str(folder), str(path)])
    return Vocabulary.load(path).tokenizer.encode_batch(TEXTS)


def without_tokenizer(folder: Path, copy: Path) -> dict:
    """A copy without tokenizer.json, and what that had."""
    changed(folder, copy)
    file = copy / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    file.unlink()
    return content


def test_gpt2s_files(v1, tmp_path):
    """vocab.json and merges.txt, with BERT's special tokens."""
    model = without_tokenizer(v1, tmp_path / "old")["model"]
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (tmp_path / "old" / "merges.txt").write_text("\n".join(merges) + "\n", "utf-8")
    (tmp_path / "old" / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    pair = [ours(*each) for each in ((v1, tmp_path / "1"), (tmp_path / "old", tmp_path / "2"))]
    assert [text.ids for text in pair[0]] == [text.ids for text in pair[1]]
    tokenizer = Vocabulary.load(tmp_path / "2").tokenizer
    assert tokenizer.encode("a", "b").tokens == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]


def test_sentence_pieces_files(v3, tmp_path):
    """spm.model, to which [MASK] is added."""
    pieces = without_tokenizer(v3, tmp_path / "old")["model"]["vocab"]
    write_sentence_pieces(tmp_path / "old" / "spm.model", pieces[:-1])
    pair = [ours(*each) for each in ((v3, tmp_path / "1"), (tmp_path / "old", tmp_path / "2"))]
    assert [text.ids for text in pair[0]] == [text.ids for text in pair[1]]
    assert any("▁the" in text.tokens for text in pair[0])
    main(["export-hf", str(tmp_path / "2" / "model.pt"), str(tmp_path / "back")])
    assert (tmp_path / "back" / "tokenizer.json").exists()


def test_sentence_pieces_of_small_letters_and_punctuation(tmp_path):
    pieces = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    write_sentence_pieces(tmp_path / "spm.model", [*pieces, ("▁a", -1.0), ("▁", -2.0), (".", -3.0)])
    settings = {"do_lower_case": True, "split_by_punct": True}
    tokenizer = read_sentence_pieces(tmp_path / "spm.model", settings)
    assert tokenizer.encode(" A  a. x").tokens == "[CLS] ▁a ▁a ▁ . ▁ x [SEP]".split()
    assert tokenizer.encode("x").ids[2] == 3


def map_character(old: str, new: str) -> bytes:
    """A table of one ASCII character, as SentencePiece writes it: a trie, then what is put in."""
    units = [0] * 512
    units[0] = 256 << 10  # where the children of the root are
    units[256 ^ ord(old)] = ord(old) | 1 << 8 | 1 << 10  # a leaf, whose value is in its neighbour
    trie = struct.pack("<512I", *units)  # the value is 0: the text is the first one
    return struct.pack("<I", len(trie)) + trie + new.encode() + b"\0"


def test_sentence_pieces_with_a_table_of_characters(tmp_path):
    pieces = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    pieces += [("▁a", -1.0), ("▁", -2.0), ("...", -3.0)]
    write_sentence_pieces(tmp_path / "spm.model", pieces, characters=map_character("~", "..."))
    tokenizer = read_sentence_pieces(tmp_path / "spm.model", {})
    assert tokenizer.encode("a ~").tokens == "[CLS] ▁a ▁ ... [SEP]".split()


def test_damaged_sentence_pieces(v3, tmp_path):
    pieces = without_tokenizer(v3, tmp_path / "old")["model"]["vocab"]
    file, out = tmp_path / "old" / "spm.model", tmp_path / "out"
    write_sentence_pieces(file, pieces, model_type=2)
    refused(["import-hf", tmp_path / "old", out], "is no unigram model of SentencePiece")
    write_sentence_pieces(file, pieces[3:])
    refused(["import-hf", tmp_path / "old", out], "has no [CLS] and no [SEP] and no [PAD]")
    write_sentence_pieces(file, pieces)
    whole = file.read_bytes()
    for content in (whole[:-3], b"\x0b" + whole, b"\xff" * 20, b"\x08"):
        file.write_bytes(content)
        refused(["import-hf", tmp_path / "old", out], "spm.model cannot be read (")


REFUSED = {
    "absolute positions": ({"position_biased_input": True}, {}, "position_biased_input True"),
    "no relative ones": ({"relative_attention": False}, {}, "relative_attention False, which our"),
    "another term": ({"pos_att_type": "p2c|p2p"}, {}, "pos_att_type p2c|p2p; accepted: p2c, c2p,"),
    "no term": ({"pos_att_type": []}, {}, "pos_att_type []; accepted"),
    "terms that are no words": ({"pos_att_type": {"a": 1}}, {}, "pos_att_type {'a': 1}; accepted"),
    "talking heads": ({"talking_head": True}, {}, "talking_head True"),
    "groups": ({"conv_groups": 2}, {}, "conv_groups 2"),
    "an even kernel": ({"conv_kernel_size": 2}, {}, "conv_kernel_size 2, which our models lack"),
    "a normalisation": ({"norm_rel_ebd": "batch"}, {}, "norm_rel_ebd batch"),
    "one segment": ({"type_vocab_size": 1}, {}, "type_vocab_size 1, which our models lack"),
    "odd buckets": ({"position_buckets": 5}, {}, "position_buckets 5, which our models lack"),
    "buckets in words": ({"position_buckets": "x"}, {}, "position_buckets x, which our models"),
    "other buckets": ({"position_buckets": 12}, {}, "numbers [24, 32]"),
    "wide heads": ({"attention_head_size": 64}, {}, "attention_head_size 64; accepted: 8, hidden"),
    "an activation": ({"hidden_act": "silu"}, {}, "hidden_act silu"),
    "a parameter less": ({}, {"deberta.encoder.rel_embeddings.weight": None}, "is missing, where"),
    "no norm": ({}, {"deberta.encoder.LayerNorm.weight": None}, "LayerNorm.weight is missing"),
    "a parameter more": ({}, {"deberta.encoder.conv.conv.bias": torch.ones(32)}, "without a place"),
    "too few rows": ({"vocab_size": 20}, {}, "numbers [20, 32]"),
}


@pytest.mark.parametrize(("settings", "parameters", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_and_nothing_is_left(settings, parameters, words, v3, tmp_path):
    folder = changed(v3, tmp_path / "given", settings, **parameters)
    refused(["import-hf", folder, tmp_path / "out"], words)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_a_first_version_that_is_incomplete(v1, tmp_path):
    names = [f"deberta.encoder.layer.1.attention.self.{n}" for n in ("in_proj.weight", "q_bias")]
    for name, value in [(names[0], None), (names[0], torch.ones(90, 32)), (names[1], None)]:
        folder = changed(v1, tmp_path / f"{len([*tmp_path.iterdir()])}", **{name: value})
        refused(["import-hf", folder, tmp_path / "out"], "layer.1.attention.self.query_proj.")


def test_what_only_pre_training_reads_is_left_out(v3, tmp_path, capsys):
    more = {
        "mask_predictions.dense.weight": torch.ones(2),
        "deberta.embeddings.position_embeddings.weight": torch.ones(90, 32),
    }
    main(["import-hf", str(changed(v3, tmp_path / "given", **more)), str(tmp_path / "out")])
    said = capsys.readouterr().out.split("left out: ")[1]
    assert "mask_predictions.dense.weight" in said
    assert "embeddings.position_embeddings.weight" in said


def test_the_tokeniser_of_another_encoder(v1, v3, tmp_path):
    copy = changed(v3, tmp_path / "given")
    tokenizer = (v1 / "tokenizer.json").read_text("utf-8")
    (copy / "tokenizer.json").write_text(tokenizer, "utf-8")
    refused(["import-hf", copy, tmp_path / "out"], "the tokeniser has ids up to")


def test_a_first_version_with_biases_of_keys_becomes_a_later_one(v1, hugging_face, tmp_path):
    """States and logits stay those of the checkpoint, as after fine-tuning."""
    main(["import-hf", str(v1), str(tmp_path / "ours")])
    file = tmp_path / "ours" / "model.pt"
    state = torch.load(file, weights_only=True)
    for name, value in state["model"].items():
        if name.endswith(("k_proj.bias", "relative.key.bias")):
            nn.init.normal_(value, std=0.3)
    torch.save(state, file)
    main(["export-hf", str(file), str(tmp_path / "back")])
    assert saved(tmp_path / "back")[0] == "deberta-v2"
    folders = tmp_path / "back", tmp_path / "ours"
    check_states(hugging_face, *folders, TEXTS, head=True, near=NEAR)


EXPORTS = {
    "attention": (
        {"encoder_normaliser": "doubly", "enhanced_mask_decoder": True},
        "--enhanced-mask-decoder True, which folders with code cannot do",
    ),
    "a convolution": (
        {"encoder_normaliser": "sink", "encoder_conv_kernel": 5},
        "--encoder-conv-kernel 5, which folders with code cannot do",
    ),
    "buckets": ({"disentangled_buckets": 10}, "embedding.weight has the shape [16, 32]"),
    "projections": ({"disentangled_own_projections": True}, "missing or without a place"),
    "an activation": ({"encoder_conv_activation_fn": "linear"}, "activation-fn linear, which"),
}


@pytest.mark.parametrize(("options", "words"), EXPORTS.values(), ids=EXPORTS)
def test_what_cannot_be_exported(options, words, v3, tmp_path):
    main(["import-hf", str(v3), str(tmp_path / "ours")])
    state = torch.load(tmp_path / "ours" / "model.pt", weights_only=True)
    state["cfg"]["model"] |= options
    torch.save(state, tmp_path / "ours" / "model.pt")
    refused(["export-hf", tmp_path / "ours" / "model.pt", tmp_path / "out"], words)


@torch.no_grad()
def test_the_enhanced_mask_decoder_is_that_of_the_authors(v3, hugging_face, tmp_path, capsys):
    """The last layer twice more, whose queries begin with absolute positions: v3's last layer in
    transformers takes queries too."""
    main(["import-hf", str(v3), str(tmp_path / "ours")])
    file = tmp_path / "ours" / "model.pt"
    state = torch.load(file, weights_only=True)
    state["cfg"]["model"]["enhanced_mask_decoder"] = True
    positions = 0.5 * torch.randn(90, 32)
    state["model"]["encoder.mask_positions.weight"] = positions
    torch.save(state, file)
    model, vocabulary = load(tmp_path / "ours"), Vocabulary.load(tmp_path / "ours")
    rows = [torch.tensor(text.ids) for text in vocabulary.tokenizer.encode_batch(TEXTS)]
    reference = hugging_face.AutoModelForMaskedLM.from_pretrained(v3).eval()
    pad = reference.config.pad_token_id
    batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    real, base = batch != pad, reference.deberta
    states = base(batch, attention_mask=real.long(), output_hidden_states=True).hidden_states
    queries = states[-2] + positions[: batch.size(1)]
    shared = {
        "relative_pos": base.encoder.get_rel_pos(states[0]),
        "rel_embeddings": base.encoder.get_rel_embedding(),
    }
    mask = base.encoder.get_attention_mask(real.long())
    for _ in range(2):
        layer = base.encoder.layer[-1]
        queries, _ = layer(states[-2], mask, query_states=queries, **shared)
    symbols = torch.from_numpy(vocabulary.numbers)
    logits, extra = model(symbols[batch])
    expected = reference.cls(queries)[..., : len(symbols)]
    torch.testing.assert_close(logits[..., symbols][real], expected[real], **NEAR)
    torch.testing.assert_close(extra["features"][real], states[-1][real], **NEAR)
    capsys.readouterr()
    main(["export-hf", str(file), str(tmp_path / "back")])
    said = capsys.readouterr().out
    assert "left out: encoder.mask_positions.weight" in said and "no absolute positions" in said


def test_a_pooler_is_never_kept(v3, tmp_path):
    command = ["import-hf", v3, tmp_path / "out", "--pooler", "pretrained"]
    refused(command, "is a DeBERTa, whose pooler is never kept; leave --pooler out")
