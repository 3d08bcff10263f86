"""Translations, printed by `fairseq-generate` or as plain text, and their references."""

import glob
import operator
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from sacremoses import MosesDetokenizer

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.subword_marks import find_subwords, refuse_subwords
from fairseq_ext.files import read_lines

UNKNOWN = "<<unk>>"  # in a T- line: a word that is not in the dictionary
UNKNOWN_SOURCE = "<unk>"  # the same in an S- line
# Punctuation as Moses escapes it, and escapes of text that was escaped before.
ESCAPED = re.compile(r"&(?:amp; ?)*(?:amp|lt|gt|quot|apos|bar|bra|ket|#\d+) ?;")


class Output(NamedTuple):
    """Translations of a test set, in its order.

    Attributes:
        path: the file.
        words: translations, decoded if --bpe and --tokenizer were given.
        tokens: translations as the model made them; None if they are unknown or subwords.
        targets: the reference as the model knows it; None if the output does not hold it.
        sources: source sentences; None if the output does not hold all of them.
    """

    path: Path
    words: list[str]
    tokens: list[str] | None = None
    targets: list[str] | None = None
    sources: list[str] | None = None


class Reference(NamedTuple):
    """One sentence for each translation.

    Attributes:
        words: sentences as people write them.
        tokens: the same, tokenised; None if not known.
        raw: whether ``words`` is the text that was read; otherwise it was detokenised.
    """

    words: list[str]
    tokens: list[str] | None
    raw: bool


class Pair(NamedTuple):
    """Translations and their reference, sentence by sentence."""

    hypotheses: list[str]
    references: list[str]


class Texts(NamedTuple):
    """Texts that scores compare.

    Attributes:
        words: text as people write it.
        tokens: tokenised text; None unless known of both sides.
        raw: whether the reference is raw text; see `Reference`.
        detokenised: whether a side of ``words`` was detokenised.
        sources: the text that was translated; None if not known.
    """

    words: Pair
    tokens: Pair | None
    raw: bool
    detokenised: bool
    sources: Reference | None = None

    @property
    def sourced(self) -> tuple[list[str], list[str], list[str]] | None:
        """Hypotheses, references and source sentences; None if the source is not known."""
        return (*self.words, self.sources.words) if self.sources else None

    def is_raw(self, form: str) -> bool:
        """Return whether a form ("words", "tokens", "sourced") is compared with raw text.

        Tokens count as raw: they are meant to be tokens.
        """
        raw_source = form != "sourced" or bool(self.sources and self.sources.raw)
        return form == "tokens" or (self.raw and raw_source)


def read_output(path: Path) -> Output:
    """Return the output of fairseq-generate or fairseq-interactive, or one translation a line.

    Raises:
        UsageError: it cannot be read, a sentence is missing, or words are still split.
    """
    lines = _read_lines(path)
    sentences = {kind: _read_kind(lines, kind) for kind in "SHDT"}
    if not any(sentences.values()):
        return Output(path, refuse_subwords(path, lines))
    size = 1 + max(index for texts in sentences.values() for index in texts)
    texts = {k: _sort_sentences(path, k, sentences[k], size) for k in "HDT" if sentences[k]}
    words = texts.get("D") or texts.get("H") or _sort_sentences(path, "H", {}, size)
    tokens = texts.get("H")
    if tokens and find_subwords(tokens):
        tokens = None
    source = sentences["S"]
    sources = [source[index] for index in range(size)] if len(source) == size else None
    return Output(path, refuse_subwords(path, words), tokens, texts.get("T"), sources)


def read_reference(path: Path, language: str) -> Reference:
    """Return the sentences of a text, one a line, raw or tokenised.

    Raises:
        UsageError: it cannot be read, holds unknown words, or words are split.
    """
    lines = refuse_subwords(path, _read_lines(path))
    if unknown := next((line for line in lines if UNKNOWN in line), None):
        raise UsageError(
            f"{path} holds unknown words ({unknown[:60]!r}), as T- lines do, and is no reference; "
            "give the text that was binarised, or raw text"
        )
    return _make_reference(lines, language)


def detokenise(lines: Sequence[str], language: str) -> list[str]:
    """Return text with words and punctuation joined, and Moses's escapes undone."""
    detokeniser = MosesDetokenizer(lang=language)
    return [detokeniser.detokenize(line.split(" ")) for line in lines]


def detokenise_if_needed(lines: list[str], language: str) -> tuple[list[str], bool]:
    """Return text as people write it, and whether it was tokenised.

    Text counts as tokenised if detokenisation changes more than one line in twenty. It changes
    nearly all lines of tokenised sentences, one in eight of tokenised headlines, which have little
    punctuation, and one in fifty of raw text at most. What kind of blanks a line has, and how many,
    says nothing.
    """
    detokenised = detokenise(lines, language)
    changed = map(operator.ne, map(str.split, lines), map(str.split, detokenised))
    tokenised = sum(changed) > len(lines) / 20
    return (detokenised, True) if tokenised else (lines, False)


def pair_texts(
    output: Output, reference: Reference | None, language: str, source: Reference | None = None
) -> Texts:
    """Return what scores compare: an output with its reference and source.

    Without a reference or a source, the T- or S- lines of the output take its place.

    Raises:
        UsageError: there is no reference, or it or the source is of another test set.
    """
    own = _own_reference(output.targets, UNKNOWN, language)
    if reference is None:
        reference = own or _refuse_targets(output)
    else:
        _check_same_test_set(output, reference.words)
    words, tokenised = detokenise_if_needed(output.words, language)
    tokens = output.words if tokenised else None
    if output.tokens:
        # tokenised targets vouch for the H- lines of a model that writes no punctuation
        witnesses = (output.targets or [], output.tokens)
        known = any(detokenise_if_needed(lines, language)[1] for lines in witnesses)
        tokens = output.tokens if known else None
    targets = reference.tokens or (own.tokens if own else None)
    both = Pair(tokens, targets) if tokens and targets else None
    detokenised = tokenised or reference.tokens is not None
    if source:
        _check_size(output, source.words, "source")
    else:
        source = _own_reference(output.sources, UNKNOWN_SOURCE, "en")
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


def list_shards(path: Path) -> list[Path]:
    """Return a file of translations, or what stands for it: those of fairseq-generate's shards."""
    shards = path.parent.glob(f"{glob.escape(path.stem)}-shard*{path.suffix}")
    return ([] if path.exists() else sorted(shards)) or [path]


def _read_lines(path: Path) -> list[str]:
    lines = [line for part in list_shards(path) for line in read_lines(part)]
    if not lines:
        raise UsageError(f"{path} is empty; give a text with one sentence a line")
    return lines


def _read_kind(lines: Sequence[str], kind: str) -> dict[int, str]:
    """Return sentence number -> text of the lines of a kind; the first one of a number counts."""
    score = r"[^\t]*\t" if kind in "HD" else ""
    start = re.compile(rf"{kind}-(\d+)\t{score}")
    matches = map(start.match, reversed(lines))
    return {int(match[1]): match.string[match.end() :] for match in matches if match}


def _sort_sentences(path: Path, kind: str, texts: Mapping[int, str], size: int) -> list[str]:
    """Return the sentences in the corpus' order; raise UsageError if one is missing."""
    if missing := set(range(size)) - texts.keys():
        raise UsageError(
            f"{path} has no {kind}- line for sentence {min(missing)} ({len(missing)} missing in "
            "all); give the complete output of fairseq-generate, made without --quiet"
        )
    return [texts[index] for index in range(size)]


def _make_reference(lines: list[str], language: str) -> Reference:
    words, tokenised = detokenise_if_needed(lines, language)
    return Reference(words, lines if tokenised else None, raw=not tokenised)


def _own_reference(lines: list[str] | None, unknown: str, language: str) -> Reference | None:
    """Return lines of an output as a reference, or None if they hold subwords or unknown words."""
    if lines is None or find_subwords(lines) or any(unknown in line for line in lines):
        return None
    return _make_reference(lines, language)._replace(raw=False)


def _check_size(output: Output, sentences: Sequence[str], role: str) -> None:
    if len(output.words) != len(sentences):
        raise UsageError(
            f"{output.path} has {len(output.words)} translations and the {role} {len(sentences)} "
            f"sentences; give the {role} of the same test set, one sentence a line"
        )


def _refuse_targets(output: Output) -> NoReturn:
    if output.targets is None:
        raise UsageError(f"{output.path} holds no reference (T- lines); give one with --reference")
    raise UsageError(
        f"the T- lines of {output.path} hold unknown words ({UNKNOWN}) or subwords and are no "
        "reference; give the text with --reference"
    )


def _check_same_test_set(output: Output, references: Sequence[str]) -> None:
    _check_size(output, references, "reference")
    for index, (target, sentence) in enumerate(zip(output.targets or [], references, strict=False)):
        if not _is_same_text(target, sentence):
            raise UsageError(
                f"{output.path} was made from another test set: its sentence {index} is "
                f"{target[:60]!r} and that of the reference {sentence[:60]!r}; give the reference "
                "of the same test set"
            )


def _is_same_text(target: str, sentence: str) -> bool:
    """Return whether letters and digits are the same, but for case and unknown words."""
    text = _letters(sentence)
    if UNKNOWN not in target:
        return _letters(target) == text
    for part in map(_letters, target.split(UNKNOWN)):
        if part not in text:
            return False
        text = text[text.index(part) + len(part) :]
    return True


def _letters(text: str) -> str:
    folded = unicodedata.normalize("NFKC", ESCAPED.sub("", text)).casefold()
    return "".join(filter(str.isalnum, folded))
