"""Score translations and headlines: BLEU, chrF, TER, ROUGE, COMET, each with its signature.

An OUTPUT is what fairseq-generate printed, or a text with one translation a line. BLEU, chrF and
TER are of text as it is written: D- lines, detokenised if they were not yet, against --reference,
one raw sentence a line. A tokenised reference, or the T- lines that take its place if there is
none, is detokenised; scores on it are marked, since they do not compare with published ones.

tokenised-bleu is the BLEU of older papers: of tokens, if those of both sides are known (H- lines;
T- lines without unknown words, or a tokenised --reference). compound-split-bleu, usual for WMT14
into German, parts these at hyphens first. rouge is rouge-1, rouge-2 and rouge-l, each the mean F1
of sentences x 100, by stems (rouge-unstemmed: by words); what is no a-z or 0-9, such as #, only
parts words. comet needs the package unbabel-comet and source sentences, of --source or S- lines.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.comet import MODEL
from fairseq_ext.evaluation.layout import as_text, column
from fairseq_ext.evaluation.metrics import (
    DEFAULT,
    Scores,
    known_names,
    notes,
    score,
    with_intervals,
)
from fairseq_ext.evaluation.translation import (
    Texts,
    check_same_references,
    pair,
    read_output,
    read_reference,
)

EXAMPLE = """\
  fairseq-ext score checkpoints/mine/generate-test.txt --reference test.de
  fairseq-ext score a.txt b.txt --reference test.de --lowercase --metrics bleu chrf++ ter
  fairseq-ext score headlines.txt --reference test.title --metrics rouge --confidence"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outputs", nargs="+", type=Path, metavar="OUTPUT")
    add_options(parser)
    parser.add_argument(
        *("--metrics", "--metric"),
        nargs="+",
        metavar="METRIC",
        help=f"of {', '.join(known_names())}; default: {' '.join(DEFAULT)}, as far as they can be "
        "had",
    )
    parser.add_argument(
        "--confidence",
        action="store_true",
        help="add 95%% intervals, by bootstrap resampling of sentences",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What scores need to know."""
    parser.add_argument("--reference", type=Path, metavar="FILE", help="plain text or .gz")
    parser.add_argument(
        "--target-lang",
        metavar="LANG",
        help="for detokenisation; default: the ending of --reference if it has two letters, or en",
    )
    parser.add_argument("--lowercase", action="store_true", help="ignore case")
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help="for comet; default: S- lines, if complete"
    )
    parser.add_argument(
        "--comet-model",
        default=MODEL,
        metavar="MODEL",
        help=f"name, or path of a .ckpt; default: {MODEL}; it is downloaded if need be, and "
        "refused if its file holds anything that could run code",
    )


def language(given: argparse.Namespace) -> str:
    chosen = given.target_lang
    if chosen and not re.fullmatch("[a-z]{2,3}", chosen):
        raise UsageError(f"--target-lang is {chosen} and must be a code, such as de or vi")
    return chosen or _ending(given.reference)


def _ending(path: Path | None) -> str:
    found = re.search(r"\.(?!gz)([a-z]{2})(\.gz)?$", str(path))
    return found[1] if found else "en"


def run(given: argparse.Namespace) -> None:
    texts = texts_of(given, {path: path for path in given.outputs})
    check_same_references(texts)
    lang = language(given)
    found = score(given.metrics, texts, given.lowercase, lang, given.comet_model)
    scores = [with_intervals(each) if given.confidence else each for each in found.values()]
    show = as_json if given.json else as_table
    print(show(texts, scores, notes(scores, texts, lang)), end="")


def texts_of(given: argparse.Namespace, outputs: Mapping[Path, Path]) -> dict[Path, Texts]:
    """What scores compare, of each output by its key."""
    lang = language(given)
    reference = read_reference(given.reference, lang) if given.reference else None
    source = read_reference(given.source, _ending(given.source)) if given.source else None
    return {key: pair(read_output(path), reference, lang, source) for key, path in outputs.items()}


def as_table(texts: Mapping[Path, Texts], scores: Sequence[Scores], said: Sequence[str]) -> str:
    columns = [
        column("output", texts),
        column("sentences", (len(text.words.hypotheses) for text in texts.values())),
    ]
    columns += [column(each.title, texts, partial(_shown, each)) for each in scores]
    return as_text(columns, said)


def _shown(scores: Scores, path: Path) -> str:
    shown = f"{scores.values[path]:.2f}"
    if scores.intervals:
        shown += " [{:.2f}, {:.2f}]".format(*scores.intervals[path])
    return shown


def as_json(texts: Mapping[Path, Texts], scores: Sequence[Scores], said: Sequence[str]) -> str:
    outputs = [
        {
            "output": str(path),
            "sentences": len(text.words.hypotheses),
            "scores": {each.label: each.values[path] for each in scores},
            **_intervals(path, scores),
        }
        for path, text in texts.items()
    ]
    signatures = {each.label: each.signature for each in scores}
    found = {"outputs": outputs, "signatures": signatures, "notes": said}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _intervals(path: Path, scores: Sequence[Scores]) -> dict[str, dict]:
    found = {each.label: each.intervals[path] for each in scores if each.intervals}
    return {"intervals": found} if found else {}
