"""Joint pieces of a folder of raw text, by SentencePiece: a model, and text in pieces.

The model, unigram or BPE, is learned from the files train.* and applied to all files. Files that
exist are kept. Each character of the training text is a piece; white space of any kind separates
words, and its mark stays in the pieces, so that raw text can be put together again.
"""

import re
from collections.abc import Sequence
from functools import cache, partial
from io import BytesIO
from itertools import chain
from pathlib import Path

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from fairseq_ext.data.tokenisers import load_sentencepiece
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, rename_when_complete, write_lines
from fairseq_ext.prepare.byte_bpe import rank_tokens
from fairseq_ext.prepare.step import logger, map_files, number_from, step_parser

KINDS = ("unigram", "bpe")
SILENT = 2  # level of its log, of which only errors are shown
MOST_PIECES = 1_000_000  # it begins with so many, and needs memory for each that is asked for
CHARACTERS = re.compile(r"required_chars\. \d+ vs (\d+)")

load = cache(load_sentencepiece)  # each process loads a model once


def learn(texts: Sequence[Path], size: int, kind: str) -> bytes:
    """Return a model of `size` pieces, <unk>, <s> and </s> among them.

    There are fewer, with a warning, if the text has no more.

    Args:
        texts: files of raw text.
        size: of the vocabulary.
        kind: one of `KINDS`.

    Raises:
        UsageError: there is no room for the characters of the text, or nothing to learn from.
    """
    model = BytesIO()
    try:
        SentencePieceTrainer.train(
            input=[*map(str, texts)],
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=SILENT,
        )
    except RuntimeError as error:
        if few := CHARACTERS.search(str(error)):
            raise UsageError(
                f"--vocab-size is {size}, and the characters of the training text alone need "
                f"{few[1]}; give a larger number"
            ) from None
        raise UsageError(
            f"SentencePiece learns nothing from the training text ({error}); give more text"
        ) from None
    if (found := SentencePieceProcessor(model_proto=model.getvalue()).vocab_size()) < size:
        logger.warning("of %d pieces, the training text gives %d", size, found)
    return model.getvalue()


def encode(model: Path, lines: list[str]) -> list[str]:
    """Return the pieces of each line, separated by spaces."""
    texts = [" ".join(line.split()) for line in lines]
    return [" ".join(pieces) for pieces in load(model).encode(texts, out_type=str)]


def list_pieces(model: Path) -> list[str]:
    """Return the pieces of a model without its special symbols, which fairseq has of its own."""
    processor = load(model)
    numbers = range(processor.vocab_size())
    own = [n for n in numbers if not (processor.is_control(n) or processor.is_unknown(n))]
    return [processor.id_to_piece(n) for n in own]


def prepare(text: Path, model: Path, out: Path, size: int, kind: str, words: Path) -> None:
    """Learn a model unless there is one, split all files, and write fairseq's dictionary.

    Args:
        text: folder of raw files PART.LANGUAGE.
        model: its file.
        out: folder for text in pieces.
        size: of the vocabulary.
        kind: one of `KINDS`.
        words: the dictionary, with all pieces by falling counts: new text may have others than
            the training text.
    """
    if not model.exists():
        if not (texts := sorted(text.glob("train.*"))):
            raise UsageError(f"{text} has no train.LANGUAGE to learn pieces from; give a folder")
        content = learn(texts, size, kind)
        with rename_when_complete(model) as part:
            part.write_bytes(content)
    map_files(text, out, "splitting", lambda language: partial(encode, model))
    encoded = chain.from_iterable(map(read_lines, sorted(out.glob("train.*"))))
    write_lines(words, rank_tokens(encoded, list_pieces(model)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Split a folder of raw text into pieces."""
    parser = step_parser("sentencepiece", __doc__)
    add = parser.add_argument
    add("text", type=Path, metavar="TEXT", help="folder of raw files PART.LANGUAGE")
    add("model", type=Path, metavar="MODEL", help="file of the model to learn")
    add("out", type=Path, metavar="OUT", help="folder for text in pieces")
    add("words", type=Path, metavar="DICTIONARY", help="for fairseq-preprocess --srcdict")
    add("--vocab-size", dest="size", type=number_from(1, MOST_PIECES), required=True, metavar="N")
    add("--model-type", dest="kind", choices=KINDS, default=KINDS[0])
    prepare(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
