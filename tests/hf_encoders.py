"""Small encoders of Hugging Face, and comparisons with the implementation in transformers."""

import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from corpora import builtin
from fairseq import checkpoint_utils
from safetensors.torch import load_file, save_file
from sentencepiece import sentencepiece_model_pb2 as formats
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.trainers import BpeTrainer, UnigramTrainer
from torch import Tensor, nn

from fairseq_ext.cli import main
from fairseq_ext.data.tokenisers import OF_BERT, SYMBOLS
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import hf_format
from fairseq_ext.models.pretrained import FIRST_POSITION

NEAR = {"rtol": 0, "atol": 1e-4}

TEXTS = [english for english, _ in builtin()["valid"][:12]] + ["Ça va, Mädchen?", "hm", "日本 ok"]

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 90,
}


def word_pieces(folder: Path) -> int:
    """vocab.txt, with special tokens amid the others; its size."""
    learned = BertWordPieceTokenizer()
    learned.train_from_iterator(TEXTS, vocab_size=200, show_progress=False)
    others = sorted(learned.get_vocab().keys() - {*OF_BERT})
    tokens = [*others[:40], *OF_BERT, *others[40:]]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), "utf-8")
    return len(tokens)


def byte_level(folder: Path) -> int:
    """vocab.json and merges.txt, with <mask> at the end; their size."""
    learned = ByteLevelBPETokenizer()
    special = list(SYMBOLS)[:4]
    learned.train_from_iterator(TEXTS, vocab_size=300, show_progress=False, special_tokens=special)
    learned.save_model(str(folder))
    tokens = json.loads((folder / "vocab.json").read_text("utf-8"))
    tokens["<mask>"] = len(tokens)
    (folder / "vocab.json").write_text(json.dumps(tokens), "utf-8")
    return len(tokens)


def load(folder: Path, strict: bool = True) -> nn.Module:
    models, _ = checkpoint_utils.load_model_ensemble([str(folder / "model.pt")], strict=strict)
    return models[0].eval()


def tensors(folder: Path) -> dict[str, Tensor]:
    """All that is used: the first two rows of positions are not."""
    found = torch.load(folder / "model.pt", weights_only=True)["model"]
    if hf_format.POSITIONS not in found:
        return found
    return found | {hf_format.POSITIONS: found[hf_format.POSITIONS][FIRST_POSITION:]}


def ids(tokenizer: Tokenizer, texts: list) -> list[list[int]]:
    return [found.ids for found in tokenizer.encode_batch(texts)]


def check_ids(hugging_face, theirs: Path, ours: Tokenizer) -> None:
    """Compare the ids of texts and of pairs with those of transformers."""
    tokenizer = hugging_face.AutoTokenizer.from_pretrained(theirs)
    assert tokenizer(TEXTS)["input_ids"] == ids(ours, TEXTS)
    other = TEXTS[::-1]
    assert tokenizer(TEXTS, other)["input_ids"] == ids(ours, [*zip(TEXTS, other, strict=True)])


@torch.no_grad()
def check_states(
    hugging_face, theirs: Path, ours: Path, texts: list[str], head: bool, near: dict = NEAR
) -> None:
    """Hidden states and logits of a padded batch."""
    kind = "AutoModelForMaskedLM" if head else "AutoModel"
    reference = getattr(hugging_face, kind).from_pretrained(theirs).eval()
    model, vocabulary = load(ours, strict=head), Vocabulary.load(ours)
    symbols = vocabulary.numbers
    rows = [torch.tensor(row) for row in ids(vocabulary.tokenizer, texts)]
    pad = int(np.flatnonzero(symbols == vocabulary.dictionary.pad())[0])
    batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    real = batch != pad
    assert not real.all()
    segments = torch.arange(batch.size(1)).expand_as(batch) % max(
        1, reference.config.type_vocab_size
    )
    expected = reference(
        batch, attention_mask=real.long(), token_type_ids=segments, output_hidden_states=True
    )
    tokens = torch.from_numpy(symbols[batch])
    logits, extra = model(tokens, segments=segments, features_only=not head)
    features = extra["features"][real]
    torch.testing.assert_close(features, expected.hidden_states[-1][real], **near)
    if head:
        logits = logits[..., torch.from_numpy(symbols)][real]
        torch.testing.assert_close(logits, expected.logits[real][:, : len(symbols)], **near)


def saved(folder: Path) -> tuple[str, dict[str, Tensor]]:
    """The kind and the parameters, without the bias that transformers does not use."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    found = load_file(folder / "model.safetensors")
    found = {
        name.removeprefix(f"{kind.removesuffix('-v2')}."): value for name, value in found.items()
    }
    unused = {name.replace("decoder.", "") for name in found if name.endswith("decoder.bias")}
    return kind, {name: value for name, value in found.items() if name not in unused}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    alike = {name for name in one.keys() & other.keys() if torch.equal(one[name], other[name])}
    return sorted((one.keys() | other.keys()) - alike)


def scratch(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def changed(folder: Path, copy: Path, settings: dict | None = None, **parameters) -> Path:
    """A copy with other settings in config.json, and parameters more or (None) less."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text()) | (settings or {})
    (copy / "config.json").write_text(json.dumps(config))
    if parameters:
        found = load_file(copy / "model.safetensors") | parameters
        save_file({n: v for n, v in found.items() if v is not None}, copy / "model.safetensors")
    return copy


def refused(command: list, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        main(list(map(str, command)))
    assert words in str(caught.value) and "\n" not in str(caught.value)


RELATIVE = {"relative_attention": True, "position_biased_input": False}
V1 = {**RELATIVE, "pos_att_type": "c2p|p2c"}
V3 = {
    **RELATIVE,
    "pos_att_type": "p2c|c2p",
    "position_buckets": 8,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}


def make_deberta(
    transformers, folder: Path, kind: str, settings: dict, texts: list[str] = TEXTS
) -> Path:
    """Fill a folder with a small encoder of random parameters, and a tokeniser of texts."""
    build = {"Deberta": byte_level_of_deberta, "DebertaV2": unigram}[kind]
    tokenizer = build(transformers, texts)
    tokenizer.save_pretrained(folder)
    options = {"vocab_size": len(tokenizer) + 3, "pad_token_id": tokenizer.pad_token_id}
    config = getattr(transformers, f"{kind}Config")(**SMALL, **options, **settings)
    model = getattr(transformers, f"{kind}ForMaskedLM")(config)
    return save_random(model, folder, 0.15)


def save_random(model: nn.Module, folder: Path, deviation: float) -> Path:
    """Save a model of transformers with random parameters."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=deviation)
    model.save_pretrained(folder)
    return folder


def bring_back(given: Path, make_folder) -> SimpleNamespace:
    """Import an encoder, export it, and return the folders: given, ours and back."""
    folders = SimpleNamespace(given=given, ours=make_folder("hf") / "out")
    folders.back = make_folder("hf") / "out"
    main(["import-hf", str(given), str(folders.ours)])
    main(["export-hf", str(folders.ours / "model.pt"), str(folders.back)])
    return folders


def unigram(transformers, texts):
    """SentencePiece's, with [MASK] at the end."""
    learned = Tokenizer(Unigram())
    learned.pre_tokenizer = Metaspace()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    trainer = UnigramTrainer(
        vocab_size=200, special_tokens=special, unk_token="[UNK]", show_progress=False
    )
    learned.train_from_iterator(texts, trainer)
    pieces = json.loads(learned.to_str())["model"]["vocab"]
    pieces = [*map(tuple, pieces), ("[MASK]", 0.0)]
    return transformers.DebertaV2Tokenizer(vocab=pieces, unk_id=3)


def byte_level_of_deberta(transformers, texts):
    """GPT-2's, with BERT's special tokens first and [MASK] at the end."""
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = ByteLevel(add_prefix_space=False)
    special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    learned.train_from_iterator(
        texts,
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


def write_sentence_pieces(
    file: Path, pieces: list, model_type: int = 1, characters: bytes = b""
) -> None:
    """A model file with pieces and scores, of which [UNK] or <unk> is the unknown one."""
    model = formats.ModelProto()
    for name, score in pieces:
        kind = 1 + (name in ("[UNK]", "<unk>"))
        model.pieces.add(piece=name, score=score, type=kind)
    model.trainer_spec.model_type = model_type
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.precompiled_charsmap = characters
    file.write_bytes(model.SerializeToString())
