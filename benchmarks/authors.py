"""Time of a training step, as a multiple of that of a paper's released code.

Both get the same batches of random words without padding, in models of the same shape with random
weights. The peer is the authors' own model in their own loop: forward, backward, torch's AdamW.
Ours is what fairseq-train does with a batch, logs included.

--asa is a clone of https://github.com/gingasan/adversarialSA (Wu et al. 2023): BERT with
adversarial self-attention in all layers, and a classifier. Its code is run as it is, on your
machine: read it first.
"""

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import asa
import measure
import steps
import torch
from deberta import import_transformers
from measure import AGAIN, Aim, Table, Work
from steps import Batch

from fairseq_ext.errors import UsageError

PEER, OURS = "authors", "ours"
SIZES = {"small": (4, 256, 1024, 4), "minilm": (6, 384, 1536, 12), "base": (12, 768, 3072, 12)}
SYMBOLS = dict.fromkeys(SIZES, 8_000)
AIM = 0.85


def label(size: str, length: int) -> str:
    return f"ASA, {size}, {length}"


AIMS = [Aim(label("small", length), OURS, AIM) for length in asa.LENGTHS]


def load(folder: Path) -> ModuleType:
    """Import the authors' module of BERT from a clone.

    Raises:
        UsageError: it is not there.
    """
    if not (folder / "modeling" / "bert.py").is_file():
        raise UsageError(f"--asa is {folder}, which has no modeling/bert.py; give a clone")
    import_transformers()
    models = importlib.import_module("transformers.modeling_utils")
    parts = importlib.import_module("transformers.pytorch_utils")
    # what the authors' version of transformers had, and had there
    models.apply_chunking_to_forward = parts.apply_chunking_to_forward
    base = importlib.import_module("transformers").BertPreTrainedModel
    base.init_weights = lambda model: None
    base.get_head_mask = lambda model, mask, layers: [None] * layers
    base.get_extended_attention_mask = lambda model, mask, *_: (
        (1.0 - mask[:, None, None, :]) * -10_000.0
    )
    sys.path.insert(0, str(folder.absolute()))
    return importlib.import_module("modeling.bert")


def theirs(module: ModuleType, size: str, symbols: int, batches: list[Batch]) -> Work:
    """Return the authors' training step: that of their run_sent_clas.py."""
    layers, width, inner, heads = SIZES[size]
    config = import_transformers().BertConfig(
        vocab_size=symbols,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=max(asa.LENGTHS) + 2,
    )
    model = module.AsaBertForSequenceClassification(config, tau=0.3).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def work(turn: int) -> None:
        tokens = batches[turn]["net_input"]["src_tokens"]
        labels = batches[turn]["target"].view(-1).long()
        loss, _, without, *_ = model(
            tokens, torch.ones_like(tokens), torch.zeros_like(tokens), labels=labels
        )
        loss.backward()
        without.item()
        optimizer.step()
        model.zero_grad()

    return work


def table(size: str, data: Path, args: argparse.Namespace) -> Table:
    """Measure a table with a row for each length."""
    rows, module = [], load(args.asa)
    for length in args.lengths:
        common = [
            str(data / str(length)),
            "--vocabulary",
            str(data),
            "--tokens-per-sample",
            str(length),
        ]
        common += ["--task", "sentence_classification", *steps.shape(SIZES[size])]
        candidate = steps.build_candidate([*common, *asa.ASA.split(), *steps.FLAGS], args)
        batches = steps.read_batches(candidate, args.rounds + measure.WARMUP)
        symbols = len(candidate.task.source_dictionary)
        work = {name: theirs(module, size, symbols, batches) for name in (PEER, AGAIN)}
        work[OURS] = steps.training(candidate, batches)
        seconds = measure.interleave(
            work, PEER, args.rounds, measure.clock(args), args.seed, label(size, length)
        )
        rows.append(measure.compare(label(size, length), seconds, PEER, 1e3))
    return Table(f"Time of a batch, {size}", PEER, "ms", rows)


def parse() -> argparse.Namespace:
    example = "python benchmarks/authors.py --asa adversarialSA --threads 1 --max-tokens 2048"
    parser = steps.build_parser(__doc__, example, "64 sentences of each length", SIZES, ["small"])
    parser.add_argument("--asa", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--lengths", nargs="+", type=int, choices=asa.LENGTHS, default=asa.LENGTHS)
    return parser.parse_args()


def main() -> int:
    args = parse()
    steps.check_lengths(args)
    steps.prepare(args, [*map(str, args.lengths), "dict.txt", "tokenizer.json"])
    with steps.data_folders(args, asa.write_synthetic, SYMBOLS) as folders:
        tables = [table(size, data, args) for size, data in folders.items()]
    return steps.report(args, tables, AIMS)


if __name__ == "__main__":
    sys.exit(main())
