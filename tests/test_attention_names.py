"""Deprecated names of `fairseq_ext.attention`: importable, with a warning."""

import importlib
import sys

import pytest

from fairseq_ext import attention
from fairseq_ext.attention import AttentionContext, AttentionRecorder, HeadGroup
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
