"""Corpora in the forms in which they are published: real ones, and made ones."""

import gzip
import os
from functools import cache
from pathlib import Path

import pytest

from fairseq_ext.analysis.coreference.corpus_readers import HEADER
from fairseq_ext.prepare.toy.corpus import corpus

builtin = cache(corpus)
"""The built-in corpus, made once in a process: its 13,000 pairs take a second."""

SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
LINES = {"train": 300, "valid": 20, "test": 9}
CORPORA = Path(os.environ.get("FAIRSEQ_EXT_CORPORA", "-"))
UD = [
    (CORPORA / "ud-english-ewt/en_ewt-ud-train.conllu.gz", 12544, 204577),
    (CORPORA / "ud-english-ewt/en_ewt-ud-dev.conllu.gz", 2001, 25147),
    (CORPORA / "ud-german-gsd/de_gsd-ud-dev.conllu.gz", 799, 12480),
]


def needs_corpora(test):
    """Mark a test that reads real corpora, and skip it where there are none."""
    absent = not UD[0][0].is_file()
    skipped = pytest.mark.skipif(absent, reason="FAIRSEQ_EXT_CORPORA has no ud-english-ewt")
    return pytest.mark.corpora(skipped(test))


def write_corpus(folder: Path, change=lambda split, language, lines: lines) -> Path:
    """Write lines in the layout of Multi30k: real ones if there are any, else built-in ones."""
    target = folder / "multi30k-en-de"
    target.mkdir(parents=True)
    real = os.environ.get("FAIRSEQ_EXT_CORPORA")
    for split, name in SPLITS.items():
        for language in ("en", "de"):
            lines = read_real(Path(real), name, language) if real else read_builtin(split, language)
            text = "".join(change(split, language, lines[: LINES[split]]))
            file = gzip.compress(text.encode("utf-8", "surrogateescape"))
            (target / f"{name}.{language}.gz").write_bytes(file)
    return folder


def read_real(corpora: Path, name: str, language: str) -> list[str]:
    with gzip.open(corpora / "multi30k-en-de" / f"{name}.{language}.gz", "rb") as file:
        return [line.decode() for line in file]


def read_builtin(split: str, language: str) -> list[str]:
    return [f"{pair[language == 'de']}\n" for pair in builtin()[split]]


def format_conllu(words: str, heads: str, relation: str = "dep") -> str:
    """Return a sentence of words and the IDs of their heads."""
    pairs = enumerate(zip(words.split(" "), heads.split(), strict=True), 1)
    rows = (f"{n}\t{word}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_\n" for n, (word, head) in pairs)
    return "".join(rows) + "\n"


def format_gap_row(text: str, pronoun: str, a: str, b: str, true: str, **change: str) -> str:
    row = {"ID": "test-1", "Text": text, "URL": "http://example.org"}
    for name, value in (("Pronoun", pronoun), ("A", a), ("B", b)):
        row |= {name: value, f"{name}-offset": str(text.rindex(value))}
    row |= {f"{name}-coref": str(name == true).upper() for name in "AB"}
    return "\t".join((row | change)[name] for name in HEADER)
