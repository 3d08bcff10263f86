"""Tokenisation of a folder of raw text by sacremoses; the ending of a file is its language.

Punctuation is normalised first, unless --raw-punctuation. White space of any kind becomes one
space. Files that exist are kept. Text that looks tokenised already is warned of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from fairseq_ext.errors import UsageError
from fairseq_ext.files import list_files
from fairseq_ext.prepare.step import (
    BatchFunction,
    logger,
    map_files,
    read_with_progress,
    step_parser,
)

SYMBOLS = {"<s>", "<pad>", "</s>"}
"""Words that would be read as the begin of a sentence, as padding and as its end."""

UNPRINTED = regex.compile(r"\p{C}")
"""Control, format and unassigned characters, of any version of Python the same."""

TOKENISED = regex.compile(r"&(?:amp|apos|quot|lt|gt|bar|bra|ket|#124|#91|#93);|(?<!\S)@-@ |@@ ")
"""Escapes and joints of Moses, and joints of a byte-pair encoding."""
SHARE = 0.005  # of lines with these, from which text counts as tokenised; raw text has some


@dataclass
class MosesPipeline:
    """Steps that turn raw lines of a language into tokens.

    Attributes:
        language: its abbreviations and quotation marks are taken.
        normalise: punctuation is normalised, as by Moses' normalize-punctuation.perl.
        printed: characters that are not printed become spaces.
        hyphens: hyphens within words become the token @-@.
        lowercase: tokens are lower-cased at the end.
    """

    language: str
    normalise: bool = True
    printed: bool = False
    hyphens: bool = False
    lowercase: bool = False

    def __post_init__(self) -> None:
        self.normaliser = MosesPunctNormalizer(self.language)
        self.tokeniser = MosesTokenizer(self.language)

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the tokens of each line, in single spaces."""
        return [self._tokenise(line) for line in lines]

    def _tokenise(self, text: str) -> str:
        if self.normalise:
            text = self.normaliser.normalize(text + "\n")  # the Perl script sees it, too
        if self.printed:
            text = UNPRINTED.sub(" ", text)
        text = self.tokeniser.tokenize(text, aggressive_dash_splits=self.hyphens, return_str=True)
        text = text.strip()  # it ends with a space after a quotation mark
        return text.lower() if self.lowercase else text


def normalise_spaces(lines: list[str]) -> list[str]:
    """Return lines that are tokenised already, with words in single spaces.

    Raises:
        UsageError: a word is one of `SYMBOLS`.
    """
    words = [line.split() for line in lines]
    for line, each in zip(lines, words, strict=True):
        if symbols := SYMBOLS.intersection(each):
            raise UsageError(
                f"the line has the word {min(symbols)} ({line[:60]!r}), which fairseq's "
                "dictionaries have for themselves; take it out of the text"
            )
    return [" ".join(each) for each in words]


def choose_pipeline(language: str, tokenised: bool, **options: bool) -> BatchFunction:
    """Return the function that tokenises lines of a language, with options of `MosesPipeline`."""
    if tokenised:
        return normalise_spaces
    if language not in NonbreakingPrefixes().available_langs.values():
        logger.warning("sacremoses has no abbreviations of '%s' and takes English ones", language)
    return MosesPipeline(language, **options)


def warn_of_tokens(path: Path) -> None:
    """Warn of a file whose lines are tokenised already, since tokens would be split again."""
    total = marked = first = 0
    for total, line in enumerate(read_with_progress("looking at", path), 1):
        if TOKENISED.search(line):
            marked, first = marked + 1, first or total
    if marked > SHARE * total:
        logger.warning(
            "%s: %d of %d lines look tokenised already (first line %d), as by &apos; or @-@, and "
            "are tokenised again; give --tokenised (to prepare_parallel.sh) to keep their tokens",
            *(path.name, marked, total, first),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Tokenise a folder of text."""
    parser = step_parser("tokenise", __doc__)
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder of files NAME.LANGUAGE")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for tokenised files")
    parser.add_argument("--tokenised", action="store_true", help="already: white space alone")
    parser.add_argument("--raw-punctuation", action="store_false", dest="normalise")
    parser.add_argument("--printed", action="store_true", help="what is not printed: a space")
    parser.add_argument("--hyphens", action="store_true", help="split words at them: a @-@ b")
    parser.add_argument("--lowercase", action="store_true")
    args = vars(parser.parse_args(arguments))
    text, out = args.pop("text"), args.pop("out")
    for path in () if args["tokenised"] else list_files(text):
        if not (out / path.name).exists():
            warn_of_tokens(path)
    map_files(text, out, "tokenising", partial(choose_pipeline, **args))


if __name__ == "__main__":
    main()
