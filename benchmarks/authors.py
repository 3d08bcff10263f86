"""Time of a training step, as a multiple of that of a paper's released code.

Both get the same batches of random words without padding, in models of the same shape with random
weights. The peer is the authors' own model in their own loop. Ours is what fairseq-train does with
a batch, logs included. Their code is run as it is, on your machine's CPU: read it first.

--asa is a clone of https://github.com/gingasan/adversarialSA (Wu et al. 2023): BERT with
adversarial self-attention in all layers, and a classifier, trained by torch's AdamW.

--ag is a clone of https://github.com/ameet-1997/AttentionGuidance (Deshpande & Narasimhan 2020):
RoBERTa on masked words, with one head of each layer guided to the next and one to the previous
token. Model, guidance, clipping and AdamW are those of their fork of transformers. Ours computes
the same loss (--ag-preset released).

Role-guided masks (Wang et al. 2020) have no peer here: their released code is for Keras 2 on
TensorFlow, with which this package has nothing to do. Keras 3 does not run it as it is, and
applies a layer word by word (TimeDistributed) where Keras 2 makes one product.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import asa
import measure
import pretraining
import steps
import torch
from deberta import import_transformers
from measure import AGAIN, Aim, Row, Table, Work
from steps import Batch, Candidate
from stock import as_released

from fairseq_ext.errors import UsageError

PEER, OURS = "authors", "ours"
SIZES = {"small": (4, 256, 1024, 4), "minilm": (6, 384, 1536, 12), "base": (12, 768, 3072, 12)}
SYMBOLS = dict.fromkeys(SIZES, 8_000)
AG = """--arch roberta_una_12 --criterion masked_lm_ag --ag-preset released --ag-alpha 10
    --ag-encoder-heads next:1,prev:1 --ag-decay-updates 1000000 --clip-norm 1""".split()
AG_HEADS = "0,1,1,0"  # the same in their words: to itself, the next, the previous, the first token
FORK = Path("attention_guidance", "src", "transformers")


class Paper(NamedTuple):
    """A measurement against the released code of a paper.

    Attributes:
        limit: the aim of our time over the authors'.
        needs: globs of what a folder of --data has for it.
        load: the authors' code from a clone.
        flags: of our candidate, for a folder of data and a length.
        step: the authors' training step, from their code, the shape, our candidate and batches.
    """

    limit: float
    needs: list[str]
    load: Callable[[Path], Any]
    flags: Callable[[Path, int], list[str]]
    step: Callable[[Any, tuple[int, ...], Candidate, list[Batch]], Work]


def label(paper: str, size: str, length: int) -> str:
    return f"{paper.upper()}, {size}, {length}"


# Adversarial self-attention.


def load_asa(folder: Path) -> ModuleType:
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


def asa_flags(data: Path, length: int) -> list[str]:
    given = [str(data / str(length)), "--vocabulary", str(data), *asa.ASA.split()]
    return [*given, "--task", "sentence_classification"]


def asa_step(
    module: ModuleType, shape: tuple[int, ...], candidate: Candidate, batches: list[Batch]
) -> Work:
    """Return the authors' training step: that of their run_sent_clas.py."""
    config = import_transformers().BertConfig(**sizes(shape, candidate))
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


def sizes(shape: tuple[int, ...], candidate: Candidate) -> dict[str, int]:
    """Return the arguments of a configuration of transformers."""
    names = ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"]
    symbols, positions = len(candidate.task.source_dictionary), max(asa.LENGTHS) + 2
    return {
        **dict(zip(names, shape, strict=True)),
        "vocab_size": symbols,
        "max_position_embeddings": positions,
    }


# Attention guidance.


def load_ag(folder: Path) -> ModuleType:
    """Import the authors' RoBERTa and trainer from a clone, under another name than transformers.

    Raises:
        UsageError: they are not there.
    """
    if not (folder / FORK / "trainer_ag.py").is_file():
        raise UsageError(f"--ag is {folder}, which has no {FORK}/trainer_ag.py; give a clone")
    fork = ModuleType("authors_of_ag")
    # without its __init__, which imports tokenisers of their time
    fork.__path__, fork.__version__ = [str(folder.absolute() / FORK)], ""
    sys.modules[fork.__name__] = fork
    downloads = importlib.util.find_spec("requests") is None
    if downloads:  # of which there are none
        sys.modules["requests"] = ModuleType("requests")
    importlib.import_module(f"{fork.__name__}.modeling_roberta")
    importlib.import_module(f"{fork.__name__}.trainer_ag")
    if downloads:
        del sys.modules["requests"]
    return fork


def ag_flags(data: Path, length: int) -> list[str]:
    return [str(data), *pretraining.FLAGS, *AG]


def ag_step(
    fork: ModuleType, shape: tuple[int, ...], candidate: Candidate, batches: list[Batch]
) -> Work:
    """Return the authors' training step: that of their TrainerAG.train."""
    config = fork.modeling_roberta.RobertaConfig(**sizes(shape, candidate))
    model = fork.modeling_roberta.RobertaForMaskedLM(config)
    trainer = object.__new__(fork.trainer_ag.TrainerAG)  # its __init__ makes folders and logs
    trainer.args = fork.trainer_ag.TrainingArguments(
        "", ag=True, scale=10.0, attn_head_types=AG_HEADS, no_cuda=True
    )
    trainer.model, trainer.optimizers = model, None
    trainer.t_total, trainer.global_step = 1_000_000, 0
    optimizer, scheduler = trainer.get_optimizers(trainer.t_total)
    pad = candidate.task.source_dictionary.pad()
    inputs = [
        {
            "input_ids": batch["net_input"]["src_tokens"],
            "labels": batch["target"].masked_fill(batch["target"] == pad, -100),
        }
        for batch in batches
    ]

    def work(turn: int) -> None:
        trainer._training_step(model, dict(inputs[turn]), optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        trainer.global_step += 1

    return work


PAPERS = {
    "asa": Paper(
        0.85,
        [*map(str, asa.LENGTHS), "dict.txt", "tokenizer.json"],
        *(load_asa, asa_flags, asa_step),
    ),
    "ag": Paper(0.67, ["train*.idx", "dict.txt"], load_ag, ag_flags, ag_step),
}
AIMS = [
    Aim(label(name, "small", length), OURS, paper.limit)
    for name, paper in PAPERS.items()
    for length in asa.LENGTHS
]


def row(name: str, code: Any, size: str, length: int, data: Path, args: argparse.Namespace) -> Row:
    """Measure sequences of one length."""
    paper, title = PAPERS[name], label(name, size, length)
    flags = [*paper.flags(data, length), "--tokens-per-sample", str(length)]
    candidate = steps.build_candidate([*flags, *steps.shape(SIZES[size])], args)
    batches = steps.read_batches(candidate, args.rounds + measure.WARMUP)
    work = {
        each: as_released(paper.step(code, SIZES[size], candidate, batches))
        for each in (PEER, AGAIN)
    }
    work[OURS] = steps.training(candidate, batches)
    seconds = measure.interleave(work, PEER, args.rounds, measure.clock(args), args.seed, title)
    return measure.compare(title, seconds, PEER, 1e3)


def write_synthetic(folder: Path, symbols: int, seed: int) -> None:
    """Write labelled sentences of each length, and lines, in the same words."""
    asa.write_synthetic(folder, symbols, seed)
    pretraining.write_synthetic(folder, symbols, seed)


def parse() -> argparse.Namespace:
    example = "python benchmarks/authors.py --ag AttentionGuidance --threads 1 --max-tokens 2048"
    synthetic = "64 sentences of each length, and random lines"
    parser = steps.build_parser(__doc__, example, synthetic, SIZES, ["small"])
    for name in PAPERS:
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER")
    parser.add_argument("--lengths", nargs="+", type=int, choices=asa.LENGTHS, default=asa.LENGTHS)
    return parser.parse_args()


def main() -> int:
    args = parse()
    chosen = {name: folder for name in PAPERS if (folder := getattr(args, name))}
    if not chosen:
        raise UsageError(f"no clone is given; give {' or '.join(f'--{x} FOLDER' for x in PAPERS)}")
    if args.device != "cpu" or args.precision != "fp32":
        raise UsageError(
            "the authors' code is run on a CPU in fp32; leave out --device and --precision"
        )
    steps.check_lengths(args)
    steps.prepare(args, sorted({need for name in chosen for need in PAPERS[name].needs}))
    loaded = {name: PAPERS[name].load(folder) for name, folder in chosen.items()}
    with steps.data_folders(args, write_synthetic, SYMBOLS) as folders:
        tables = [
            Table(
                f"Time of a batch, {name.upper()}, {size}",
                *(PEER, "ms"),
                [row(name, code, size, length, data, args) for length in args.lengths],
            )
            for name, code in loaded.items()
            for size, data in folders.items()
        ]
    return steps.report(args, tables, AIMS)


if __name__ == "__main__":
    sys.exit(main())
