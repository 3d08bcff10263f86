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

CODES = [
    group.split("/")
    for group in """
    aa/aar ab/abk ae/ave af/afr ak/aka am/amh an/arg ar/ara as/asm av/ava ay/aym az/aze ba/bak
    be/bel bg/bul bh bi/bis bm/bam bn/ben bo/bod/tib br/bre bs/bos ca/cat ce/che ch/cha co/cos
    cr/cre cs/ces/cze cu/chu cv/chv cy/cym/wel da/dan de/deu/ger dv/div dz/dzo ee/ewe el/ell/gre
    en/eng eo/epo es/spa et/est eu/eus/baq fa/fas/per ff/ful fi/fin fj/fij fo/fao fr/fra/fre fy/fry
    ga/gle gd/gla gl/glg gn/grn gu/guj gv/glv ha/hau he/heb hi/hin ho/hmo hr/hrv ht/hat hu/hun
    hy/hye/arm hz/her ia/ina id/ind ie/ile ig/ibo ii/iii ik/ipk io/ido is/isl/ice it/ita iu/iku
    ja/jpn jv/jav ka/kat/geo kg/kon ki/kik kj/kua kk/kaz kl/kal km/khm kn/kan ko/kor kr/kau ks/kas
    ku/kur kv/kom kw/cor ky/kir la/lat lb/ltz lg/lug li/lim ln/lin lo/lao lt/lit lu/lub lv/lav
    mg/mlg mh/mah mi/mri/mao mk/mkd/mac ml/mal mn/mon mr/mar ms/msa/may mt/mlt my/mya/bur na/nau
    nb/nob nd/nde ne/nep ng/ndo nl/nld/dut nn/nno no/nor nr/nbl nv/nav ny/nya oc/oci oj/oji om/orm
    or/ori os/oss pa/pan pi/pli pl/pol ps/pus pt/por qu/que rm/roh rn/run ro/ron/rum ru/rus rw/kin
    sa/san sc/srd sd/snd se/sme sg/sag sh/hbs si/sin sk/slk/slo sl/slv sm/smo sn/sna so/som
    sq/sqi/alb sr/srp ss/ssw st/sot su/sun sv/swe sw/swa ta/tam te/tel tg/tgk th/tha ti/tir tk/tuk
    tl/tgl tn/tsn to/ton tr/tur ts/tso tt/tat tw/twi ty/tah ug/uig uk/ukr ur/urd uz/uzb ve/ven
    vi/vie vo/vol wa/wln wo/wol xh/xho yi/yid yo/yor za/zha zh/zho/chi zu/zul
    """.split()
]
"""Codes of languages: of two letters (ISO 639-1), then the same of three (ISO 639-2, 639-3)."""
LANGUAGES = frozenset(code for code, *_ in CODES)
SHORTER = {longer: code for code, *others in CODES for longer in others}


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


def check_comet(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise UsageError for an option of comet if none of these metrics is comet."""
    given = {"--source": args.source, "--comet-model": args.comet_model != MODEL}
    for flag, value in given.items():
        if value and "comet" not in names:
            raise UsageError(f"{flag} is for comet; give --metric comet too, or leave it out")


def choose_language(args: argparse.Namespace) -> str:
    """Return the target language: --target-lang, or the ending of --reference, or "en"."""
    code = args.target_lang
    if code is not None and code not in LANGUAGES and not re.fullmatch("[a-z]{3}", code):
        raise UsageError(
            f"--target-lang is {code} and must be a code of two letters (ISO 639-1), such as de or "
            "vi, or of three (ISO 639-3)"
        )
    return SHORTER.get(code, code) or _language_of(args.reference)


def _language_of(path: Path | None) -> str:
    match = re.search(r"\.(?!gz)([a-z]{2})(\.gz)?$", str(path))
    return match[1] if match and match[1] in LANGUAGES else "en"


def run(args: argparse.Namespace) -> None:
    """Print the scores of all outputs."""
    check_comet(args, metrics.expand_groups(args.metrics or []))
    texts = read_texts(args, {path: path for path in args.outputs})
    translation.check_same_references(texts)
    language = choose_language(args)
    by_name = metrics.score_outputs(args.metrics, texts, args.lowercase, language, args.comet_model)
    scores = [metrics.add_intervals(each) if args.confidence else each for each in by_name.values()]
    show = as_json if args.json else as_table
    print(show(texts, scores, metrics.list_notes(scores, texts, language, args.metrics)), end="")


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
