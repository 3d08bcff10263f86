"""SentencePiece's model files as tokenisers: unigram pieces, as DeBERTa has.

CamemBERT and XLM-R, which fairseq trained, have them too.
"""

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from tokenizers.processors import BertProcessing

from fairseq_ext.errors import UsageError

MASK = "[MASK]"


class SentencePieces(NamedTuple):
    """A unigram model of SentencePiece.

    Attributes:
        scores: pieces and their scores.
        unknown: the number of the unknown piece, if there is one.
        characters: the table of characters that are replaced, or None.
    """

    scores: list[tuple[str, float]]
    unknown: int | None
    characters: bytes | None


def read_model(file: Path) -> SentencePieces:
    """Return the contents of a model file; raise UsageError if it is no unigram model."""
    from sentencepiece import sentencepiece_model_pb2

    formats: Any = sentencepiece_model_pb2  # which makes its classes as it is imported
    model = formats.ModelProto.FromString(file.read_bytes())
    if not model.pieces or model.trainer_spec.model_type != formats.TrainerSpec.UNIGRAM:
        raise UsageError(f"{file} is no unigram model of SentencePiece; give that of its encoder")
    kinds = [piece.type for piece in model.pieces]
    unknown = formats.ModelProto.SentencePiece.UNKNOWN
    return SentencePieces(
        [(piece.piece, piece.score) for piece in model.pieces],
        kinds.index(unknown) if unknown in kinds else None,
        model.normalizer_spec.precompiled_charsmap or None,
    )


def read_sentence_pieces(file: Path, settings: dict[str, Any]) -> Tokenizer:
    """Return the tokeniser of DeBERTa's model file, with BERT's special tokens around texts.

    Args:
        settings: those of tokenizer_config.json: do_lower_case and split_by_punct.

    Raises:
        UsageError: it is no unigram model with BERT's special tokens.
    """
    scores, unknown, characters = read_model(file)
    names = {name: i for i, (name, _) in enumerate(scores)}
    if missing := [name for name in ("[CLS]", "[SEP]", "[PAD]") if name not in names]:
        raise UsageError(f"{file} has no {' and no '.join(missing)}; give that of a DeBERTa")
    if MASK not in names:
        scores.append((MASK, 0.0))
    tokenizer = Tokenizer(Unigram(scores, unknown, byte_fallback=False))
    tokenizer.normalizer = _build_normaliser(characters, settings)
    spaces = pre_tokenizers.Metaspace()
    split = [pre_tokenizers.Punctuation("isolated")] * bool(settings.get("split_by_punct"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, spaces])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[PAD]", MASK])
    sep, cls = (("[SEP]", names["[SEP]"]), ("[CLS]", names["[CLS]"]))
    tokenizer.post_processor = BertProcessing(sep, cls)
    return tokenizer


FAIRSEQ_SYMBOLS = {
    "CamembertTokenizer": ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
    "XLMRobertaTokenizer": ("<s>", "<pad>", "</s>", "<unk>"),
}
"""Symbols of fairseq's dictionary before the pieces of a model file, by class of tokenisers."""


def read_fairseq_pieces(file: Path, name: str) -> Tokenizer:
    """Return the tokeniser of the model file of an encoder that fairseq trained.

    Its dictionary has symbols of its own in front, and SentencePiece's only if it lacks them.

    Args:
        name: a class in FAIRSEQ_SYMBOLS.
    """
    scores, _, characters = read_model(file)
    front = FAIRSEQ_SYMBOLS[name]
    rest = [(piece, score) for piece, score in scores if piece not in front]
    pieces = [*((symbol, 0.0) for symbol in front), *rest, ("<mask>", 0.0)]
    tokenizer = Tokenizer(Unigram(pieces, front.index("<unk>"), byte_fallback=False))
    if characters:
        tokenizer.normalizer = normalizers.Precompiled(characters)
    spaces = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(spaces)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(
        ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)]
    )
    return tokenizer


def _build_normaliser(characters: bytes | None, settings: dict[str, Any]) -> Any:
    parts: list[Any] = [normalizers.Lowercase()] * bool(settings.get("do_lower_case"))
    parts.append(normalizers.Strip())
    if characters:
        parts.append(normalizers.Precompiled(characters))
    return normalizers.Sequence([*parts, normalizers.Replace(Regex(" {2,}"), " ")])
