"""Raw text to tokens, by sacremoses: every file of a folder, its ending the language.

Punctuation is normalised first, unless --raw-punctuation. White space of any kind becomes one
space. A file that is there already is kept.
"""

import argparse
import logging
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes
from tqdm import tqdm

from fairseq_ext.files import Lines, list_files, read_lines, write_lines
from fairseq_ext.prepare.process_pool import map_lines

logger = logging.getLogger(__name__)


class NotPrinted(dict[int, str]):
    """For `str.translate`: a space for control, format and unassigned characters (category C)."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = " " if unicodedata.category(character).startswith("C") else character
        return self[code]


class Chain:
    """What is done to lines of a language, one step after the other.

    Args:
        normalise: punctuation, as Moses' normalize-punctuation.perl.
        printed: characters that are not printed become spaces.
        hyphens: those within words become the token @-@.
        lowercase: after tokenisation.
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
        self.not_printed = NotPrinted() if printed else None
        self.hyphens, self.lowercase = hyphens, lowercase

    def __call__(self, lines: Lines) -> Lines:
        return [self._line(line) for line in lines]

    def _line(self, text: str) -> str:
        if self.normaliser:
            text = self.normaliser.normalize(text + "\n")  # which the Perl script sees, too
        if self.not_printed is not None:
            text = text.translate(self.not_printed)
        text = self.tokeniser.tokenize(text, aggressive_dash_splits=self.hyphens, return_str=True)
        text = text.strip()  # it ends with a space after a quotation mark
        return text.lower() if self.lowercase else text


def parted(lines: Lines) -> Lines:
    """Words in single spaces, of text that is tokenised already."""
    return [" ".join(line.split()) for line in lines]


def chosen(given: argparse.Namespace, language: str) -> Callable[[Lines], Lines]:
    if given.tokenised:
        return parted
    if language not in NonbreakingPrefixes().available_langs.values():
        logger.warning("sacremoses has no abbreviations of '%s' and takes English ones", language)
    return Chain(
        language,
        normalise=not given.raw_punctuation,
        printed=given.printed,
        hyphens=given.hyphens,
        lowercase=given.lowercase,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.tokenise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder of files NAME.LANGUAGE")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for tokenised files")
    parser.add_argument("--tokenised", action="store_true", help="already: white space alone")
    parser.add_argument("--raw-punctuation", action="store_true")
    parser.add_argument("--printed", action="store_true", help="what is not printed: a space")
    parser.add_argument("--hyphens", action="store_true", help="split words at them: a @-@ b")
    parser.add_argument("--lowercase", action="store_true")
    given = parser.parse_args(arguments)
    for path in list_files(given.text):
        if not (out := given.out / path.name).exists():
            shown = tqdm(read_lines(path), f"tokenising {path.name}", unit=" lines")
            write_lines(out, map_lines(chosen(given, path.suffix[1:]), shown))


if __name__ == "__main__":
    main()
