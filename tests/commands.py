"""fairseq-generate on the data of conftest.py, and what commands print and leave."""

import re
import socket

import torch
from conftest import PLUGIN, fairseq


def read_parameters(path):
    return torch.load(path, map_location="cpu", weights_only=True)["model"]


def read_hypotheses(output):
    """Map sentence numbers to (score, text, positional scores) that fairseq-generate printed."""
    found = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.M)
    scores = dict(re.findall(r"^P-(\d+)\t(.*)$", output, re.M))
    return {int(n): (float(s), text, [float(x) for x in scores[n].split()]) for n, s, text in found}


GENERATE = "-s de -t en --beam 3 --cpu --num-workers 0 --max-len-b 12".split()
GENERATE += ["--gen-subset", "valid"]


def generate(data, checkpoint, *args, plugin=PLUGIN, **options):
    common = ["--user-dir", plugin, "--path", checkpoint, *GENERATE, "--max-tokens", 1000]
    return fairseq("generate", data, *common, *args, **options).stdout


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
