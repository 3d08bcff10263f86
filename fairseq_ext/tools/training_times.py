"""Training times of task-specific attention, as Jia 2024 compares them.

    python -m fairseq_ext.tools.training_times RUN...

A run is a folder CORPUS/MODE/VARIANT/seed-N. Printed are the seconds of each variant, summed over
corpora and seeds, and their ratio to the variant `mean`. A variant that some corpus lacks is left
out, since its sum would not compare.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fairseq_ext.errors import plain_errors
from fairseq_ext.evaluation.runs import CHECKPOINT, read_facts

BASELINE = "mean"


def summarise_times(seconds: Iterable[tuple[Path, float]]) -> Iterator[str]:
    """Yield a line for each mode and variant, from runs with the seconds of their training."""
    modes: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for run, duration in seconds:
        corpus, mode, variant, _ = run.parts[-4:]
        variant_times = modes[mode][variant]
        variant_times[corpus] = variant_times.get(corpus, 0) + duration
    for mode, variants in modes.items():
        corpora = list(dict.fromkeys(corpus for times in variants.values() for corpus in times))
        totals = {
            name: sum(times.values())
            for name, times in variants.items()
            if len(times) == len(corpora)
        }
        for name, total in totals.items():
            ratio = f", {total / totals[BASELINE]:.3f} of mean" if BASELINE in totals else ""
            yield f"{mode} {name}: {total:,.0f} s of training over {', '.join(corpora)}{ratio}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; see the module's docstring."""
    plain_errors()
    parser = argparse.ArgumentParser(description="Print and compare training times")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    runs = parser.parse_args(arguments).runs
    for line in summarise_times((run, read_facts(run / CHECKPOINT).seconds) for run in runs):
        print(line)


if __name__ == "__main__":
    main()
