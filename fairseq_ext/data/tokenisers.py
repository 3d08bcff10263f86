"""Tokenisers' files, and the symbols of tokens that are no text, as fairseq and BERT write them."""

from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
OF_BERT = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
SPECIAL = dict(zip(SYMBOLS + OF_BERT, SYMBOLS * 2, strict=True))
"""fairseq's symbols of the tokens that are no text."""


def load_bpe(folder: Path) -> ByteLevelBPETokenizer:
    """A byte-level BPE in GPT-2's form: encoder.json and vocab.bpe."""
    files = folder / "encoder.json", folder / "vocab.bpe"
    return ByteLevelBPETokenizer.from_file(*map(str, files), add_prefix_space=False)
