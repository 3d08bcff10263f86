"""Files of tokenisers, and the names of special symbols in fairseq and BERT."""

from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
OF_BERT = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
SPECIAL = dict(zip(SYMBOLS + OF_BERT, SYMBOLS * 2, strict=True))
"""Special symbol of either -> fairseq's."""


def load_bpe(folder: Path) -> ByteLevelBPETokenizer:
    """Load a byte-level BPE in GPT-2's form: encoder.json and vocab.bpe."""
    files = folder / "encoder.json", folder / "vocab.bpe"
    return ByteLevelBPETokenizer.from_file(*map(str, files), add_prefix_space=False)
