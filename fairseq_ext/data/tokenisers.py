"""Files of tokenisers, and the names of special symbols in fairseq and BERT."""

from pathlib import Path

from sentencepiece import SentencePieceProcessor
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_not_pointer

SENTENCEPIECE = "sentencepiece.model"
"""Name of SentencePiece's model in a folder of translation data."""

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
OF_BERT = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
SPECIAL = dict(zip(SYMBOLS + OF_BERT, SYMBOLS * 2, strict=True))
"""Special symbol of either -> fairseq's."""


def name_special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return fairseq's symbol of each special token, and of a token that is spelled like a symbol.

    Where a vocabulary has both spellings, as <s> beside [CLS], the one that surrounds texts is
    special, BERT's if none does, and the other token gets the name that is free.
    """
    tokens = tokenizer.get_vocab()
    first = next(iter(tokenizer.encode("").tokens), None)
    bert = first in OF_BERT or first not in SYMBOLS and tokens.keys() >= {*OF_BERT}
    names = {}
    for theirs, symbol in zip(OF_BERT, SYMBOLS, strict=True):
        if theirs in tokens and (bert or symbol not in tokens):
            names[theirs] = symbol
            if symbol in tokens:
                names[symbol] = theirs
        elif symbol in tokens:
            names[symbol] = symbol
    return names


def load_bpe(folder: Path) -> ByteLevelBPETokenizer:
    """Load a byte-level BPE in GPT-2's form: encoder.json and vocab.bpe."""
    files = folder / "encoder.json", folder / "vocab.bpe"
    return ByteLevelBPETokenizer.from_file(*map(str, files), add_prefix_space=False)


def load_sentencepiece(file: Path) -> SentencePieceProcessor:
    """Load a model of SentencePiece; raise UsageError if the file is none."""
    check_not_pointer(file)
    try:
        return SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{file} is no model of SentencePiece ({error}); get it again") from None
