"""Scores of translations: what is read, what is compared with what, and the verb `score`."""

import gzip
import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from sacremoses import MosesTokenizer

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import score, translation
from fairseq_ext.evaluation.metrics import METRICS
from fairseq_ext.evaluation.translation import detokenise, pair_texts, read_output

GENERATED = """\
S-1\tthe dog
T-1\tder hund
H-1\t-0.5\tder hund
D-1\t-0.5\tder Hund
P-1\t-0.5 -0.5
H-0\t-0.25\tein \u0085 mann
D-0\t-0.25\tein Mann
H-0\t-0.75\tder mann
H-2\t-1.0\t
D-2\t-1.0\t
Generate test with beam=2: BLEU4 = 1.00
"""


@pytest.fixture
def generated(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "generate-test.txt"
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return write


def test_best_hypotheses_in_corpus_order(generated):
    output = read_output(generated(GENERATED.replace("T-1\tder hund\n", "")))
    assert output.tokens == ["ein \u0085 mann", "der hund", ""]
    assert output.words == ["ein Mann", "der Hund", ""]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GENERATED.replace("H-0", "X-0"), "sentence 0 (1 missing in all)"),
        ("", "is empty"),
        ("S-0\tder bahnhof\n", "sentence 0"),
        ("H-0\t-1.0\tder bahn@@ hof\n", "--remove-bpe"),
        ("H-0\t-1.0\tder bahnhof@@\n", "--remove-bpe"),
        ("H-0\t-1.0\t\u2581der \u2581bahn hof\n", "--remove-bpe=sentencepiece"),
        ("H-0\t-1.0\tder bahn ##hof\n", "--bpe wordpiece"),
    ],
)
def test_unusable_output_is_refused(generated, text, said):
    with pytest.raises(UsageError) as refusal:
        read_output(generated(text))
    assert said in str(refusal.value)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "latin").write_bytes("H-0\t-1\tgrün\n".encode("latin-1"))
    for name in ("latin", "missing"):
        with pytest.raises(UsageError, match=name):
            read_output(tmp_path / name)


# What is read.


def test_lines_of_the_output(generated):
    output = read_output(generated(GENERATED.replace("S-1", "T-0\tein mann\nT-2\tx\nS-1")))
    assert output.words == ["ein Mann", "der Hund", ""]
    assert output.tokens == ["ein \u0085 mann", "der hund", ""]
    assert output.targets == ["ein mann", "der hund", "x"]


def test_output_without_decoding_or_targets(generated):
    """As of fairseq-interactive, or of `grep ^H`."""
    output = read_output(generated("H-1\t-1\tb .\nH-0\t-1\ta .\n"))
    assert output.words == output.tokens == ["a .", "b ."] and output.targets is None


def test_output_of_which_only_d_lines_were_kept(generated):
    assert read_output(generated("D-1\t-1\tb .\nD-0\t-1\ta .\n"))[1:3] == (["a .", "b ."], None)


@pytest.mark.parametrize("cut", ["H-2", "D-2", "T-2", "H-1", "T-0"])
def test_output_that_was_cut_off_is_refused(generated, cut):
    """Also where only the last sentence, by its number, lacks a line."""
    kinds = {kind: "" if kind in "ST" else "-1\t" for kind in "STHD"}
    lines = [f"{kind}-{i}\t{score}x\n" for i in (1, 2, 0) for kind, score in kinds.items()]
    kept = [line for line in lines if not line.startswith(cut)]
    with pytest.raises(UsageError, match=f"no {cut[:2]} line for sentence {cut[2]}"):
        read_output(generated("".join(kept)))


def test_output_without_any_translation_is_refused(generated):
    with pytest.raises(UsageError, match="no H- line for sentence 0"):
        read_output(generated("S-0\ta\nT-0\tb\n"))


def test_plain_text(generated):
    path = generated("Ein Mann.\n\nZwei.\n")
    assert read_output(path) == (path, ["Ein Mann.", "", "Zwei."], None, None, None)


def test_subwords_that_only_d_lines_are_rid_of(generated):
    """As --bpe without --remove-bpe leaves them."""
    output = read_output(generated("H-0\t-1\tbahn@@ hof\nD-0\t-1\tBahnhof\n"))
    assert (output.words, output.tokens) == (["Bahnhof"], None)


# What is compared.


@pytest.mark.parametrize(
    ("language", "tokens", "words"),
    [
        ("de", "ein mann sagt : &quot; ja &quot; , &amp; geht .", 'ein mann sagt: "ja", & geht.'),
        ("de", "ein kurz @-@ ärmliges hemd ( rot ) !", "ein kurz-ärmliges hemd (rot)!"),
        ("en", "it &apos;s a dog &apos;s life .", "it's a dog's life."),
        ("fr", "l&apos; homme d&apos; ici !", "l'homme d'ici !"),
    ],
)
def test_detokenisation(language, tokens, words):
    assert detokenise([tokens], language) == [words]


@pytest.mark.parametrize("language", ["de", "en"])
@pytest.mark.parametrize("name", ["multi30k-en-de/test_2016_flickr", "newstest-en-de/newstest2014"])
def test_tokenised_text_is_told_from_raw_text(corpora, name, language):
    with gzip.open(corpora / f"{name}.{language}.gz", "rt", encoding="utf-8", newline="\n") as text:
        raw = text.read().split("\n")[:300]
    assert translation.detokenise_if_needed(raw, language) == (raw, False)
    tokens = [MosesTokenizer(language).tokenize(line, return_str=True) for line in raw]
    words, tokenised = translation.detokenise_if_needed(tokens, language)
    assert tokenised
    assert sum(a == b for a, b in zip(words, raw, strict=True)) > 0.95 * len(raw)
    # so that either is known to be of one test set
    assert all(map(translation._is_same_text, [token.lower() for token in tokens], raw))
    assert not any(map(translation._is_same_text, tokens, raw[1:]))


def test_entities_in_raw_text_are_punctuation():
    """As newstest2009 has them, and what Moses's tokeniser makes of them."""
    assert translation._is_same_text("zuschlag &amp; amp ; co. ?", "Zuschlag &amp; Co.?")
    assert not translation._is_same_text("zuschlag &amp; co. ?", "Zuschlag & Amp.?")


def test_words_around_unknown_ones_have_an_order():
    assert translation._is_same_text("<<unk>> hund <<unk>> mann .", "Ein Hund, ein Mann.")
    assert not translation._is_same_text("<<unk>> mann <<unk>> hund .", "Ein Hund, ein Mann.")


RAW = ["Ein Mann, der schläft.", 'Sie sagt: "Ja!"', "Zwei Hunde, drei Katzen."]
TOKENS = ["ein mann , der schläft .", "sie sagt : &quot; ja ! &quot;", "zwei hunde , drei katzen ."]
LOWER = [line.lower() for line in RAW]
WRONG = ["ein mann , der läuft .", "sie sagt : &quot; nein ! &quot;", "zwei hunde , drei katzen ."]


REFERENCE = translation.Reference(LOWER, TOKENS, False)


def output(hypotheses=WRONG, targets=TOKENS) -> str:
    """What fairseq-generate prints, longest sentence first."""
    lines = [f"{kind}-{i}\t-1\t{line}" for i, line in enumerate(hypotheses) for kind in "HD"]
    lines += [f"T-{i}\t{line}" for i, line in enumerate(targets or [])]
    return "".join(f"{line}\n" for line in reversed(lines))


def test_each_score_has_its_texts(generated):
    found = read_output(generated(output()))
    words = ["ein mann, der läuft.", 'sie sagt: "nein!"', "zwei hunde, drei katzen."]
    raw = pair_texts(found, translation.Reference(RAW, None, True), "de")
    assert raw == ((words, RAW), (WRONG, TOKENS), True, True, None)
    assert pair_texts(found, None, "de") == ((words, LOWER), (WRONG, TOKENS), False, True, None)


def test_plain_text_may_be_tokenised(generated):
    texts = pair_texts(read_output(generated("".join(f"{x}\n" for x in WRONG))), REFERENCE, "de")
    assert texts.tokens == (WRONG, TOKENS) and texts.words.references == LOWER


def test_text_that_was_never_tokenised_has_no_tokens(generated):
    """As with sentencepiece: nothing is detokenised."""
    texts = pair_texts(read_output(generated(output(LOWER, LOWER))), None, "de")
    assert texts == ((LOWER, LOWER), None, False, False, None)


def test_decoded_text_stays_as_it_is(generated):
    """--tokenizer moses decodes T- and D- lines; tokens of the reference are then unknown."""
    text = "".join(
        f"H-{i}\t-1\t{WRONG[i]}\nD-{i}\t-1\t{LOWER[i]}\nT-{i}\t{LOWER[i]}\n" for i in range(3)
    )
    texts = pair_texts(read_output(generated(text)), None, "de")
    assert texts == ((LOWER, LOWER), None, False, False, None)


@pytest.mark.parametrize("change", ["{} ", " {}", "\u00a0{}", None])
def test_blanks_make_no_tokens(generated, change):
    """Raw text may end in blanks, or have two or wide ones between words."""
    raw = [line.replace(" ", "  ") if change is None else change.format(line) for line in RAW]
    assert translation.detokenise_if_needed(raw, "de") == (raw, False)
    found = pair_texts(
        read_output(generated(output())), translation.Reference(raw, None, True), "de"
    )
    assert found.tokens == (WRONG, TOKENS) and found.raw


@pytest.mark.parametrize("targets", [LOWER, None])
def test_raw_hypotheses_are_no_tokens(generated, targets):
    """A model of raw text has no tokens to compare with those of a reference."""
    text = pair_texts(read_output(generated(output(LOWER, targets))), REFERENCE, "de")
    assert text == ((LOWER, LOWER), None, False, True, None)


def test_tokenised_targets_vouch_for_hypotheses_without_punctuation(generated):
    poor = ["ein mann", "ein mann", "hunde"]
    targets = [line.replace("mann", "<<unk>>") for line in TOKENS]
    for given in (targets, TOKENS):
        texts = pair_texts(read_output(generated(output(poor, given))), REFERENCE, "de")
        assert texts.tokens == (poor, TOKENS)


# What is computed.


@pytest.fixture
def run_score(tmp_path, capsys, monkeypatch):
    """`fairseq-ext score` in a folder with these texts; returns the numbers and all it printed."""
    monkeypatch.chdir(tmp_path)
    texts = {"raw.de": RAW, "tok.de": TOKENS, "plain.txt": LOWER, "empty": []}
    for name, lines in texts.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    Path("out.txt").write_text(output(), encoding="utf-8")

    def call(*arguments: str) -> tuple[dict, str]:
        cli.main(["score", *arguments])
        printed = capsys.readouterr().out
        header, *rows = printed.split("\n\n")[0].split("\n")
        names = header.replace("tokenised BLEU", "tokenised").split()
        found = {row.split()[0]: dict(zip(names, row.split(), strict=True)) for row in rows}
        return found, printed

    return call


def test_worked_example_of_bleu(run_score):
    # n-gram precisions 4/5, 3/4, 2/3 and 1/2; no brevity penalty.
    Path("out.txt").write_text("a b c d e\n")
    Path("ref.txt").write_text("a b c d f\n")
    found, _ = run_score("out.txt", "--reference", "ref.txt", "--metrics", "bleu")
    precisions = [Fraction(n, n + 1) for n in (4, 3, 2, 1)]
    product = precisions[0] * precisions[1] * precisions[2] * precisions[3]
    assert found["out.txt"]["BLEU"] == f"{100 * float(product) ** 0.25:.2f}"
    assert found["out.txt"]["sentences"] == "1"


def sacrebleu(hypotheses: list[str], references: list[str], *options: str) -> str:
    Path("hyp").write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8")
    Path("ref").write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-b", "-w", "2", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_scores_are_those_of_sacrebleu_on_its_command_line(run_score):
    metrics = ["bleu", "tokenised-bleu", "chrf", "chrf++", "ter"]
    found, printed = run_score("out.txt", "--reference", "raw.de", "--metrics", *metrics)
    words = detokenise(WRONG, "de")
    scores = found["out.txt"]
    assert scores["BLEU"] == sacrebleu(words, RAW)
    assert scores["tokenised"] == sacrebleu(WRONG, TOKENS, "--tokenize", "none", "--force")
    assert scores["chrF"] == sacrebleu(words, RAW, "-m", "chrf")
    assert scores["chrF++"] == sacrebleu(words, RAW, "-m", "chrf", "--chrf-word-order", "2")
    assert scores["TER"] == sacrebleu(words, RAW, "-m", "ter")
    for name, said in [("BLEU", "tok:13a"), ("tokenised BLEU", "tok:none"), ("chrF++", "nw:2")]:
        assert re.search(rf"^{re.escape(name)}: nrefs:1\|case:mixed\|.*{said}", printed, re.M)
    assert "detokenised by sacremoses" in printed and "for de" in printed
    assert "add --lowercase" in printed and "†" not in printed


def test_without_case(run_score):
    found, printed = run_score("out.txt", "--reference", "raw.de", "--lowercase")
    assert found["out.txt"]["BLEU"] == sacrebleu(detokenise(WRONG, "de"), RAW, "-lc")
    assert "case:lc" in printed and "case:mixed" not in printed and "add --lowercase" not in printed


def test_tokenised_reference_is_detokenised_and_marked(run_score):
    lower, _ = run_score("out.txt", "--reference", "raw.de", "--lowercase")
    for options in (["--reference", "tok.de"], ["--target-lang", "de"]):
        found, printed = run_score("out.txt", *options)
        assert found["out.txt"]["BLEU†"] == lower["out.txt"]["BLEU"]
        assert found["out.txt"]["tokenised"] == lower["out.txt"]["tokenised"]
        assert "not to be compared with published" in printed


@pytest.mark.parametrize(("plain", "tokenised"), [(15, True), (25, False)])
def test_text_with_little_punctuation_may_be_tokenised(plain, tokenised):
    """Headlines and their output have to be told alike, or else their words would differ."""
    lines = ["two dogs run"] * plain + ["kwan 's dog wins"]
    found = translation.detokenise_if_needed(lines, "en")
    assert found == ([*lines[:-1], "kwan's dog wins"] if tokenised else lines, tokenised)


def test_several_outputs(run_score):
    found, _ = run_score("out.txt", "plain.txt", "--reference", "raw.de", "--lowercase")
    assert found["plain.txt"]["BLEU"] == "100.00" and "tokenised" not in found["plain.txt"]


def test_only_lost_case_is_warned_of(run_score):
    Path("cased.txt").write_text("Ein Mann, der schläft.\nSie!\nZwei.\n", encoding="utf-8")
    assert "add --lowercase" not in run_score("cased.txt", "--reference", "raw.de")[1]
    assert "add --lowercase" in run_score("plain.txt", "--reference", "raw.de")[1]


def test_json(run_score, capsys):
    cli.main(["score", "out.txt", "--reference", "raw.de", "--json", "--metrics", "chrf", "bleu"])
    found = json.loads(capsys.readouterr().out)
    (one,) = found["outputs"]
    assert (one["output"], one["sentences"]) == ("out.txt", 3)
    expected, _ = run_score("out.txt", "--reference", "raw.de")
    for name in ("BLEU", "chrF"):
        assert f"{one['scores'][name]:.2f}" == expected["out.txt"][name]
        assert "version:" in found["signatures"][name]


@pytest.mark.parametrize(
    ("name", "language"), [("test.de", "de"), ("test.en.gz", "en"), ("a.gz", "en"), ("x.xx", "en")]
)
def test_language_is_that_of_the_reference(name, language, tmp_path):
    parser = cli.build_parser()
    given = parser.parse_args(["score", "x", "--reference", str(tmp_path / name)])
    assert score.choose_language(given) == language
    for code, chosen in {"vi": "vi", "deu": "de", "chi": "zh", "hsb": "hsb"}.items():
        given = parser.parse_args(["score", "x", "--reference", name, "--target-lang", code])
        assert score.choose_language(given) == chosen


@pytest.mark.parametrize("code", ["German", "xx", "DE", "d", ""])
def test_a_language_that_is_no_code(code, run_score):
    with pytest.raises(UsageError, match=f"--target-lang is {code} and must be a code"):
        run_score("out.txt", "--reference", "raw.de", "--target-lang", code)


def test_a_sum_gives_the_score_of_any_part(generated):
    """What resampling relies on."""
    for kind in METRICS.values():
        if kind.form == "sourced":  # a model, not computed here
            continue
        scorer = kind.make(False, "de")
        numbers = scorer.statistics(LOWER, RAW)
        part = kind.make(False, "de").statistics(LOWER[1:], RAW[1:])
        assert len(numbers) == 3
        assert scorer.value(numbers[1:].sum(0)) == scorer.value(part.sum(0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["out.txt", "--reference", "empty"], "empty is empty"),
        (["empty", "--reference", "raw.de"], "empty is empty"),
        (["none.txt", "--reference", "raw.de"], "none.txt"),
        (["out.txt", "--reference", "none.de"], "none.de"),
        (["plain.txt"], "--reference"),
        (["short.txt", "--reference", "raw.de"], "2 translations and the reference 3"),
        (["out.txt", "--reference", "short.txt"], "3 translations and the reference 2"),
        (["out.txt", "--reference", "other.de"], "another test set: its sentence 1"),
        (["unknown.txt"], "<<unk>>"),
        (["out.txt", "--reference", "unknown.de"], "<<unk>>"),
        (["out.txt", "--reference", "split.de"], "--remove-bpe"),
        (["split.de", "--reference", "raw.de"], "--remove-bpe"),
        (["out.txt", "other.txt"], "different references"),
        (["out.txt", "--metrics", "bleurt"], "'bleurt'; did you mean bleu?"),
        (["plain.txt", "--reference", "raw.de", "--metrics", "tokenised-bleu"], "not known"),
    ],
)
def test_refusals(run_score, capsys, arguments, said):
    texts = {
        "short.txt": "Ein Mann.\nZwei.\n",
        "other.de": f"{RAW[0]}\nEtwas anderes.\n{RAW[2]}\n",
        "unknown.txt": output(targets=["ein <<unk>> , der schläft .", *TOKENS[1:]]),
        "unknown.de": "ein <<unk>> , der schläft .\nb\nc\n",
        "split.de": "ein mann , der schlä@@ ft .\nb\nc\n",
        "other.txt": output(targets=["etwas anderes .", *TOKENS[1:]]),
    }
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refusal:
        cli.main(["score", *arguments])
    assert said in str(refusal.value)
    assert not capsys.readouterr().out


def test_a_tokeniser_that_is_not_installed(run_score, monkeypatch):
    def missing(*_):
        raise RuntimeError("Please install:\n  pip install sacrebleu[ja]")

    monkeypatch.setitem(METRICS, "bleu", METRICS["bleu"]._replace(make=missing))
    with pytest.raises(UsageError, match="BLEU cannot be computed: Please install: pip install"):
        run_score("out.txt", "--reference", "raw.de", "--metrics", "bleu")


def test_unknown_words_in_t_lines_do_not_hide_another_test_set(run_score):
    unknown = ["ein <<unk>> , der schläft .", *TOKENS[1:]]
    Path("out.txt").write_text(output(targets=unknown), encoding="utf-8")
    found, printed = run_score("out.txt", "--reference", "raw.de", "--lowercase")
    assert "tokenised" not in found["out.txt"]  # the tokens of the reference are not known
    Path("out.txt").write_text(output(targets=["eine <<unk>> , der schläft ."] + TOKENS[1:]))
    with pytest.raises(UsageError, match="another test set"):
        run_score("out.txt", "--reference", "raw.de")
