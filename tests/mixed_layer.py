"""A small layer with a mixer of heads."""

import torch
from torch import nn

from fairseq_ext.attention import MIXERS, Attention, HeadGroup
from fairseq_ext.attention.normalisers import build_normaliser

H, D, T = 4, 4, 7


def attention(kind, *groups, site="encoder", layer=1, **further):
    """A layer in which no parameter of the mixer is as it begins."""
    torch.manual_seed(0)
    mixer = MIXERS.build(kind, H, width=D, layer=layer)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.3)
    groups = groups or (HeadGroup(H, normaliser=build_normaliser("softmax", H)),)
    return Attention(H * D, H, site=site, groups=groups, mixer=mixer, **further).double()
