"""Time of translating by CTranslate2, as a multiple of fairseq-generate's.

CHECKPOINT is a softmax model that export-fairseq takes. Both translate the same sentences of a
split in the same batches, by beam search with the same settings; loading is not timed. The share of
translations that are equal is printed first.
"""

import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import measure
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from measure import AGAIN, Quiet, Table

from fairseq_ext.errors import UsageError
from fairseq_ext.extras import import_extra
from fairseq_ext.interchange.export_fairseq import convert
from fairseq_ext.interchange.new_checkpoint import write_checkpoint
from fairseq_ext.safe_loading import read_checkpoint

EXAMPLE = (
    "python benchmarks/serving.py checkpoints/una/checkpoint_last.pt --data data-bin/mine "
    "--threads 1 --rounds 5"
)
FAIRSEQ, BEAM = "fairseq", 5
QUIET = Quiet(deviation=0.03, spread=0.1)
COMPUTED = ("float32", "int8")

Translations = list[list[str]]


class Fairseq:
    """The search of fairseq-generate on a split."""

    def __init__(self, args: Namespace) -> None:
        (model,), cfg, self.task = load_model_ensemble_and_task(
            [str(args.checkpoint)], {"data": str(args.data)}
        )
        self.models = [model.eval()]
        model.prepare_for_inference_(cfg)
        self.task.load_dataset(args.split)
        data = self.task.dataset(args.split)
        if len(data) < args.sentences:
            raise UsageError(f"--sentences is {args.sentences}, and --split has {len(data)}")
        order = data.ordered_indices()[: args.sentences]
        size = args.batch_size
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        self.batches = [data.collater([data[i] for i in part]) for part in parts]
        search = Namespace(beam=BEAM, max_len_a=0, max_len_b=200, **vars(args))
        self.generator = self.task.build_generator(self.models, search)

    def sources(self) -> list[Translations]:
        """Return the pieces of each batch, without the end."""
        words = self.task.source_dictionary
        rows = ([x[x > words.unk()] for x in b["net_input"]["src_tokens"]] for b in self.batches)
        return [[[words[i] for i in row] for row in each] for each in rows]

    @torch.no_grad()
    def translate(self) -> Translations:
        """Return the best translation of each sentence."""
        words = self.task.target_dictionary
        found = (self.task.inference_step(self.generator, self.models, b) for b in self.batches)
        best = [hypotheses[0]["tokens"][:-1] for batch in found for hypotheses in batch]
        return [[words[i] for i in tokens] for tokens in best]


def load_served(args: Namespace, folder: str) -> dict[str, Any]:
    """Return CTranslate2's model for each way to compute."""
    ctranslate2 = import_extra("ctranslate2", "ctranslate2", "benchmarks/serving.py")
    stock, served = f"{folder}/stock.pt", f"{folder}/served"
    write_checkpoint(convert(read_checkpoint(args.checkpoint), args.checkpoint)[0], Path(stock))
    converter = ctranslate2.converters.FairseqConverter
    converter(stock, str(args.data), unsafe_deserialization=True).convert(served)
    own = {"device": "cpu", "inter_threads": 1, "intra_threads": args.threads}
    return {kind: ctranslate2.Translator(served, compute_type=kind, **own) for kind in COMPUTED}


def serve(model: Any, sources: list[Translations]) -> Translations:
    """Return the best translation of each sentence, as fairseq searches."""
    search = {"beam_size": BEAM, "max_decoding_length": 200, "min_decoding_length": 0}
    found = (model.translate_batch(each, **search) for each in sources)
    return [one.hypotheses[0] for batch in found for one in batch]


def parse() -> Namespace:
    parser = measure.build_parser(__doc__ or "", EXAMPLE, ["cpu"])
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--data", type=Path, required=True, metavar="DATA_BIN")
    parser.add_argument("--split", default="test", help="(default: test)")
    parser.add_argument("--sentences", type=measure.positive, default=200, metavar="N")
    parser.add_argument("--batch-size", type=measure.positive, default=32, metavar="N")
    return parser.parse_args()


def main() -> int:
    args = parse()
    measure.prepare(args)
    fairseq = Fairseq(args)
    sources, expected = fairseq.sources(), fairseq.translate()
    with tempfile.TemporaryDirectory() as folder:
        models = load_served(args, folder)
        candidates = dict.fromkeys((FAIRSEQ, AGAIN), lambda _: fairseq.translate())
        for kind, model in models.items():
            equal = sum(map(list.__eq__, serve(model, sources), expected))
            print(f"{kind}: {equal} of {len(expected)} translations are equal")
            candidates[f"CTranslate2, {kind}"] = lambda _, model=model: serve(model, sources)
        clock = measure.clock(args)
        seconds = measure.interleave(candidates, FAIRSEQ, args.rounds, clock, args.seed, "time")
    row = measure.compare(f"{len(expected)} sentences", seconds, FAIRSEQ, 1.0)
    settings = {"split": args.split, "batch size": str(args.batch_size), "beam": str(BEAM)}
    return measure.report(args, settings, [Table("Translation", FAIRSEQ, "s", [row])], [], QUIET)


if __name__ == "__main__":
    sys.exit(main())
