r"""Run commands with bad options and bad files, and judge what they do.

Cases are drawn by a seed: every option of every command and every file that it reads or writes at
least once, then any. A failure is a traceback, a fall into the net of unforeseen errors, an exit
code of 0 that bad input must not have, output that is cut short under its final name, or a minute
without any work. Each failing case is printed as a command that runs it again.

Example:
  python -m tests.fuzz.run --cases 2000 --seed 1
  python -m tests.fuzz.run --seed 1 --case 17
  python -m tests.fuzz.run --cases 300 --only 'ext table'
"""

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]  # for modules that tests share

import warm  # noqa: E402
import warm_server  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=int(os.environ.get("FAIRSEQ_EXT_FUZZ_SEED", 1)))
    add("--cases", type=int, default=int(os.environ.get("FAIRSEQ_EXT_FUZZ_CASES", 2000)))
    add("--every", type=int, default=1, metavar="N", help="each N-th of these cases")
    add("--case", type=int, nargs="+", metavar="N", help="only these, and show what they say")
    add("--only", metavar="NAME", help="only commands whose name has this in it")
    add("--about", metavar="TEXT", help="only cases with this in them")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    add("--folder", type=Path, help="to work in, and to keep")
    add("--list", action="store_true", help="only print the cases")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        failed = run(args, folder.resolve())
    finally:
        if not args.folder and not args.case:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bool(failed))


def run(args: argparse.Namespace, folder: Path) -> int:
    """Run the cases that are asked for, and return the number of those that fail."""
    warm.activate()
    os.environ |= {
        "FAIRSEQ_EXT_SKIP_INSTALL": "1",
        "FAIRSEQ_EXT_CORPORA": "corpora",
        "PYTHONPATH": str(HERE.parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    warm_server.import_everything()
    from .cases import sample
    from .commands import FAIRSEQ
    from .session import Session

    compose_once(FAIRSEQ[0].words())
    gc.freeze()

    begun = time.monotonic()
    session = Session(folder)
    cases = enumerate(sample(session.world, args.seed, args.cases if not args.case else None))
    if args.case:
        cases = _choose(cases, args.case)
    cases = (
        (number, case)
        for number, case in cases
        if number % args.every == 0
        and (args.only or "") in case.command.name
        and (args.about or "") in case.about
    )
    if args.list:
        for number, case in cases:
            print(number, case.command.name, case.about, case.expected)
        return 0
    session.run(cases, args.jobs, args.seed, show=bool(args.case))
    print(session.summarise(time.monotonic() - begun))
    return len(session.failures)


def compose_once(words: list[str]) -> None:
    """Compose the configuration of a training: a second one takes a third of the time."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    parse = options.parse_args_and_arch.__wrapped__  # without checks of the command line
    convert_namespace_to_omegaconf(parse(options.get_training_parser(), words))


def _choose(cases: Iterator, numbers: list[int]) -> Iterator:
    for number, case in cases:
        if number in numbers:
            yield number, case
        if number >= max(numbers):
            return


if __name__ == "__main__":
    main()
