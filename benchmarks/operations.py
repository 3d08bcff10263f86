"""Operations, waits and Python calls of a step on a GPU, counted without one.

The step is the third one of fairseq's trainer in bf16, or one of its beam search in fp16, on
tensors without numbers (`counting.py`).
Sizes do not matter but for the number of layers. Candidates are those of scripts/alternatives.sh,
those of benchmarks/asa.py for fine-tuning, and fairseq's own model.
"""

import argparse
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import alternatives
import asa
import measure
import pretraining
import steps
import training
from counting import Counts, count_search_step, count_step
from fairseq.sequence_generator import SequenceGenerator
from stock import is_stock, stock_functions

STOCK = "stock"
TODAY = "today"  # the size _today_base, plain
NARROW = (32, 64, 4)  # width, width of the feed-forward layers, heads
WORDS = 0.15  # share of words that are masked
SYMBOLS = 400


def list_translation(layers: int) -> dict[str, list[str]]:
    """Return the flags of each candidate for translation."""
    sizes = [
        flag.replace("encoder", side)
        for side in ("encoder", "decoder")
        for flag in steps.shape((layers, *NARROW))
    ]
    names = {
        STOCK: ["--arch", "transformer_iwslt_de_en"],
        **alternatives.read_candidates("_iwslt_de_en"),
    }
    names[TODAY] = [word.replace("_una_iwslt_de_en", "_una_today_base") for word in names["una"]]
    return {
        name: [*training.FLAGS, "--max-update", "1800", *flags, *sizes]
        for name, flags in names.items()
    }


def list_masked_lm(layers: int) -> dict[str, list[str]]:
    """Return the flags of each candidate for masked words, those of translation in RoBERTa."""
    common = [
        *pretraining.FLAGS,
        "--tokens-per-sample",
        "32",
        "--max-update",
        "1800",
        *steps.shape((layers, *NARROW)),
    ]
    lines = {STOCK: ["--arch", pretraining.STOCK, *pretraining.OBJECTIVE]}
    for name, flags in alternatives.read_candidates("_iwslt_de_en").items():
        words = [re.sub(r"transformer_(\w+)_iwslt_de_en", r"roberta_\1", word) for word in flags]
        lines[name] = [word.replace("label_smoothed_cross_entropy", "masked_lm") for word in words]
    lines[TODAY] = [
        "roberta_una_today_base" if word == "roberta_una" else word for word in lines["una"]
    ]
    return {name: [*common, *flags] for name, flags in lines.items()}


def list_fine_tuning(layers: int) -> dict[str, list[str]]:
    """Return the flags of each candidate for labelled sentences."""
    common = [
        "--vocabulary",
        "DATA",
        "--tokens-per-sample",
        "128",
        "--task",
        "sentence_classification",
    ]
    return {
        name: [*common, *steps.shape((layers, *NARROW)), *flags.split()]
        for name, flags in asa.CANDIDATES.items()
    }


KINDS = {
    "masked_lm": (list_masked_lm, pretraining.write_synthetic, "", WORDS),
    "translation": (list_translation, training.write_synthetic, "", 1.0),
    "fine_tuning": (list_fine_tuning, asa.write_synthetic, "128", 1.0),
    "generation": (list_translation, training.write_synthetic, "", None),
}
"""Kind of step -> candidates, data, their folder, and the share a boolean index of training takes.
"""


def count(kind: str, names: Sequence[str], layers: int, folder: Path) -> dict[str, Counts]:
    """Return the counts of candidates, all of them if none is named."""
    list_lines, write, part, chosen = KINDS[kind]
    lines = list_lines(layers)
    write(folder, SYMBOLS, 1)
    args = SimpleNamespace(device="cpu", precision="bf16", seed=1, max_tokens=256)
    counted = {}
    for name in names or lines:
        flags = [str(folder) if word == "DATA" else word for word in lines[name]]
        candidate = steps.build_candidate([str(folder / part), *flags], args)
        (batch,) = steps.read_batches(candidate, 1)
        with stock_functions() if is_stock(candidate.model) else nullcontext():
            if chosen is None:
                counted[name] = count_search_step(build_generator(candidate), batch)
            else:
                counted[name] = count_step(steps.build_trainer(candidate), batch, chosen)
    return counted


def build_generator(candidate: steps.Candidate) -> SequenceGenerator:
    """Build what fairseq-generate --fp16 searches with."""
    model = candidate.model.half().eval()
    model.prepare_for_inference_(candidate.cfg)
    return candidate.task.build_generator([model], candidate.cfg.generation)


def print_table(counted: Mapping[str, Counts], trace: int) -> None:
    """Print a row for each candidate, and the places that ask for most if `trace` is above 0."""
    columns = ("operations", "waits", "python_calls", "saved_bytes")
    phases = next(iter(counted.values())).phases
    print(f"{'':16}", *(f"{column:>12}" for column in (*columns, *phases)))
    for name, counts in counted.items():
        sums = counts.to_json()
        cells = [sums[column] for column in columns] + [sums["phases"][phase] for phase in phases]
        print(f"{name:16}", *(f"{cell:12,}" for cell in cells))
        for (phase, operation, place), times in counts.places.most_common(trace):
            print(f"    {times:5} {phase:10} {operation:28} {place}")
        for (kind, place), times in counts.waits.most_common() if trace else ():
            print(f"    {times:5} waits      {kind:28} {place}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python benchmarks/operations.py masked_lm stock una --layers 12 --trace",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="candidates (default: all)")
    parser.add_argument("--layers", type=measure.positive, default=12)
    parser.add_argument(
        "--trace", nargs="?", type=measure.positive, const=40, default=0, metavar="N",
        help="print the N places that ask for most, and all waits (default: 40)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    known = KINDS[args.kind][0](args.layers)
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"{args.kind} has no {unknown[0]}; choose from {', '.join(known)}")
    return args


def main() -> int:
    args = parse()
    logging.disable(logging.INFO)
    with TemporaryDirectory() as folder:
        counted = count(args.kind, args.names, args.layers, Path(folder))
    print_table(counted, args.trace)
    if args.json:
        sums = {name: counts.to_json() for name, counts in counted.items()}
        args.json.write_text(json.dumps(sums, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
