"""Encoders with heads of fine-tuning, as classes of transformers: equal logits, and labels."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import slow_but_first
from fairseq import tasks
from hf_encoders import TEXTS
from omegaconf import OmegaConf
from torch import nn

from fairseq_ext.cli import main
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.interchange import import_hf
from fairseq_ext.interchange.new_checkpoint import make_checkpoint
from fairseq_ext.prepare import byte_bpe
from fairseq_ext.tasks.multiple_choice import MultipleChoiceTask
from fairseq_ext.tasks.sentences import SentenceClassificationTask, SentenceRegressionTask
from fairseq_ext.tasks.sequence_tagging import SequenceTaggingTask
from fairseq_ext.tasks.span_extraction import SpanExtractionTask

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64}
SIZES |= {"encoder_attention_heads": 4, "max_positions": 80}
LABELS = ["bad", "fine", "good"]


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """The folder of a byte-level BPE with its dictionary."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "text").mkdir()
    (folder / "text" / "train").write_text("".join(f"{line}\n" for line in TEXTS), "utf-8")
    byte_bpe.prepare(folder / "text", folder / "bpe", folder / "data", size=280)
    shutil.copytree(folder / "bpe", folder / "data" / "bpe")
    return folder / "data"


def build(words: Path, kind: type, labels: list[str], pooling: str, **options) -> tuple:
    """A model with the head of a task, of random parameters, and its checkpoint."""
    model = {"_name": import_hf.ARCHITECTURE, **SIZES, **options}
    state = make_checkpoint(model, {}, words)
    cfg = OmegaConf.create(state["cfg"])
    built = tasks.setup_task(cfg.task).build_model(cfg.model)
    apart = {"_apart": lambda: False, "cfg": SimpleNamespace(pooling=pooling, output="mlp")}
    task = SimpleNamespace(labels=labels, inner=1, **apart)
    built.attach(kind.build_head(task, built.args))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in built.parameters():
            nn.init.normal_(parameter, std=0.2)
    state["cfg"]["model"] |= built.adopted_options()
    state["model"] = built.state_dict()
    state["task_state"] = {"labels": labels, "vocabulary": Vocabulary.load(words).state()}
    return built.eval(), state


CASES = {
    "sentence_classification": ("SequenceClassification", SentenceClassificationTask, LABELS),
    "sentence_regression": ("SequenceClassification", SentenceRegressionTask, []),
    "sequence_tagging": ("TokenClassification", SequenceTaggingTask, LABELS),
    "multiple_choice": ("MultipleChoice", MultipleChoiceTask, ["0", "1"]),
    "span_extraction": ("QuestionAnswering", SpanExtractionTask, ["answered", "unanswered"]),
}
ENCODERS = {
    "roberta": {},
    "bert": {"segments": 2},
    "deberta-v2": {"encoder_scorer": "disentangled", "encoder_positions": "none"},
}


@torch.no_grad()
@pytest.mark.parametrize("task", CASES)
@pytest.mark.parametrize("encoder", slow_but_first(ENCODERS))
def test_heads_of_fine_tuning(encoder, task, words, tmp_path, hugging_face, capsys):
    architecture, kind, labels = CASES[task]
    options = ENCODERS[encoder]
    name = {"_name": "deberta_una"} if encoder.startswith("deberta") else {}
    model, state = build(words, kind, labels, "first", **options, **name)
    state["cfg"]["task"] = {"_name": task, "pooling": "first", "data": str(words)}
    torch.save(state, tmp_path / "model.pt")
    main(["export-hf", str(tmp_path / "model.pt"), str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert ("left out: the score of task_head.out_proj" in said) == (task == "span_extraction")
    theirs = getattr(hugging_face, f"AutoModelFor{architecture}").from_pretrained(tmp_path / "out")
    assert type(theirs).__name__.lower().startswith(encoder.replace("-", ""))
    tokeniser = hugging_face.AutoTokenizer.from_pretrained(tmp_path / "out")
    given = tokeniser(TEXTS[:4], padding=True, return_tensors="pt")
    expected, _ = model(given["input_ids"], task_head=True)
    if task == "multiple_choice":
        given = {name: rows.unflatten(0, (-1, 2)) for name, rows in given.items()}
        expected = expected.view(-1, 2)
    found = theirs.eval()(**given)
    if task == "span_extraction":
        logits = torch.stack([found.start_logits, found.end_logits], -1)
        expected = expected[..., :2]
    else:
        logits = found.logits
    real = given["attention_mask"].bool() if expected.dim() == 3 else ...
    torch.testing.assert_close(logits[real], expected[real], rtol=0, atol=1e-5)
    if labels is LABELS:
        assert theirs.config.id2label == dict(enumerate(labels))
        assert theirs.config.label2id["good"] == 2
    if task == "sentence_regression":
        assert theirs.config.problem_type == "regression"


def test_a_head_that_transformers_has_not_is_left_out(words, tmp_path, capsys):
    _, state = build(words, SentenceClassificationTask, LABELS, "mean")
    state["cfg"]["task"] = {"_name": "sentence_classification", "pooling": "mean"}
    torch.save(state, tmp_path / "model.pt")
    main(["export-hf", str(tmp_path / "model.pt"), str(tmp_path / "out")])
    assert "left out: task_head.output.dense.weight" in capsys.readouterr().out
    assert '"RobertaModel"' in (tmp_path / "out" / "config.json").read_text()
