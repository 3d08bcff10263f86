"""Time of tokenising and byte-pair encoding, as multiples of the usual chain of commands.

The chain is Moses' normalize-punctuation.perl and tokenizer.perl (with a thread for each core),
then subword-nmt's learn-bpe and apply-bpe. Ours are fairseq_ext.prepare.tokenise and .subwords with
fastBPE. Both run as commands on the same parallel text, start-up included. Their outputs are
compared line by line: the tokens, then the pieces of the lines that have the same tokens.
"""

import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory

import measure
from measure import AGAIN, Aim, Quiet, Row, Table

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, write_lines
from fairseq_ext.prepare.step import cores
from fairseq_ext.prepare.subwords import best_tool

EXAMPLE = (
    "python benchmarks/recipes.py --moses mosesdecoder/scripts/tokenizer --merges 10000 "
    "--text train.en train.de --rounds 3"
)
CHAIN, OURS = "Moses' Perl and subword-nmt", "ours"
STEPS = ("tokens", "byte-pair encoding", "all")
QUIET = Quiet(deviation=0.05, spread=0.1)
AIM = 3.0  # times as fast
SAME = ""
ABBREVIATION = re.compile(r"(?<!\S)([^\W\d_]+(?:\.[^\W\d_]+)*) \.(?!\S)")  # before a token "."

# Known rules behind a difference, by name; each is given the tokens of both sides that differ.
RULES: dict[str, Callable[[list[str], list[str]], bool]] = {
    "a final period before a quotation mark is a token": lambda perl, ours: (
        "".join(perl) == "".join(ours) and perl[-1].endswith((".&apos;", ".&quot;"))
    ),
    "an abbreviation keeps its period that is in one list alone, as Inc.": lambda perl, ours: (
        abbreviations(perl, ours) or abbreviations(ours, perl)
    ),
    "a right single quotation mark is an apostrophe, no double quote": lambda perl, ours: (
        [token.replace("&quot;", "&apos;") for token in perl] == ours
    ),
}


def abbreviations(joined: list[str], separate: list[str]) -> bool:
    """Return whether words of letters, as Inc. or e.g., keep their period on one side alone."""
    return ABBREVIATION.sub(r"\1.", " ".join(separate)).split() == joined


def run(command: str, folder: Path) -> None:
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"{command!r} failed: {done.stderr.strip()[-300:]}; mend that first")


def chain(moses: Path, languages: list[str], merges: int) -> dict[str, str]:
    """Return the commands of each step of the usual chain."""
    scripts = ["normalize-punctuation.perl", "tokenizer.perl"]
    if not (moses / scripts[1]).is_file():
        scripts[1] = "tokenizer-v1.1.perl"
    if missing := [name for name in scripts if not (moses / name).is_file()]:
        raise UsageError(f"--moses is {moses}, which has no {missing[0]}; give Moses' scripts")
    normalise, tokenise = (f"perl {shlex.quote(str(moses / name))}" for name in scripts)
    tokens = [
        f"{normalise} -l {each} <raw/train.{each} | {tokenise} -q -threads {cores()} -l {each} "
        f">theirs/train.{each}"
        for each in languages
    ]
    both = " ".join(f"theirs/train.{each}" for each in languages)
    pieces = [f"cat {both} | subword-nmt learn-bpe -s {merges} >theirs.codes"]
    pieces += [
        f"subword-nmt apply-bpe -c theirs.codes <theirs/train.{each} >theirs.{each}"
        for each in languages
    ]
    return steps(tokens, pieces)


def ours(merges: int) -> dict[str, str]:
    module = f"{sys.executable} -m fairseq_ext.prepare"
    tokens = ["rm -rf ours", f"{module}.tokenise raw ours"]
    pieces = ["rm -rf pieces ours.codes"]
    pieces += [f"{module}.subwords ours ours.codes pieces --merges {merges} --bpe fastbpe"]
    return steps(tokens, pieces)


def steps(tokens: list[str], pieces: list[str]) -> dict[str, str]:
    return dict(zip(STEPS, map(" && ".join, (tokens, pieces, tokens + pieces)), strict=True))


def timed(commands: Mapping[str, Mapping[str, str]], folder: Path, args: Namespace) -> list[Row]:
    rows = []
    for step in STEPS:
        candidates = {
            name: lambda _, line=each[step]: run(line, folder) for name, each in commands.items()
        }
        candidates[AGAIN] = candidates[CHAIN]
        seconds = measure.interleave(
            candidates, CHAIN, args.rounds, measure.clock(args), args.seed, step
        )
        rows.append(measure.compare(step, seconds, CHAIN, 1.0))
    return rows


def differences(theirs: Path, ours: Path) -> tuple[Counter[str], int]:
    """Count the lines that differ, by their explanation, and all lines."""
    counts: Counter[str] = Counter()
    for pair in zip(read_lines(theirs), read_lines(ours), strict=True):
        one, other = (line.split() for line in pair)
        counts[explanation(one, other) if one != other else SAME] += 1
    same = counts.pop(SAME, 0)
    return counts, same + counts.total()


def explanation(theirs: list[str], ours: list[str]) -> str:
    """Return the names of the rules behind all differences of a line."""
    matcher = SequenceMatcher(None, theirs, ours, autojunk=False)
    names = {
        next((n for n, holds in RULES.items() if holds(theirs[a:b], ours[c:d])), "unexplained")
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    }
    return "; ".join(sorted(names))


def differing_pieces(tokens: tuple[Path, Path], split: tuple[Path, Path]) -> tuple[int, int]:
    """Count the lines of equal tokens whose pieces differ, and all lines of equal tokens."""
    lines = zip(*map(read_lines, (*tokens, *split)), strict=True)
    words = (tuple(map(str.split, each)) for each in lines)
    same = [one == other for first, second, one, other in words if first == second]
    return same.count(False), len(same)


def compared(folder: Path, languages: list[str]) -> dict[str, str]:
    facts = {}
    for language in languages:
        name = f"train.{language}"
        tokens = folder / "theirs" / name, folder / "ours" / name
        counts, total = differences(*tokens)
        reasons = "; ".join(f"{count:,}: {why}" for why, count in counts.most_common())
        facts[f"lines of {language}"] = (
            f"{total:,}, different {counts.total():,}. {reasons}".strip()
        )
        split = folder / f"theirs.{language}", folder / "pieces" / name
        other, same = differing_pieces(tokens, split)
        facts[f"pieces of {language}"] = f"{same:,} lines of the same tokens, different {other:,}"
    return facts


def speeds(rows: Sequence[Row], tokens: int) -> dict[str, str]:
    """Return tokens a second of each step, by the medians."""
    return {
        f"tokens a second, {row.label}": f"{CHAIN} {tokens / row.peer:,.0f}, "
        f"{OURS} {tokens / row.peer / row.ratios[OURS].median:,.0f}"
        for row in rows
    }


def count(paths: Iterable[Path]) -> int:
    """Count the words of files, separated by white space."""
    return sum(len(line.split()) for path in paths for line in read_lines(path))


def main() -> int:
    parser = measure.build_parser(__doc__ or "", EXAMPLE, ["cpu"])
    parser.add_argument("--text", type=Path, nargs=2, required=True, metavar="FILE.LANGUAGE")
    parser.add_argument("--moses", type=Path, required=True, metavar="FOLDER", help="its scripts")
    parser.add_argument("--merges", type=measure.positive, default=10_000)
    args = parser.parse_args()
    measure.prepare(args)
    args.clock = "wall"  # of commands
    if best_tool() != "fastbpe" or not shutil.which("perl"):
        raise UsageError("fastBPE and perl are needed and one is missing; install it first")
    languages = [path.name.removesuffix(".gz").rpartition(".")[2] for path in args.text]
    if languages[0] == languages[1]:
        raise UsageError(f"--text has two files of '{languages[0]}'; give two languages")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for path, language in zip(args.text, languages, strict=True):
            write_lines(folder / "raw" / f"train.{language}", read_lines(path))
        (folder / "theirs").mkdir()
        commands = {
            CHAIN: chain(args.moses.absolute(), languages, args.merges),
            OURS: ours(args.merges),
        }
        rows = timed(commands, folder, args)
        words = count(args.text)
        tokens = count((folder / "ours").iterdir())
        facts = {"text": f"{words:,} words, {tokens:,} tokens", **speeds(rows, tokens)}
        facts |= compared(folder, languages)
    table = Table("Time of a step", CHAIN, "s", rows)
    aims = [Aim("all", OURS, 1 / AIM)]
    return measure.report(args, facts, [table], aims, QUIET)


if __name__ == "__main__":
    sys.exit(main())
