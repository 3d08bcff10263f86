"""Commands that read text line by line, given very many lines: order, count and memory.

Memory is level if a command needs no more of it for many lines than for a few thousand, but for
what it has to keep: sacrebleu keeps all sentences and their statistics.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from conftest import PLUGIN

HEAD = ["| command | MB of memory | more than of few lines | seconds |", "|---|---|---|---|"]
FEW = 5_000  # lines, from which on memory is to be level
MB = 1 << 20
SLACK = 32 * MB  # by which one run differs from another
SOURCE = re.compile(r"^S-(\d+)\t(.*)$", re.M)


class Reader(NamedTuple):
    """A command that reads lines, and whether its output is right for them."""

    command: str
    is_right: Callable[[Sequence[str], str], bool]
    kept: int = 0  # bytes of a line


def has_all_sources(lines: Sequence[str], out: str) -> bool:
    """Tell whether fairseq-interactive shows each line under its number, in order."""
    return SOURCE.findall(out) == [(str(number), line) for number, line in enumerate(lines)]


def has_a_tag_of_each_word(lines: Sequence[str], out: str) -> bool:
    answers = out.splitlines()
    return [len(answer.split("\t")[0].split()) for answer in answers] == [
        len(line.split()) for line in lines
    ]


def is_of_all_sentences(lines: Sequence[str], out: str) -> bool:
    """Tell whether a text compared with itself has a BLEU of 100 and all of its sentences."""
    (output,) = json.loads(out)["outputs"]
    return output["sentences"] == len(lines) and round(output["scores"]["BLEU"], 6) == 100


READERS = {
    "fairseq-interactive": Reader(
        f"fairseq-interactive translation --user-dir {PLUGIN} --cpu --task translation -s de -t en "
        "--path runs/una/seed-1/checkpoint_last.pt --buffer-size 1000 --batch-size 250 --beam 1 "
        "--max-len-b 2 --input {lines}",
        has_all_sources,
    ),
    "predict": Reader(
        "fairseq-ext predict runs/sequence_tagging/seed-1/checkpoint_last.pt --cpu --input {lines}",
        has_a_tag_of_each_word,
    ),
    "score": Reader(
        "fairseq-ext score {lines} --reference {lines} --json", is_of_all_sentences, kept=4_000
    ),
}


def read_many(world: Path, count: int, chance: random.Random) -> tuple[list[str], list[str]]:
    """Give `count` lines to each command; return rows of a table and what is wrong.

    Args:
        world: the folder of models and binarised text.
        count: of lines.
        chance: draws the words of lines and their number.
    """
    rows, failures = [], []
    words = [line.split()[0] for line in (world / "translation/dict.de.txt").open(encoding="utf-8")]
    lines = [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(count)]
    for name, reader in READERS.items():
        few, many = (measure(world, reader, lines[:most]) for most in (min(FEW, count), count))
        grown = many.bytes - few.bytes
        if not (few.right and many.right):
            failures.append(f"{name} of {count} lines: {many.said or few.said or 'wrong lines'}")
        if grown > SLACK + reader.kept * (count - FEW):
            failures.append(f"{name} of {count} lines takes {grown // MB} MB more than of {FEW}")
        rows.append(f"| {name} | {many.bytes // MB} | {grown // MB} | {many.seconds:.0f} |")
        print(rows[-1], flush=True)
    return rows, failures


class Measured(NamedTuple):
    """The memory and time that a command took, and whether its output is right."""

    right: bool
    bytes: int  # of memory at most
    seconds: float  # of a CPU
    said: str


def measure(world: Path, reader: Reader, lines: Sequence[str]) -> Measured:
    """Run a command in a process of its own, which says how much memory it needed."""
    path, out = world / "many.txt", world / "many.out"
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    program, *words = reader.command.format(lines=path).split()
    with out.open("wb") as file:
        process = subprocess.Popen(
            [Path(sys.executable).parent / program, *words],
            cwd=world,
            stdout=file,
            stderr=subprocess.PIPE,
        )
    assert process.stderr
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    right = not process.returncode and reader.is_right(lines, out.read_text("utf-8"))
    last = said.strip().splitlines()[-1:] if process.returncode else []
    return Measured(right, used.ru_maxrss << 10, used.ru_utime + used.ru_stime, "".join(last))
