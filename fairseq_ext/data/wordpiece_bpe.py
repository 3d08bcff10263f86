"""WordPiece as fairseq's `--bpe wordpiece`, in generation and in interactive use."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

from fairseq_ext.data import wordpiece
from fairseq_ext.errors import UsageError


@dataclass
class WordPieceConfig(FairseqDataclass):
    """Options of `--bpe wordpiece`."""

    wordpiece_vocab: Optional[str] = field(  # noqa: UP045 (argparse)
        default=None,
        metadata={"help": "vocabulary of --bpe wordpiece, a piece a line; BERT's vocab.txt too"},
    )


@register_bpe("wordpiece", dataclass=WordPieceConfig)
class WordPieceBPE:
    """Splitter and joiner of single lines.

    Raises:
        UsageError: no vocabulary is given, or the file cannot be read.
    """

    def __init__(self, cfg: WordPieceConfig) -> None:
        if not cfg.wordpiece_vocab:
            raise UsageError("--bpe wordpiece needs --wordpiece-vocab, a file with a piece a line")
        self.pieces = wordpiece.Pieces(wordpiece.load(Path(cfg.wordpiece_vocab)))
        self.decode = wordpiece.decode

    def encode(self, line: str) -> str:
        """Return the pieces of a line."""
        return self.pieces.encode([line])[0]

    def is_beginning_of_word(self, piece: str) -> bool:
        """Return whether a piece begins a word."""
        return not piece.startswith("##")
