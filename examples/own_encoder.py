"""Train an encoder of your own with any mechanism, on torch alone: it learns to turn texts around.

pip install ./torch_alone
python examples/own_encoder.py encoder_normaliser=hybrid encoder_head_mixer=talking
"""

import sys

import fairseq_ext_torch.mechanisms  # noqa: F401 (without it there is softmax alone)
import torch
from fairseq_ext_torch.attention import Inputs
from fairseq_ext_torch.attention.building import build_attention
from torch import nn

WIDTH, SYMBOLS, LENGTH = 64, 20, 8
torch.manual_seed(1)
options = dict(given.split("=") for given in sys.argv[1:])
embed, places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
layers = nn.ModuleList([build_attention(WIDTH, 4, options, layer=i, layers=2) for i in range(2)])
norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in layers])
output = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, SYMBOLS))
model = nn.ModuleList([embed, places, layers, norms, output])
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(151):
    tokens = torch.randint(SYMBOLS, (LENGTH, 32))  # [T, B]
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (32,))
    real = torch.arange(LENGTH)[:, None] < lengths
    x = embed(tokens) + places.weight[:, None]  # [T, B, C]
    inputs = Inputs(padding=~real.T)
    for norm, layer in zip(norms, layers, strict=True):
        y = norm(x)
        x = x + layer(y, y, y, inputs, need_weights=False)[0]
    turned = tokens.gather(0, (lengths - 1 - torch.arange(LENGTH)[:, None]) % LENGTH)
    loss = nn.functional.cross_entropy(output(x)[real], turned[real])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
