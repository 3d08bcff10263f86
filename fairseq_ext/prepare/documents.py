"""Clean documents from raw text: one sentence a line, an empty line between documents.

fairseq's --sample-break-mode complete_doc and sentence-pair objectives read this form. Text is
streamed as paragraphs; an empty paragraph stands for the end of a document.

A --source is a file, or a folder of files; it may be repeated. PART is train, valid, test or named
(by such a word in the path, or val or dev for valid, else train), FORM one of file, blank, wikitext
and gutenberg.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from nltk.tokenize.punkt import PunktSentenceTokenizer
from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import new_folder, read_lines, read_lines_replacing_returns, write_lines
from fairseq_ext.prepare.step import (
    INPUTS,
    clean,
    logger,
    number_from,
    record_inputs,
    step_parser,
)

PARTS = ("train", "valid", "test")
LEARNED_FROM = 5_000_000  # characters of text from which the ends of sentences are learned

PART = re.compile(r"(?<![a-z])(train|valid|val|dev|test)(?:ing|ation|elopment)?(?![a-z])")
OTHER_NAMES = {"val": "valid", "dev": "valid"}
TITLE = re.compile(r"= (?!= ).*(?<! =) =")
ESCAPED = re.compile(r" @([-,.])@ ")
MARKER = re.compile(r"\*\*\* ?(START|END) OF")


class Source(NamedTuple):
    """A text file with the form of its documents and the part that it belongs to."""

    part: str
    form: str
    path: Path


def join_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs of one document, which blank lines separate, each as one line."""
    return (" ".join(group) for blank, group in groupby(lines, lambda line: not line) if not blank)


def split_at_titles(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs of WikiText: an article begins with a blank line and '= Title ='.

    Its escapes are undone: ' @-@ ' stands for '-'.
    """
    before = ""
    for line in lines:
        if line and not before and TITLE.fullmatch(line):
            yield ""
        if line:
            yield ESCAPED.sub(r"\1", line)
        before = line


def join_between_markers(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs between the lines '*** START OF ...' and '*** END OF ...' of a book."""

    def inner_lines() -> Iterator[str]:
        inside = False
        for line in lines:
            if marker := MARKER.match(line):
                inside = marker[1] == "START"
            elif inside:
                yield line

    return join_paragraphs(inner_lines())


# Each turns the cleaned lines of a file into paragraphs. In the form `blank`, blank lines separate
# documents and each other line is a paragraph.
FORMS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "file": join_paragraphs,
    "blank": iter,
    "wikitext": split_at_titles,
    "gutenberg": join_between_markers,
}


def find_sources(part: str, form: str, path: Path) -> list[Source]:
    """Return a text file, or the text files in a folder in the order of their names.

    Args:
        part: one of `PARTS`; "named" is the part that a word in a file's path names, else train.
        form: a key of `FORMS`.
        path: file or folder.

    Raises:
        UsageError: there is no such part, form, file or folder, or no text file in the folder.
    """
    if part not in (*PARTS, "named"):
        raise UsageError(f"PART is '{part}' and must be one of {', '.join(PARTS)}, named")
    if form not in FORMS:
        raise UsageError(f"--documents is '{form}' and must be one of {', '.join(FORMS)}")
    folder, names = (path.parent, [path.name]) if path.is_file() else (path, _list_texts(path))
    return [
        Source(part_of(name) if part == "named" else part, form, folder / name) for name in names
    ]


def _list_texts(path: Path) -> list[str]:
    """Return the names of the text files in a folder, each once, without hidden ones.

    Raises:
        UsageError: there are none.
    """
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such file or folder; correct the path")
    files = {file.relative_to(path) for file in path.rglob("*.txt*") if file.is_file()}
    names = sorted(
        file.as_posix()
        for file in files
        if file.name.endswith((".txt", ".txt.gz"))
        and not any(part.startswith(".") for part in file.parts)
        and not (file.suffix == ".gz" and file.with_suffix("") in files)  # the same once more
    )
    if not names:
        raise UsageError(f"{path}: there is no *.txt or *.txt.gz file in it; give a folder of them")
    return names


def part_of(name: str) -> str:
    """Return the part that a word in a path names, or "train"."""
    word = PART.search(name.lower())
    return OTHER_NAMES.get(word[1], word[1]) if word else "train"


def read_paragraphs(sources: Iterable[Source]) -> Iterator[str]:
    """Yield the cleaned paragraphs of files, with an empty one after each file."""
    for source in sources:
        has_text = False
        lines = map(clean, read_lines_replacing_returns(source.path))
        for paragraph in FORMS[source.form](lines):
            has_text = has_text or bool(paragraph)
            yield paragraph
        yield ""
        if not has_text:
            logger.warning("%s: no text of the form '%s' in it", source.path, source.form)


def take_characters(text: Iterator[str], characters: int) -> Iterator[str]:
    """Yield the first paragraphs that together have at least so many characters."""
    while characters > 0 and (paragraph := next(text, None)) is not None:
        characters -= len(paragraph)
        yield paragraph


def learn_sentences(text: Iterable[str]) -> PunktSentenceTokenizer:
    """Return a Punkt tokeniser with abbreviations learned without labels (Kiss and Strunk 2006)."""
    with suppress(ImportError):  # before nltk 3.10
        from nltk import redos

        redos.DEFAULT_TIMEOUT = None  # long text takes longer than its 5 seconds on a busy machine
    return PunktSentenceTokenizer("\n".join(text))


def split_sentences(text: Iterable[str], splitter: PunktSentenceTokenizer) -> Iterator[str]:
    """Yield the sentences of paragraphs, with an empty line between documents that have any."""
    text_before = document_ended = False
    for paragraph in text:
        if not paragraph:
            document_ended = text_before
            continue
        if document_ended:
            yield ""
        yield from splitter.tokenize(paragraph)
        text_before, document_ended = True, False


def write_part(path: Path, text: Iterable[str], splitter: PunktSentenceTokenizer) -> None:
    """Write the sentences of a part; raise UsageError if there are none."""
    write_lines(path, split_sentences(tqdm(text, desc=path.name, unit=" paragraphs"), splitter))
    if not path.stat().st_size:
        raise UsageError(f"the corpus has no sentence for the part '{path.name}'; give more text")


def hold_out(train: Path, valid: Path, count: int | None) -> None:
    """Move the ends of documents, or whole ones, from `train` to `valid`.

    Args:
        train: file with documents.
        valid: file to write.
        count: documents to move, the last ones; by default those of `choose_held_out`.

    Raises:
        UsageError: nothing would be left to train on.
    """
    lengths = [len(document) for document in _read_documents(train)]
    if count and count >= len(lengths):
        documents = len(lengths)
        raise UsageError(f"--valid is {count} and the corpus has {documents} documents; give fewer")
    if sum(lengths) == 1:
        raise UsageError("the corpus is a single sentence, and one is held out; give more text")
    held = [0] * (len(lengths) - count) + lengths[-count:] if count else choose_held_out(lengths)
    starts = [length - n for length, n in zip(lengths, held, strict=True)]
    parts = zip(_read_documents(train), starts, strict=True)
    write_lines(valid, _join_documents(document[start:] for document, start in parts))
    parts = zip(_read_documents(train), starts, strict=True)
    rest = train.with_name("rest")
    write_lines(rest, _join_documents(document[:start] for document, start in parts))
    rest.replace(train)


def choose_held_out(lengths: Sequence[int]) -> list[int]:
    """Return how many of its last sentences each document gives for validation.

    The last 1 % of the documents are held out, at least two, since next-sentence prediction takes
    sentences of another one. Where those are more than a tenth of the text, as of few books, each
    document gives the last 1 % of its sentences, at least one.
    """
    count = max(2, len(lengths) // 100)
    documents = [0] * (len(lengths) - count) + list(lengths[-count:])
    ends = [max(1, length // 100) if length > 1 else 0 for length in lengths]
    few = len(lengths) <= count or sum(documents) > sum(lengths) / 10
    if few and any(ends):
        return ends
    return documents if len(lengths) > count else [0, *lengths[1:]]


def _read_documents(file: Path) -> Iterator[list[str]]:
    """Yield the sentences of each document, which empty lines separate."""
    return (list(lines) for text, lines in groupby(read_lines(file), bool) if text)


def _join_documents(documents: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield sentences with an empty line between documents that have any."""
    for number, document in enumerate(filter(None, documents)):
        if number:
            yield ""
        yield from document


def prepare(out: Path, corpus: Sequence[Source], valid: int | None = None) -> None:
    """Make the folder `out` with the files train, valid and, if the corpus has one, test.

    The file `inputs` beside it lists the files that were read, unless an earlier step of a recipe
    has made it.

    Args:
        out: folder to make.
        corpus: files.
        valid: documents to hold out for validation, of a corpus without such a part.

    Raises:
        UsageError: a part has no text, text is not UTF-8, or too much is held out.
    """
    parts = {part: [source for source in corpus if source.part == part] for part in PARTS}
    if valid and parts["valid"]:
        given = parts["valid"][0].path
        raise UsageError(f"--valid is {valid} and {given} is for validation; leave one of them out")
    with new_folder(out) as work:
        text = read_paragraphs(parts["train"])
        sample = list(take_characters(text, LEARNED_FROM))
        splitter = learn_sentences(sample)
        write_part(work / "train", chain(sample, text), splitter)
        for part in filter(parts.get, ("valid", "test")):
            write_part(work / part, read_paragraphs(parts[part]), splitter)
        if not parts["valid"]:
            hold_out(work / "train", work / "valid", valid)
        if not out.absolute().with_name(INPUTS).exists():
            record_inputs(out, (source.path for source in corpus))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a folder of documents."""
    parser = step_parser("documents", __doc__)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="the folder to make")
    source = ("PART", "FORM", "PATH")
    add("--source", nargs=3, action="append", required=True, metavar=source)
    add("--valid", type=number_from(1), metavar="N", help="hold out the last N documents")
    args = parser.parse_args(arguments)
    corpus = []
    for part, form, path in args.source:
        if Path(path).resolve() in args.out.resolve().parents:
            raise UsageError(f"{args.out}: lies within the corpus {path}; give a folder elsewhere")
        corpus += find_sources(part, form, Path(path))
    for part in ("valid", "test"):
        if names := [str(source.path) for source in corpus if source.part == part]:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            logger.info("for %s: %s%s", part, ", ".join(names[:3]), more)
    prepare(args.out, corpus, args.valid)


if __name__ == "__main__":
    main()
