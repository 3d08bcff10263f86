"""Score translations and headlines: BLEU, chrF, TER, ROUGE, COMET, each with its signature.

An OUTPUT is the output of fairseq-generate, or a text with one translation a line. BLEU, chrF and
TER compare text as people write it: D- lines, detokenised if they are tokenised, with --reference,
one raw sentence a line. Without --reference, the T- lines of the output take its place. These lines
and a tokenised reference are detokenised; scores on them are marked, since published scores are of
raw text.

tokenised-bleu is the BLEU of older papers. It compares tokens, if they are known on both sides (H-
lines; T- lines without unknown words, or a tokenised --reference). compound-split-bleu, usual for
WMT14 into German, splits these tokens at hyphens first. rouge is rouge-1, rouge-2 and rouge-l, each
the mean F1 of sentences x 100. It compares stems, rouge-unstemmed words; all characters but a-z and
0-9, such as #, only separate words. comet runs the command comet-score of COMET (pipx install
unbabel-comet: an environment of its own) and needs source sentences, of --source or S- lines.

Example:
  fairseq-ext score checkpoints/mine/generate-test.txt --reference test.de
  fairseq-ext score a.txt b.txt --reference test.de --lowercase --metrics bleu chrf++ ter
  fairseq-ext score headlines.txt --reference test.title --metrics rouge --confidence
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import metrics, translation
from fairseq_ext.evaluation.corpus_scorers import MODEL
from fairseq_ext.evaluation.layout import as_text, make_column
from fairseq_ext.evaluation.metrics import Scores
from fairseq_ext.evaluation.translation import Texts, pair_texts, read_output, read_reference

LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv
    cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr
    ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw
    ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv
    ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq
    sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh
    yi yo za zh zu
    """.split()
)
"""Codes of languages, ISO 639-1."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext score`."""
    add = parser.add_argument
    add("outputs", nargs="+", type=Path, metavar="OUTPUT")
    add_scoring_options(parser)
    default = f"default: {' '.join(metrics.DEFAULTS)}, as far as they can be had"
    names = f"of {', '.join(metrics.NAMES)}; {default}"
    add("--metrics", "--metric", nargs="+", metavar="METRIC", help=names)
    intervals = "add 95%% intervals, by bootstrap resampling of sentences"
    add("--confidence", action="store_true", help=intervals)
    add("--json", action="store_true", help="print JSON instead of a table")


def add_scoring_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what outputs are compared with, and how."""
    add = parser.add_argument
    add("--reference", type=Path, metavar="FILE", help="plain text or .gz")
    default = "default: the ending of --reference if it has two letters, or en"
    add("--target-lang", metavar="LANG", help=f"for detokenisation; {default}")
    add("--lowercase", action="store_true", help="ignore case")
    add("--source", type=Path, metavar="FILE", help="for comet; default: S- lines, if complete")
    known = f"name, or path of a .ckpt that holds nothing that could run code; default: {MODEL}"
    add("--comet-model", default=MODEL, metavar="MODEL", help=known)


def choose_language(args: argparse.Namespace) -> str:
    """Return the target language: --target-lang, or the ending of --reference, or "en"."""
    code = args.target_lang
    if code and code not in LANGUAGES and not re.fullmatch("[a-z]{3}", code):
        raise UsageError(
            f"--target-lang is {code} and must be a code of two letters (ISO 639-1), such as de or "
            "vi, or of three (ISO 639-3)"
        )
    return code or _language_of(args.reference)


def _language_of(path: Path | None) -> str:
    match = re.search(r"\.(?!gz)([a-z]{2})(\.gz)?$", str(path))
    return match[1] if match and match[1] in LANGUAGES else "en"


def run(args: argparse.Namespace) -> None:
    """Print the scores of all outputs."""
    texts = read_texts(args, {path: path for path in args.outputs})
    translation.check_same_references(texts)
    language = choose_language(args)
    by_name = metrics.score_outputs(args.metrics, texts, args.lowercase, language, args.comet_model)
    scores = [metrics.add_intervals(each) if args.confidence else each for each in by_name.values()]
    show = as_json if args.json else as_table
    print(show(texts, scores, metrics.list_notes(scores, texts, language)), end="")


def read_texts(args: argparse.Namespace, outputs: Mapping[Path, Path]) -> dict[Path, Texts]:
    """Return what scores compare, for each output by its key."""
    language = choose_language(args)
    reference = read_reference(args.reference, language) if args.reference else None
    source = read_reference(args.source, _language_of(args.source)) if args.source else None
    pair = partial(pair_texts, reference=reference, language=language, source=source)
    return {key: pair(read_output(path)) for key, path in outputs.items()}


def as_table(texts: Mapping[Path, Texts], scores: Sequence[Scores], notes: Sequence[str]) -> str:
    """Return scores as text, a row for each output."""
    sentences = (len(text.words.hypotheses) for text in texts.values())
    columns = [make_column("output", texts), make_column("sentences", sentences)]
    columns += [make_column(each.title, texts, partial(_show, each)) for each in scores]
    return as_text(columns, notes)


def _show(scores: Scores, path: Path) -> str:
    text = f"{scores.values[path]:.2f}"
    if scores.intervals:
        text += " [{:.2f}, {:.2f}]".format(*scores.intervals[path])
    return text


def as_json(texts: Mapping[Path, Texts], scores: Sequence[Scores], notes: Sequence[str]) -> str:
    """Return scores, signatures and notes as a JSON object."""
    outputs = []
    for path, text in texts.items():
        output = {
            "output": str(path),
            "sentences": len(text.words.hypotheses),
            "scores": {each.label: each.values[path] for each in scores},
        }
        if intervals := {each.label: each.intervals[path] for each in scores if each.intervals}:
            output["intervals"] = intervals
        outputs.append(output)
    signatures = {each.label: each.signature for each in scores}
    content = {"outputs": outputs, "signatures": signatures, "notes": notes}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
