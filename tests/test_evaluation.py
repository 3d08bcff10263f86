"""Scores of generated text, and the facts read from a checkpoint."""

from argparse import Namespace
from fractions import Fraction
from pathlib import Path

import pytest
import sacrebleu
import torch
from torch import nn

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import runs
from fairseq_ext.evaluation.translation import read_hypotheses, score

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
        path = tmp_path / runs.GENERATED
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return write


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("H", ["ein \u0085 mann", "der hund", ""]), ("D", ["ein Mann", "der Hund", ""])],
)
def test_best_hypotheses_in_corpus_order(generated, kind, expected):
    assert read_hypotheses(generated(GENERATED), kind) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GENERATED.replace("H-0", "X-0"), "sentence 0 (1 missing in all)"),
        ("", "sentence 0"),
        ("H-0\t-1.0\tder bahn@@ hof\n", "--remove-bpe"),
        ("H-0\t-1.0\tder bahnhof@@\n", "--remove-bpe"),
        ("H-0\t-1.0\t\u2581der \u2581bahn hof\n", "sentencepiece"),
    ],
)
def test_unusable_output_is_refused(generated, text, said):
    with pytest.raises(UsageError) as refusal:
        read_hypotheses(generated(text))
    assert said in str(refusal.value)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "latin").write_bytes("H-0\t-1\tgrün\n".encode("latin-1"))
    for name in ("latin", "missing"):
        with pytest.raises(UsageError, match=name):
            read_hypotheses(tmp_path / name)


def test_worked_example_of_bleu():
    # n-gram precisions 4/5, 3/4, 2/3 and 1/2; no brevity penalty.
    precisions = [Fraction(n, n + 1) for n in (4, 3, 2, 1)]
    product = precisions[0] * precisions[1] * precisions[2] * precisions[3]
    bleu, _ = score(["a b c d e"], ["a b c d f"])
    assert bleu.value == pytest.approx(100 * float(product) ** 0.25)


def test_scores_are_those_of_sacrebleu_on_tokenised_text():
    hypotheses = ["ein mann , der , wie man sagt , schläft .", "zwei hunde laufen ."]
    references = ["ein mann , der , sagt man , schläft .", "zwei hunde rennen ."]
    bleu, chrf = score(hypotheses, references)
    assert bleu.value == sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none").score
    assert chrf.value == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert "tok:none" in bleu.signature and f"version:{sacrebleu.__version__}" in bleu.signature
    assert "nc:6" in chrf.signature


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_texts_that_do_not_match_are_refused(hypotheses, references):
    with pytest.raises(UsageError, match=f"{len(hypotheses)} translations"):
        score(hypotheses, references)


class Tied(nn.Module):
    """As fairseq's Transformer: shared embeddings, and buffers that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.project = nn.Linear(3, 7, bias=False)
        self.project.weight = self.embed.weight
        self.same_shape = nn.Linear(3, 7)
        self.register_buffer("version", torch.Tensor([3]))
        self.register_buffer("_float_tensor", torch.zeros(1))


@pytest.fixture
def run(tmp_path, generated):
    """A finished run, as far as it is read."""
    generated("H-1\t-1.0\tder hund bellt laut .\nH-0\t-1.0\tein mann schläft hier .\n")
    state = {
        "cfg": {"model": {"_name": "transformer_dna_tiny"}},
        "model": Tied().state_dict(),
        "optimizer_history": [{"num_updates": 3}, {"num_updates": 1650}],
        "extra_state": {"previous_training_time": 333.4},
    }
    torch.save(state, tmp_path / runs.CHECKPOINT)
    return tmp_path, state


def test_tied_matrices_count_once_even_if_they_were_copied():
    """As fairseq saves them from a GPU."""
    state = {name: value.clone() for name, value in Tied().state_dict().items()}
    assert runs.count_parameters(state) == sum(p.numel() for p in Tied().parameters())


def test_facts_of_a_checkpoint(run):
    folder, _ = run
    trained = sum(parameter.numel() for parameter in Tied().parameters())
    assert runs.facts(folder / runs.CHECKPOINT) == ("transformer_dna_tiny", trained, 1650, 333.4)


def test_architecture_of_a_legacy_checkpoint():
    legacy = Namespace(_name="transformer", arch="transformer_iwslt_de_en")
    assert runs.architecture(legacy) == "transformer_iwslt_de_en"
    assert runs.architecture({"_name": "transformer_dna"}) == "transformer_dna"


class Malicious:
    def __reduce__(self):
        return print, ("this ran",)


def test_nothing_in_a_checkpoint_runs(run, capsys):
    folder, state = run
    torch.save({**state, "extra_state": Malicious()}, folder / runs.CHECKPOINT)
    with pytest.raises(UsageError, match="print"):
        runs.facts(folder / runs.CHECKPOINT)
    assert "this ran" not in capsys.readouterr().out


def test_missing_checkpoint_is_refused(tmp_path):
    with pytest.raises(UsageError, match="checkpoint_last.pt"):
        runs.facts(tmp_path / runs.CHECKPOINT)


def test_table_of_a_run(run, capsys):
    folder, _ = run
    reference = folder / "test.de"
    reference.write_text("ein mann schläft hier .\nder hund bellt laut .\n", encoding="utf-8")
    runs.main(["--reference", str(reference), str(folder)])
    header, row, empty, *signatures = capsys.readouterr().out.split("\n")[:-1]
    assert header.split("  ")[0] == "architecture" and header.endswith("training time")
    assert row.split() == ["transformer_dna_tiny", "49", "1,650", "100.00", "100.00"] + [
        *("5", "min", "33", "s")
    ]
    assert len(header) == len(row) and not empty
    assert [line.split(":")[0] for line in signatures] == ["BLEU", "chrF"]
