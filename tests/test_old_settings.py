"""Settings of early versions are upgraded by one table, when a checkpoint is read."""

from argparse import Namespace

import pytest
import torch
from saved_state import make_state

from fairseq_ext.old_settings import upgrade_settings
from fairseq_ext.safe_loading import read_checkpoint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"head_gate": True}, {"head_gate": "static"}),
        ({"head_gate": "False"}, {"head_gate": "none"}),
        ({"head_gate": "l0", "x": 1}, {"head_gate": "l0", "x": 1}),
        ({"asa_rival": "smart"}, {"asa_baseline": "smart"}),
        ({"asa_rival": "smart", "asa_baseline": "none"}, {"asa_baseline": "smart"}),
        ({"asa_rival": "none", "asa_baseline": "freelb"}, {"asa_baseline": "freelb"}),
        ({}, {}),
    ],
)
def test_settings(old, new):
    before = dict(old)
    assert upgrade_settings(old) == new
    assert old == before


@pytest.mark.parametrize("kind", ["cfg", "namespaces", "args"])
def test_a_checkpoint_is_read_with_settings_as_they_are_called_now(kind, tmp_path):
    model, criterion = {"head_gate": True}, {"_name": "masked_lm_asa", "asa_rival": "smart"}
    state = make_state(model)
    state["cfg"]["criterion"] = criterion
    if kind == "namespaces":
        state["cfg"] = {part: Namespace(**values) for part, values in state["cfg"].items()}
    if kind == "args":
        state |= {"cfg": None, "args": Namespace(arch="transformer_una", **model, **criterion)}
    torch.save(state, tmp_path / "old.pt")
    read = read_checkpoint(tmp_path / "old.pt")
    parts = [read["args"]] * 2 if kind == "args" else map(read["cfg"].get, ("model", "criterion"))
    model, criterion = (p if isinstance(p, dict) else vars(p) for p in parts)
    assert model["head_gate"] == "static" and criterion["asa_baseline"] == "smart"
    assert "asa_rival" not in criterion
