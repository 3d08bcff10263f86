"""Deprecated names of `fairseq_ext.attention`: importable, with a warning."""

import importlib
import sys

import pytest
import torch

from fairseq_ext import attention
from fairseq_ext.attention import Attention, AttentionContext, AttentionRecorder, HeadGroup, Inputs
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Frame", AttentionContext),
        ("Heads", HeadGroup),
        ("Listener", AttentionRecorder),
        ("gaussian_heads", build_gaussian_heads),
    ],
)
def test_old_names_are_importable_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=f"{old} is now .*{new.__name__}"):
        assert getattr(attention, old) is new
    with pytest.raises(AttributeError, match="no attribute 'Listeners'"):
        attention.Listeners  # noqa: B018


def test_the_old_module_is_importable_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"attention\.context"):
        old = importlib.import_module("fairseq_ext.attention.inputs")
    assert (old.Frame, old.Listener) == (AttentionContext, AttentionRecorder)
    sys.modules.pop("fairseq_ext.attention.inputs")


def test_recorders_with_the_old_method():
    """Who calls `hear` gets `record`; a subclass that overrides `hear` is asked all the same."""
    recorder, maps = AttentionRecorder(lambda site, layer: [0]), torch.rand(1, 1, 2, 2)
    with pytest.warns(DeprecationWarning, match="record"):
        recorder.hear("encoder", 0, maps)
    assert recorder.maps == {("encoder", 0): maps}
    with pytest.warns(DeprecationWarning, match="record"):

        class Doubled(attention.AttentionRecorder):
            def hear(self, site, layer, maps):
                super().hear(site, layer, 2 * maps)

    module, x = Attention(8, 2, site="encoder"), torch.randn(3, 1, 8)
    mine, plain = (kind(lambda site, layer: [1]) for kind in (Doubled, AttentionRecorder))
    with pytest.warns(DeprecationWarning, match="record"):
        module(x, x, x, Inputs(recorder=mine))
    module(x, x, x, Inputs(recorder=plain))
    torch.testing.assert_close(mine.maps["encoder", 0], 2 * plain.maps["encoder", 0])
