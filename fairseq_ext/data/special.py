"""Symbols of tokens that are no text, as fairseq and as BERT write them."""

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
OF_BERT = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
SPECIAL = dict(zip(SYMBOLS + OF_BERT, SYMBOLS * 2, strict=True))
"""fairseq's symbols of the tokens that are no text."""
