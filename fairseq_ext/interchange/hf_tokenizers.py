"""Tokenisers of Hugging Face's folders. What their form is, is checked here alone.

A folder has tokenizer.json or older files, which a class of transformers reads. Where settings of
that class overrule tokenizer.json there, they do here.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import ByteLevelBPETokenizer, Encoding, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordPiece

from fairseq_ext.data.pieces import detect_mark
from fairseq_ext.data.tokenisers import OF_BERT, SPECIAL, SYMBOLS
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_not_pointer
from fairseq_ext.interchange.hf_format import read_json, read_text
from fairseq_ext.interchange.hf_vocabulary import (
    add_special_tokens,
    find_special_tokens,
    surround,
)
from fairseq_ext.interchange.sentence_pieces import read_fairseq_pieces, read_sentence_pieces

logger = logging.getLogger(__name__)

WHOLE, WORD_PIECES, BPE, DEBERTA, SENTENCE_PIECES = FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spm.model",
    "sentencepiece.bpe.model",
)
CLASSES = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer"), WORD_PIECES),
    **dict.fromkeys(("RobertaTokenizer", "DebertaTokenizer", "GPT2Tokenizer"), BPE),
    "DebertaV2Tokenizer": DEBERTA,
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), SENTENCE_PIECES),
}
"""Classes of transformers, without "Fast", and the older file that each reads."""

OF_KINDS = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "camembert": "CamembertTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""Class of a kind of models whose folder names none."""

ANY = ("PreTrainedTokenizer", "TokenizersBackend")  # classes that say nothing
IN_PYTHON = (
    *("BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer", "RoCBertTokenizer"),
    *("BartphoTokenizer", "CanineTokenizer", "FlaubertTokenizer", "XLMTokenizer"),
)
"""Classes that do not read tokenizer.json, whoever has put it there."""

SPLITTERS = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}
"""Settings of a Japanese BERT, and what they are called where a plain BERT does the same."""

MARKS = {WORD_PIECES: "##", BPE: "\u0120"}
"""Marks of pieces in older files."""

TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
"""Properties of an added token that only its name is known of."""


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokeniser of a folder, with special tokens around texts.

    Further special tokens become ordinary ones, which are found in texts.

    Raises:
        UsageError: there is none, it cannot be read, or its form is none that our models have.
    """
    settings = read_settings(path)
    name, file = find_class(path, settings)
    try:
        content = READERS[file](path, settings, name)
        add_tokens(content, list_added_tokens(path, settings))
        overrule(content, settings, name, path)
        tokenizer = Tokenizer.from_str(json.dumps(content))
    except UsageError:
        raise
    except Exception as error:  # the exceptions of `tokenizers` have no class of their own
        raise UsageError(f"{path / file} cannot be read ({error}); copy it again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for token in content["added_tokens"]:
        if (number := tokenizer.token_to_id(token["content"])) != token["id"]:
            raise UsageError(
                f"{path} gives the token {token['content']} the id {token['id']}, and the rest of "
                f"its tokeniser {number}; correct its files"
            )
    bert = find_special_tokens(tokenizer)["cls_token"] in OF_BERT
    surround(tokenizer, bert, settings.get("add_prefix_space", False))
    check_form(tokenizer, path)
    return tokenizer


def read_settings(path: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, with what config.json and special_tokens_map.json add."""
    names = ("config.json", "special_tokens_map.json", "tokenizer_config.json")
    model, tokens, settings = (
        read_json(path / name) if (path / name).exists() else {} for name in names
    )
    further = ("additional_special_tokens", "extra_special_tokens")
    return {
        **{name: tokens[name] for name in further if name in tokens},
        **{name: model[name] for name in ("model_type", "tokenizer_class") if name in model},
        **{name: value for name, value in settings.items() if value is not None},
    }


def find_class(path: Path, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return the class of a folder's tokeniser, and the file that is read.

    Raises:
        UsageError: the class, or what it does with words, is not read here, or the file is missing.
    """
    usual = OF_KINDS.get(settings.get("model_type", ""), "")
    declared = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    splitters = [settings[n] for n, plain in SPLITTERS.items() if settings.get(n, plain) != plain]
    if declared in IN_PYTHON or splitters:
        form = f"{declared or usual}{''.join(f' with {name}' for name in splitters)}"
        raise UsageError(
            f"{path}: its tokeniser is {form}, which is not read here; accepted are "
            f"{', '.join(CLASSES)}, and others that read tokenizer.json"
        )
    if (path / WHOLE).exists():
        return declared or usual, WHOLE
    if declared in ("", *ANY):
        names = sorted(CLASSES, key=lambda name: name != usual)
        declared = next((name for name in names if (path / CLASSES[name]).exists()), "")
        if not declared:
            raise UsageError(f"{path} has no {', no '.join(FILES)}; add the encoder's tokeniser")
    if declared not in CLASSES:
        raise UsageError(
            f"{path}: its tokeniser is {declared}, which is not read here without tokenizer.json; "
            "add that, as save_pretrained of transformers writes it"
        )
    if not (path / CLASSES[declared]).exists():
        raise UsageError(
            f"{path} has no {WHOLE} and no {CLASSES[declared]}, which its {declared} reads; add it"
        )
    return declared, CLASSES[declared]


def _read_whole(path: Path, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    content = json.loads(read_text(path / WHOLE))
    content.setdefault("added_tokens", [])
    return content


def _read_word_pieces(path: Path, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    lines = read_text(path / WORD_PIECES).rstrip("\n").split("\n")
    vocab = {token: i for i, token in enumerate(lines)}
    _check_marks(vocab, path / WORD_PIECES, MARKS[WORD_PIECES])
    unknown = next((token for token in ("[UNK]", "<unk>") if token in vocab), "[UNK]")
    tokenizer = Tokenizer(WordPiece(vocab, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([*find_special_tokens(tokenizer).values()])
    return json.loads(tokenizer.to_str())


def _read_byte_level_bpe(path: Path, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    vocab = read_json(path / BPE)
    _check_marks(vocab, path / BPE, MARKS[BPE])
    lines = read_text(path / "merges.txt").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    prefix = settings.get("add_prefix_space", False)
    tokenizer = ByteLevelBPETokenizer(vocab, merges, prefix)._tokenizer
    add_special_tokens(tokenizer, OF_BERT if "[CLS]" in vocab else SYMBOLS)
    return json.loads(tokenizer.to_str())


def _read_deberta(path: Path, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    check_not_pointer(path / DEBERTA)
    return json.loads(read_sentence_pieces(path / DEBERTA, dict(settings)).to_str())


def _read_fairseq_pieces(path: Path, settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    check_not_pointer(path / SENTENCE_PIECES)
    return json.loads(read_fairseq_pieces(path / SENTENCE_PIECES, name).to_str())


READERS: dict[str, Callable[[Path, Mapping[str, Any], str], dict[str, Any]]] = {
    WHOLE: _read_whole,
    WORD_PIECES: _read_word_pieces,
    BPE: _read_byte_level_bpe,
    DEBERTA: _read_deberta,
    SENTENCE_PIECES: _read_fairseq_pieces,
}
"""Functions that return the content of tokenizer.json."""


def _check_marks(vocab: Mapping[str, int], file: Path, accepted: str) -> None:
    """Raise UsageError for a vocabulary with pieces as another tokeniser marks them."""
    if (mark := detect_mark([*vocab])) not in ("", accepted):
        raise UsageError(
            f"{file} has pieces marked by {mark}, where its tokeniser would mark them by "
            f"{accepted}; add the tokenizer.json of the encoder, which says how text is split"
        )


def list_added_tokens(path: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return added tokens and their properties, the id among them if a file has it."""
    listed = [
        {**token, "id": int(number)}
        for number, token in settings.get("added_tokens_decoder", {}).items()
    ]
    names = [settings.get(f"{kind}_special_tokens") or [] for kind in ("additional", "extra")]
    special = [
        name for each in names for name in (each.values() if isinstance(each, dict) else each)
    ]
    further = [name if isinstance(name, dict) else {"content": name} for name in special]
    if (file := path / "added_tokens.json").exists():
        known = {token["content"] for token in further}
        listed += [
            {"content": name, "id": number, "normalized": name not in known}
            for name, number in read_json(file).items()
        ]
    return {token["content"]: token for token in [*further, *listed]}


def add_tokens(content: dict[str, Any], added: Mapping[str, dict[str, Any]]) -> None:
    """Add tokens to the content of tokenizer.json, with the ids that they have in the encoder.

    A token that is found in text needs a place in the vocabulary: after a gap, `tokenizers` would
    give it the number of another one.
    """
    vocab, tokens = content["model"]["vocab"], {t["content"]: t for t in content["added_tokens"]}
    numbers = vocab if isinstance(vocab, dict) else {name: i for i, (name, _) in enumerate(vocab)}
    numbers = {**numbers, **{name: token["id"] for name, token in tokens.items()}}
    for name, token in sorted(added.items(), key=lambda item: item[1].get("id", float("inf"))):
        if name not in tokens:
            number = numbers.setdefault(name, max(numbers.values(), default=-1) + 1)
            tokens[name] = {**TOKEN, "id": number, **token}
            numbers[name] = tokens[name]["id"]
    for name, token in tokens.items():
        token["special"] = name in SPECIAL
        if isinstance(vocab, dict):
            vocab.setdefault(name, token["id"])
    content["added_tokens"] = sorted(tokens.values(), key=lambda token: token["id"])


def overrule(content: dict[str, Any], settings: Mapping[str, Any], name: str, path: Path) -> None:
    """Put settings of a class in the place of those in tokenizer.json, as transformers does."""
    file, get = CLASSES.get(name), settings.get
    if file == WORD_PIECES and content["model"].get("type") == "WordPiece":
        part, kind = "normalizer", "BertNormalizer"
        wanted = {
            "clean_text": True,
            "handle_chinese_chars": get("tokenize_chinese_chars", True),
            "strip_accents": get("strip_accents"),
            "lowercase": get("do_lower_case", True),
        }
    elif file == BPE:
        part, kind = "pre_tokenizer", "ByteLevel"
        wanted = {"add_prefix_space": get("add_prefix_space", False)}
    else:
        return
    present = content.get(part)
    if present is None and part == "normalizer":
        content[part] = {"type": kind, **wanted}
    elif present and present["type"] == kind:
        for option in [n for n, value in wanted.items() if present.get(n) != value]:
            logger.warning(
                "%s: %s has %s %s, as its %s and tokenizer_config.json say, not %s as in %s",
                *(path, kind, option, wanted[option], name, present.get(option), WHOLE),
            )
        present |= wanted


def check_form(tokenizer: Tokenizer, path: Path) -> None:
    """Raise UsageError if texts and pairs are surrounded otherwise than in BERT and RoBERTa."""
    special = find_special_tokens(tokenizer)
    cls, sep = special["cls_token"], special["sep_token"]
    one, two = (_outline(found) for found in (tokenizer.encode("a"), tokenizer.encode("a", "a")))
    pairs = [[cls, "a", *[sep] * n, "a", sep] for n in (1, 2)]
    if one != [cls, "a", sep] or two not in pairs:
        raise UsageError(
            f"{path}: its tokeniser reads a pair of texts as {' '.join(two)}, and our models read "
            f"{' '.join(pairs[0])}, or twice the {sep} in its middle; give another encoder"
        )


def _outline(encoding: Encoding) -> list[str]:
    """Return the special tokens around texts, with "a" for each text."""
    parts: list[str] = []
    for token, special in zip(encoding.tokens, encoding.special_tokens_mask, strict=True):
        if special or parts[-1:] != ["a"]:
            parts.append(token if special else "a")
    return parts
