"""DeBERTa of Hugging Face in fairseq and back, against the implementation in transformers."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import slow_but_first
from hf_encoders import (
    SMALL,
    TEXTS,
    check_ids,
    check_states,
    differing,
    saved,
    tensors,
)
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.trainers import BpeTrainer, UnigramTrainer
from torch import nn

from fairseq_ext.cli import main
from fairseq_ext.data.vocabulary import Vocabulary

NEAR = {"rtol": 0, "atol": 1e-5}
RELATIVE = {"relative_attention": True, "position_biased_input": False}
V1 = {**RELATIVE, "pos_att_type": "c2p|p2c"}
V3 = {
    **RELATIVE,
    "pos_att_type": "p2c|c2p",
    "position_buckets": 8,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
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
        folder = tmp_path_factory.mktemp(kind)
        tokenizer = {"Deberta": byte_level, "DebertaV2": unigram}[kind](hugging_face)
        tokenizer.save_pretrained(folder)
        options = {"vocab_size": len(tokenizer) + 3, "pad_token_id": tokenizer.pad_token_id}
        config = getattr(hugging_face, f"{kind}Config")(**SMALL, **options, **settings)
        model = getattr(hugging_face, f"{kind}ForMaskedLM")(config)
        torch.manual_seed(1)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.15)
        model.save_pretrained(folder)
        return folder

    return made


def unigram(transformers):
    """SentencePiece's, with [MASK] at the end."""
    learned = Tokenizer(Unigram())
    learned.pre_tokenizer = Metaspace()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    trainer = UnigramTrainer(
        vocab_size=200, special_tokens=special, unk_token="[UNK]", show_progress=False
    )
    learned.train_from_iterator(TEXTS, trainer)
    pieces = json.loads(learned.to_str())["model"]["vocab"]
    pieces = [*map(tuple, pieces), ("[MASK]", 0.0)]
    return transformers.DebertaV2Tokenizer(vocab=pieces, unk_id=3)


def byte_level(transformers):
    """GPT-2's, with BERT's special tokens first and [MASK] at the end."""
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = ByteLevel(add_prefix_space=False)
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    learned.train_from_iterator(
        TEXTS,
        BpeTrainer(
            vocab_size=300,
            special_tokens=special,
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    model = json.loads(learned.to_str())["model"]
    vocabulary = model["vocab"] | {"[MASK]": len(model["vocab"])}
    return transformers.DebertaTokenizer(vocabulary, [tuple(pair) for pair in model["merges"]])


@pytest.fixture(scope="module", params=slow_but_first(CASES))
def case(request, make, tmp_path_factory):
    """An encoder, imported, exported and imported again."""
    folders = SimpleNamespace(given=make(*CASES[request.param]))
    for verb, before, after in [("import", "given", "ours"), ("export", "ours", "back")]:
        folder = getattr(folders, before)
        folder = folder / "model.pt" if verb == "export" else folder
        setattr(folders, after, tmp_path_factory.mktemp("hf") / "out")
        main([f"{verb}-hf", str(folder), str(getattr(folders, after))])
    return folders


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
