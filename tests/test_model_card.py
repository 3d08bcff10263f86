"""Model cards: the facts of a checkpoint, and the scores of a record."""

from pathlib import Path

import pytest
import torch

from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import model_card

RECORD = """
data = "multi30k"
command = "fairseq-train …"
commit = "abc1234"
remarks = ["BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"]
columns = ["side", "repetition", "BLEU"]
runs = [["una", "seed 1", 30.294], ["una", "seed 2", 31.0]]
[measures.BLEU]
title = "BLEU (test)"
digits = 2
better = "higher"
"""


def test_a_card_shows_settings_and_scores_with_their_signature(tmp_path):
    (tmp_path / "record.toml").write_text(RECORD, "utf-8")
    record = model_card.read_results(tmp_path / "record.toml")
    cfg = {
        "model": {"_name": "transformer_una"},
        "task": {"_name": "translation", "data": "data-bin/mine"},
        "optimization": {"lr": [5e-4], "update_freq": [4]},
        "common": {"seed": 3},
    }
    tied = torch.ones(4, 3)
    state = {"cfg": cfg, "model": {"a": tied, "b": tied}, "optimizer_history": [{"num_updates": 9}]}
    config = {"architectures": ["FSMTForConditionalGeneration"], "langs": ["en", "de"]}
    model_card.write_card(state, config, record, tmp_path / "README.md")
    lines = (tmp_path / "README.md").read_text("utf-8").splitlines()
    front = lines[1 : lines.index("---", 1)]
    assert {"pipeline_tag: translation", "language: [en, de]"} <= {*front}
    for row in (
        *("| data | data-bin/mine |", "| parameters | 12 |", "| updates | 9 |", "| seed | 3 |"),
        *("| learning rate | 0.0005 |", "| batches per update | 4 |"),
        *("| side | repetition | BLEU (test) |", "| una | seed 1 | 30.29 |"),
        *("| una | seed 2 | 31.00 |", "- commit: abc1234"),
        "- BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    ):
        assert row in lines, row
    model_card.write_card(state, config, {}, tmp_path / "README.md")
    assert "## Results" not in (tmp_path / "README.md").read_text("utf-8")


def test_a_record_without_results(tmp_path):
    (tmp_path / "record.toml").write_text('title = "Speed"\n')
    with pytest.raises(UsageError, match="record.toml has no columns, so that a card cannot show"):
        model_card.read_results(tmp_path / "record.toml")
    with pytest.raises(UsageError, match="nothing.toml is not there; give a record"):
        model_card.read_results(Path("nothing.toml"))
