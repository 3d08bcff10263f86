"""Translations, as `fairseq-generate` printed them or as plain text, and their reference."""

import operator
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sacremoses import MosesDetokenizer

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.subword_marks import find_subwords, refuse_subwords
from fairseq_ext.files import read_lines

UNKNOWN = "<<unk>>"  # in a T- line: a word that is not in the dictionary
# Punctuation as Moses writes it, and what it makes of text that is written so already.
ESCAPED = re.compile(r"&(?:amp; ?)*(?:amp|lt|gt|quot|apos|bar|bra|ket|#\d+) ?;")


class Output(NamedTuple):
    """The translations of a test set, in its order.

    Attributes:
        words: as decoded by --bpe and --tokenizer, if these were given.
        tokens: as the model made them; None if they may be otherwise or are split into subwords.
        targets: the reference as the model knows it; None if the output does not hold it.
        sources: None if the output does not hold all of them.
    """

    path: Path
    words: list[str]
    tokens: list[str] | None = None
    targets: list[str] | None = None
    sources: list[str] | None = None


class Reference(NamedTuple):
    """One sentence for each translation.

    Attributes:
        words: as they are written.
        tokens: None if they are not known.
        raw: whether ``words`` is what was given; else tokens were put together again.
    """

    words: list[str]
    tokens: list[str] | None
    raw: bool


class Pair(NamedTuple):
    hypotheses: list[str]
    references: list[str]


class Sourced(NamedTuple):
    hypotheses: list[str]
    references: list[str]
    sources: list[str]


class Texts(NamedTuple):
    """What scores compare.

    Attributes:
        words: text as it is written.
        tokens: None unless those of both sides are known.
        raw: see `Reference`.
        detokenised: whether a side of ``words`` is.
        sources: what was translated, as a reference is kept; None if it is not known.
    """

    words: Pair
    tokens: Pair | None
    raw: bool
    detokenised: bool
    sources: Reference | None = None

    @property
    def sourced(self) -> Sourced | None:
        return Sourced(*self.words, self.sources.words) if self.sources else None

    def is_raw(self, form: str) -> bool:
        """Whether what a form is compared with is as it was written, or tokens meant as tokens."""
        source = form != "sourced" or bool(self.sources and self.sources.raw)
        return form == "tokens" or (self.raw and source)


def read_output(path: Path) -> Output:
    """The output of fairseq-generate or fairseq-interactive, or one translation a line.

    Raises UsageError if it cannot be read, a sentence is missing, or words are still split.
    """
    lines = _read(path)
    found = {kind: _numbered(lines, kind) for kind in "SHDT"}
    if not any(found.values()):
        return Output(path, refuse_subwords(path, lines))
    size = 1 + max(index for texts in found.values() for index in texts)
    given = {k: _complete(path, k, found[k], size) for k in "HDT" if found[k]}
    words = given.get("D") or given.get("H") or _complete(path, "H", {}, size)
    tokens = given.get("H")
    tokens = None if tokens is None or find_subwords(tokens) else tokens
    sources = [found["S"][index] for index in range(size)] if len(found["S"]) == size else None
    return Output(path, refuse_subwords(path, words), tokens, given.get("T"), sources)


def read_reference(path: Path, language: str) -> Reference:
    """One sentence a line, raw or tokenised; raises UsageError as `read_output`."""
    lines = refuse_subwords(path, _read(path))
    if unknown := next((line for line in lines if UNKNOWN in line), None):
        raise UsageError(
            f"{path} holds unknown words ({unknown[:60]!r}), as T- lines do, and is no reference; "
            "give the text that was binarised, or raw text"
        )
    return _reference(lines, language)


def detokenise(lines: Sequence[str], language: str) -> list[str]:
    """Words and punctuation put together as they are written; Moses's escapes are undone."""
    detokeniser = MosesDetokenizer(lang=language)
    return [detokeniser.detokenize(line.split(" ")) for line in lines]


def written(lines: list[str], language: str) -> tuple[list[str], bool]:
    """Text as it is written, and whether it was tokenised.

    To detokenise changes 9 in 10 lines of tokenised text, and 1 in 50 of raw text at most.
    """
    detokenised = detokenise(lines, language)
    tokenised = sum(map(operator.ne, lines, detokenised)) > len(lines) / 2
    return (detokenised, True) if tokenised else (lines, False)


def pair(
    output: Output, reference: Reference | None, language: str, source: Reference | None = None
) -> Texts:
    """An output, its reference and source; without one, its own T- or S- lines take the place.

    Raises:
        UsageError: there is no reference, or it or the source is of another test set.
    """
    own = _own_reference(output, language)
    if reference is None:
        reference = own or _refuse_targets(output)
    else:
        _check_same_test_set(output, reference)
    words, tokenised = written(output.words, language)
    tokens = output.tokens or (output.words if tokenised else None)
    targets = reference.tokens or (own.tokens if own else None)
    both = Pair(tokens, targets) if tokens and targets else None
    detokenised = tokenised or reference.tokens is not None
    source = _check_source(output, source) if source else _own_source(output)
    return Texts(Pair(words, reference.words), both, reference.raw, detokenised, source)


def check_same_references(texts: Mapping[Path, Texts]) -> None:
    """Raise UsageError unless all outputs are compared with the same sentences."""
    (first, one), *others = texts.items()
    for path, other in others:
        if other.words.references != one.words.references:
            raise UsageError(
                f"{first} and {path} hold different references (T- lines); give outputs of one "
                "test set, or the text with --reference"
            )


def _read(path: Path) -> list[str]:
    lines = list(read_lines(path))
    if not lines:
        raise UsageError(f"{path} is empty; give a text with one sentence a line")
    return lines


def _numbered(lines: Sequence[str], kind: str) -> dict[int, str]:
    """What stands in the lines of a kind, the first for each sentence."""
    start = re.compile(rf"{kind}-(\d+)\t" + (r"[^\t]*\t" if kind in "HD" else ""))  # their score
    found: dict[int, str] = {}
    for line in lines:
        if match := start.match(line):
            found.setdefault(int(match[1]), line[match.end() :])
    return found


def _complete(path: Path, kind: str, found: Mapping[int, str], size: int) -> list[str]:
    """The sentences in the corpus' order."""
    if missing := set(range(size)) - found.keys():
        raise UsageError(
            f"{path} has no {kind}- line for sentence {min(missing)} ({len(missing)} missing in "
            "all); give the complete output of fairseq-generate, made without --quiet"
        )
    return [found[index] for index in range(size)]


def _reference(lines: list[str], language: str) -> Reference:
    words, tokenised = written(lines, language)
    return Reference(words, lines if tokenised else None, raw=not tokenised)


def _own_reference(output: Output, language: str) -> Reference | None:
    lines = output.targets
    if lines is None or find_subwords(lines) or any(UNKNOWN in line for line in lines):
        return None
    return _reference(lines, language)._replace(raw=False)


def _own_source(output: Output) -> Reference | None:
    lines = output.sources
    if lines is None or find_subwords(lines) or any("<unk>" in line for line in lines):
        return None
    return _reference(lines, "en")._replace(raw=False)


def _check_source(output: Output, source: Reference) -> Reference:
    if len(output.words) != len(source.words):
        raise UsageError(
            f"{output.path} has {len(output.words)} translations and --source "
            f"{len(source.words)} sentences; give the source of the same test set"
        )
    return source


def _refuse_targets(output: Output) -> Reference:
    if output.targets is None:
        raise UsageError(f"{output.path} holds no reference (T- lines); give one with --reference")
    raise UsageError(
        f"the T- lines of {output.path} hold unknown words ({UNKNOWN}) or subwords and are no "
        "reference; give the text with --reference"
    )


def _check_same_test_set(output: Output, reference: Reference) -> None:
    sizes = len(output.words), len(reference.words)
    if len(set(sizes)) > 1:
        raise UsageError(
            f"{output.path} has {sizes[0]} translations and the reference {sizes[1]} sentences; "
            "give the reference of the same test set, one sentence a line"
        )
    for index, target in enumerate(output.targets or []):
        if not _agree(target, reference.words[index]):
            raise UsageError(
                f"{output.path} was made from another test set: its sentence {index} is "
                f"{target[:60]!r} and that of the reference {reference.words[index][:60]!r}; give "
                "the reference of the same test set"
            )


def _agree(target: str, sentence: str) -> bool:
    """Whether letters and digits are the same, but for unknown words; case does not count."""
    place, text = 0, _letters(sentence)
    parts = [_letters(part) for part in target.split(UNKNOWN)]
    if len(parts) == 1:
        return parts[0] == text
    for part in parts:
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True


def _letters(text: str) -> str:
    folded = unicodedata.normalize("NFKC", ESCAPED.sub("", text)).casefold()
    return "".join(filter(str.isalnum, folded))
