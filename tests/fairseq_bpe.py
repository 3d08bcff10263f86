"""fairseq's own byte-level BPE, of which ours must not differ; text that is hard for it."""

from pathlib import Path

from fairseq.data.encoders.gpt2_bpe import GPT2BPE, GPT2BPEConfig

from fairseq_ext.data.vocabulary import load_bpe
from fairseq_ext.prepare import byte_bpe

STRANGE = [
    "I'll don't 'S  two  spaces , ½ ① a\u00adb",
    "",
    "日本語 🙂 \u0130\u0345 naïve\u00a0x\u3000y",
    " <mask> <|endoftext|> ",
]


def load_fairseq_bpe(folder: Path) -> GPT2BPE:
    encoder, merges = str(folder / "encoder.json"), str(folder / "vocab.bpe")
    return GPT2BPE(GPT2BPEConfig(gpt2_encoder_json=encoder, gpt2_vocab_bpe=merges))


def assert_as_fairseq(folder: Path, lines: list[str]) -> None:
    theirs, ours = load_fairseq_bpe(folder), list(byte_bpe.encode(lines, load_bpe(folder)))
    assert ours == [theirs.encode(line) for line in lines]
    assert [theirs.decode(line) for line in ours] == lines
