"""Score translations with sacrebleu: BLEU, chrF, TER, each with its signature.

An OUTPUT is what fairseq-generate printed, or a text with one translation a line. BLEU, chrF and
TER are of text as it is written: D- lines, detokenised if they were not yet, against --reference,
one raw sentence a line. A tokenised reference, or the T- lines that take its place if there is
none, is detokenised; scores on it are marked, since they do not compare with published ones.
tokenised-bleu is the BLEU of older papers: of tokens, if those of both sides are known (H- lines;
T- lines without unknown words, or a tokenised --reference).
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_ext.evaluation.layout import as_text, column
from fairseq_ext.evaluation.metrics import DEFAULT, METRICS, Scores, notes, score
from fairseq_ext.evaluation.translation import (
    Texts,
    check_same_references,
    pair,
    read_output,
    read_reference,
)

EXAMPLE = """\
  fairseq-ext score checkpoints/mine/generate-test.txt --reference test.de
  fairseq-ext score a.txt b.txt --reference test.de --lowercase --metrics bleu chrf++ ter"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outputs", nargs="+", type=Path, metavar="OUTPUT")
    add_options(parser)
    parser.add_argument(
        "--metrics",
        nargs="+",
        metavar="METRIC",
        help=f"of {', '.join(METRICS)}; default: {' '.join(DEFAULT)}, as far as they can be had",
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


def language(given: argparse.Namespace) -> str:
    found = re.search(r"\.(?!gz)([a-z]{2})(\.gz)?$", str(given.reference))
    return given.target_lang or (found[1] if found else "en")


def run(given: argparse.Namespace) -> None:
    lang = language(given)
    reference = read_reference(given.reference, lang) if given.reference else None
    texts = {path: pair(read_output(path), reference, lang) for path in given.outputs}
    check_same_references(texts)
    scores = list(score(given.metrics, texts, given.lowercase, lang).values())
    show = as_json if given.json else as_table
    print(show(texts, scores, notes(scores, texts, lang)), end="")


def as_table(texts: Mapping[Path, Texts], scores: Sequence[Scores], said: Sequence[str]) -> str:
    columns = [
        column("output", texts),
        column("sentences", (len(text.words.hypotheses) for text in texts.values())),
    ]
    columns += [column(each.title, each.values.values(), "{:.2f}".format) for each in scores]
    return as_text(columns, said)


def as_json(texts: Mapping[Path, Texts], scores: Sequence[Scores], said: Sequence[str]) -> str:
    outputs = [
        {
            "output": str(path),
            "sentences": len(text.words.hypotheses),
            "scores": {each.label: each.values[path] for each in scores},
        }
        for path, text in texts.items()
    ]
    signatures = {each.label: each.signature for each in scores}
    found = {"outputs": outputs, "signatures": signatures, "notes": said}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
