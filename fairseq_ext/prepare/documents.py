"""Raw text to clean documents: one sentence a line, an empty line between documents.

That is what fairseq's --sample-break-mode complete_doc and sentence-pair objectives read. Text is
streamed as paragraphs; an empty one stands for the end of a document.
"""

import argparse
import logging
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import NamedTuple

from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer
from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, read_lines_replacing_returns, write_lines
from fairseq_ext.prepare.manifest import INPUTS

logger = logging.getLogger(__name__)

PARTS = ("train", "valid", "test")
LEARNED_FROM = 5_000_000  # characters of text from which the ends of sentences are learned

# To Python, a byte order mark is no white space.
BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ufeff]+")
PART = re.compile(r"(?<![a-z])(train|valid|test)(?:ing|ation)?(?![a-z])")
TITLE = re.compile(r"= (?!= ).*(?<! =) =")
ESCAPED = re.compile(r" @([-,.])@ ")
MARKER = re.compile(r"\*\*\* ?(START|END) OF")


class Source(NamedTuple):
    """A text file, the form of its documents and the part that it belongs to."""

    part: str
    form: str
    path: Path


def clean(line: str) -> str:
    """In Unicode's composed form; control characters and runs of white space are one space."""
    return BLANKS.sub(" ", unicodedata.normalize("NFC", line)).strip(" ")


# Forms: from the cleaned lines of a file to its paragraphs.


def file(lines: Iterable[str]) -> Iterator[str]:
    """One document: its lines are joined to paragraphs, which blank lines part."""
    return (" ".join(group) for blank, group in groupby(lines, lambda line: not line) if not blank)


def blank(lines: Iterable[str]) -> Iterator[str]:
    """Documents are parted by blank lines, each other line is a paragraph."""
    return iter(lines)


def wikitext(lines: Iterable[str]) -> Iterator[str]:
    """Articles, each begun by a blank line and '= Title ='; ' @-@ ' stands for '-'."""
    before = ""
    for line in lines:
        if line and not before and TITLE.fullmatch(line):
            yield ""
        if line:
            yield ESCAPED.sub(r"\1", line)
        before = line


def gutenberg(lines: Iterable[str]) -> Iterator[str]:
    """As 'file', what stands between the lines '*** START OF ...' and '*** END OF ...'."""
    return file(between_markers(lines))


def between_markers(lines: Iterable[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if marker := MARKER.match(line):
            inside = marker[1] == "START"
        elif inside:
            yield line


FORMS = {form.__name__: form for form in (file, blank, wikitext, gutenberg)}


# Files.


def sources(part: str, form: str, path: Path) -> list[Source]:
    """A text file, or those in a folder, in the order of their names.

    Args:
        part: "train", "valid", "test"; or "named": by such a word in a path, else train.

    Raises:
        UsageError: there is no such form, file or folder, or no text file in it.
    """
    if form not in FORMS:
        raise UsageError(f"--documents is '{form}' and must be one of {', '.join(FORMS)}")
    if path.is_file():
        return [Source(part, form, path)]
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such file or folder; correct the path")
    names = sorted(
        found.relative_to(path).as_posix()
        for found in path.rglob("[!.]*")
        if found.name.endswith((".txt", ".txt.gz")) and found.is_file()
    )
    if not names:
        raise UsageError(f"{path}: there is no *.txt or *.txt.gz file in it; give a folder of them")
    return [Source(part_of(name) if part == "named" else part, form, path / name) for name in names]


def outside(path: Path, out: Path) -> Path:
    if path.resolve() in out.resolve().parents:
        raise UsageError(f"{out}: lies within the corpus {path}; give an output folder elsewhere")
    return path


def part_of(name: str) -> str:
    word = PART.search(name.lower())
    return word[1] if word else "train"


def paragraphs(of: Iterable[Source]) -> Iterator[str]:
    for source in of:
        text = False
        for paragraph in FORMS[source.form](map(clean, read_lines_replacing_returns(source.path))):
            text = text or bool(paragraph)
            yield paragraph
        yield ""
        if not text:
            logger.warning("%s: no text of the form '%s' in it", source.path, source.form)


# Sentences.


def first(text: Iterator[str], characters: int) -> Iterator[str]:
    while characters > 0 and (paragraph := next(text, None)) is not None:
        characters -= len(paragraph)
        yield paragraph


def learn_sentences(text: Iterable[str]) -> PunktSentenceTokenizer:
    """Punkt (Kiss and Strunk 2006): abbreviations and first words, learned without labels."""
    trainer = PunktTrainer()
    trainer.train("\n".join(text))
    return PunktSentenceTokenizer(trainer.get_params())


def sentences(text: Iterable[str], splitter: PunktSentenceTokenizer) -> Iterator[str]:
    """The sentences of all paragraphs, with an empty line between two documents that have any."""
    text_before = ended = False
    for paragraph in text:
        if not paragraph:
            ended = text_before
            continue
        if ended:
            yield ""
        yield from splitter.tokenize(paragraph)
        text_before, ended = True, False


def write_part(path: Path, text: Iterable[str], splitter: PunktSentenceTokenizer) -> None:
    write_lines(path, sentences(tqdm(text, desc=path.name, unit=" paragraphs"), splitter))
    if not path.stat().st_size:
        raise UsageError(f"the corpus has no sentence for the part '{path.name}'; give more text")


def hold_out(train: Path, valid: Path, wanted: int | None) -> None:
    """Move the last documents of `train` to `valid`: so many, or 1 % of them.

    At least two of four or more, since next-sentence prediction takes sentences of another one.

    Of a single document, the last 1 % of its sentences are moved, at least one.
    """
    total, parting = 0, []
    for total, line in enumerate(read_lines(train), 1):
        if not line:
            parting.append(total)
    documents = len(parting) + 1
    count = wanted or max(1 + (documents > 3), documents // 100)
    if wanted and count >= documents:
        raise UsageError(f"--valid is {count} and the corpus has {documents} documents; give fewer")
    if total == 1:
        raise UsageError("the corpus is a single sentence, and one is held out; give more text")
    start = parting[-count] if parting else total - max(1, total // 100)
    write_lines(valid, islice(read_lines(train), start, None))
    rest = train.with_name("rest")
    write_lines(rest, islice(read_lines(train), start - bool(parting)))
    rest.replace(train)


def prepare(out: Path, corpus: Sequence[Source], valid: int | None = None) -> None:
    """Make the folder `out` with the files train, valid and, if the corpus has one, test.

    Beside it, `inputs` lists what was read, unless an earlier step of a recipe did.

    Args:
        valid: documents to hold out for validation; for a corpus without such a part.

    Raises:
        UsageError: a part has no text, text is not UTF-8, more is held out than there is.
    """
    parts = {part: [source for source in corpus if source.part == part] for part in PARTS}
    if valid and parts["valid"]:
        raise UsageError(
            f"--valid is {valid} and the corpus has a part for validation, "
            f"{parts['valid'][0].path}; leave one of them out"
        )
    work = out.with_name(f"{out.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    text = paragraphs(parts["train"])
    sample = list(first(text, LEARNED_FROM))
    splitter = learn_sentences(sample)
    write_part(work / "train", chain(sample, text), splitter)
    for part in ("valid", "test"):
        if parts[part]:
            write_part(work / part, paragraphs(parts[part]), splitter)
    if not parts["valid"]:
        hold_out(work / "train", work / "valid", valid)
    if not (inputs := out.with_name(INPUTS)).exists():
        write_lines(inputs, (str(source.path) for source in corpus))
    work.replace(out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.documents", description=__doc__
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument(
        "--source",
        nargs=3,
        action="append",
        required=True,
        metavar=("PART", "FORM", "PATH"),
        help="a file, or a folder of files; may be repeated. PART is train, valid, test or named "
        f"(by such a word in the path, else train), FORM one of {', '.join(FORMS)}",
    )
    parser.add_argument("--valid", type=int, metavar="N", help="hold out the last N documents")
    given = parser.parse_args(arguments)
    corpus = [
        source
        for part, form, path in given.source
        for source in sources(part, form, outside(Path(path), given.out))
    ]
    prepare(given.out, corpus, given.valid)


if __name__ == "__main__":
    main()
