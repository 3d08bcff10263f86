"""Tokenisation of a folder of raw text by sacremoses; the ending of a file is its language.

Punctuation is normalised first, unless --raw-punctuation. White space of any kind becomes one
space. Files that exist are kept.
"""

import argparse
import logging
import unicodedata
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from fairseq_ext.prepare.process_pool import BatchFunction, map_files
from fairseq_ext.prepare.step import step_parser

logger = logging.getLogger(__name__)


class UnprintedToSpace(dict[int, str]):
    """Table for `str.translate`: control, format and unassigned characters (C) become spaces."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = " " if unicodedata.category(character).startswith("C") else character
        return self[code]


class MosesPipeline:
    """Steps that turn raw lines of a language into tokens.

    Args:
        language: its abbreviations and quotation marks are taken.
        normalise: punctuation is normalised, as by Moses' normalize-punctuation.perl.
        printed: characters that are not printed become spaces.
        hyphens: hyphens within words become the token @-@.
        lowercase: tokens are lower-cased at the end.
    """

    def __init__(
        self,
        language: str,
        *,
        normalise: bool = True,
        printed: bool = False,
        hyphens: bool = False,
        lowercase: bool = False,
    ) -> None:
        self.normaliser = MosesPunctNormalizer(language) if normalise else None
        self.tokeniser = MosesTokenizer(language)
        self.unprinted = UnprintedToSpace() if printed else None
        self.hyphens, self.lowercase = hyphens, lowercase

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the tokens of each line, in single spaces."""
        return [self._tokenise(line) for line in lines]

    def _tokenise(self, text: str) -> str:
        if self.normaliser:
            text = self.normaliser.normalize(text + "\n")  # the Perl script sees it, too
        if self.unprinted is not None:
            text = text.translate(self.unprinted)
        text = self.tokeniser.tokenize(text, aggressive_dash_splits=self.hyphens, return_str=True)
        text = text.strip()  # it ends with a space after a quotation mark
        return text.lower() if self.lowercase else text


def normalise_spaces(lines: list[str]) -> list[str]:
    """Return lines that are tokenised already, with words in single spaces."""
    return [" ".join(line.split()) for line in lines]


def choose_pipeline(args: argparse.Namespace, language: str) -> BatchFunction:
    """Return the function that tokenises lines of a language."""
    if args.tokenised:
        return normalise_spaces
    if language not in NonbreakingPrefixes().available_langs.values():
        logger.warning("sacremoses has no abbreviations of '%s' and takes English ones", language)
    return MosesPipeline(
        language,
        normalise=not args.raw_punctuation,
        printed=args.printed,
        hyphens=args.hyphens,
        lowercase=args.lowercase,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Tokenise a folder of text."""
    parser = step_parser("tokenise", __doc__)
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder of files NAME.LANGUAGE")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for tokenised files")
    parser.add_argument("--tokenised", action="store_true", help="already: white space alone")
    parser.add_argument("--raw-punctuation", action="store_true")
    parser.add_argument("--printed", action="store_true", help="what is not printed: a space")
    parser.add_argument("--hyphens", action="store_true", help="split words at them: a @-@ b")
    parser.add_argument("--lowercase", action="store_true")
    args = parser.parse_args(arguments)
    map_files(args.text, args.out, "tokenising", partial(choose_pipeline, args))


if __name__ == "__main__":
    main()
