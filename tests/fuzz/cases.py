"""Cases: one option or one file of one command, drawn by a seed."""

import random
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.commands.ranges import find_range

from .commands import COMMANDS, Command
from .files import PRINTED, Fault, list_accidents, list_read, list_written
from .options import EITHER, REFUSED, WORKS, Change, Option, list_changes, list_options
from .ranges import find_own_range

ACCIDENTS = {c.name for c in COMMANDS if c.works and not c.program.endswith(".sh")}
"""Commands that accidents happen to; in a script they may meet a program of others."""
PAIRS = 0.1  # share of further cases with two options at once


class Target(NamedTuple):
    """What a case is about: an option, or a file that is read or written."""

    command: Command
    option: Option | None = None
    read: str = ""
    written: str = ""


class Case(NamedTuple):
    """A command with changes of its words, or a fault of one of its files."""

    command: Command
    about: str
    words: tuple[str, ...]
    expected: str
    file: str = ""
    fault: Fault | None = None

    def prepare(self, world: Path, folder: Path) -> None:
        """Copy what the command needs into a folder, and make the fault."""
        folder.mkdir(parents=True)
        for name in self.command.needs(world):
            copy = shutil.copytree if (world / name).is_dir() else shutil.copy
            copy(world / name, folder / name)
        if self.fault:
            self.fault.make(folder / self.file)


def sample(world: Path, seed: int, count: int | None = None) -> Iterator[Case]:
    """Yield cases: first one for each option and each file, then any."""
    chance = random.Random(seed)
    targets = list_targets(world)
    first = [chance.choice(group) for group in targets.values()]
    chance.shuffle(first)
    groups = list(targets.values())

    def draw() -> Iterator[Case]:
        for target in first:
            yield make_case(target, chance)
        while True:
            yield make_case(chance.choice(chance.choice(groups)), chance)

    return islice(draw(), count)


def list_targets(world: Path) -> dict[tuple[str, ...], list[Target]]:
    """Return targets in groups that are one option, or one file, of several commands."""
    targets = defaultdict(list)
    for command in COMMANDS:
        family = command.name if not command.program.startswith("fairseq-") else command.program
        family = "fairseq" if family in SAME else command.name if "ext" in family else family
        for option in list_options(command):
            targets[family, option.flag].append(Target(command, option))
        for name in command.files(world):
            targets[command.name, "reads", name].append(Target(command, read=name))
        for name in command.writes.split() if command.works else ():
            targets[command.name, "writes", name].append(Target(command, written=name))
        if command.name in ACCIDENTS:
            targets[command.name, "accident"].append(Target(command))
        if command.prints:
            targets[command.name, "writes", "-"].append(Target(command, written="-"))
    return targets


SAME = "train generate interactive validate eval-lm preprocess".split()
SAME = [f"fairseq-{name}" for name in SAME]
"""Programs that share most of their options."""


def make_case(target: Target, chance: random.Random) -> Case:
    """Draw a fault for a target."""
    if target == Target(target.command):
        fault = chance.choice(list_accidents(chance))
        return Case(target.command, fault.about, tuple(target.command.words()), EITHER, "", fault)
    if target.option is None:
        return _make_fault(target, chance)
    command, option = target.command, target.option
    change = chance.choice(list_expected(command, option))
    changes = [change]
    if chance.random() < PAIRS:
        other = chance.choice(list_options(command))
        changes.append(chance.choice(list_changes(other)))
    words = _apply(command.words(), changes)
    about = " ".join(_shorten(change) for change in changes)
    expected = change.expected
    if len(changes) == 2:
        bad = REFUSED in {each.expected for each in changes}
        expected = REFUSED if bad and not any(each.replace for each in changes) else EITHER
    if not command.works and expected != EITHER:
        expected = REFUSED
    return Case(command, about, tuple(words), expected)


def list_expected(command: Command, option: Option) -> list[Change]:
    """Return changes by an option, with what the table of ranges expects of numbers."""
    accepted = find_range(option.name) if option.name else find_own_range(command, option)
    if accepted is None:
        return list_changes(option)
    changes = []
    for change in list_changes(option):
        try:
            number = float(change.add[-1].partition("=")[2] or change.add[-1])
        except ValueError:
            changes.append(change)
            continue
        if change.expected != EITHER and not option.name:  # not written as such a number
            changes.append(change)
            continue
        inside = getattr(accepted, "inside", WORKS)
        expected = inside if accepted.accepts(number) else REFUSED
        changes.append(change._replace(expected=expected))
    return changes


def _make_fault(target: Target, chance: random.Random) -> Case:
    command, name = target.command, target.read or target.written
    verb = "writes" if target.written else "reads"
    if name == "-":
        faults = PRINTED
    else:
        faults = list_written(name) if target.written else list_read(name, chance)
        if name == command.stdin:  # a shell opens it
            faults = [fault for fault in faults if not fault.about.startswith("is ")]
        if command.can_do_without(name):
            faults = [fault._replace(expected=EITHER) for fault in faults]
    fault = chance.choice(faults)
    about = f"{name} that it {verb} {fault.about}"
    return Case(command, about, tuple(command.words()), fault.expected, name, fault)


def _apply(words: Sequence[str], changes: Sequence[Change]) -> list[str]:
    """Return words with changes; what is added stands before a -- that ends the options."""
    words = list(words)
    for change in changes:
        if change.replace and change.replace in words:
            at = words.index(change.replace)
            words[at : at + 1] = change.add
        else:
            at = words.index("--") if "--" in words else len(words)
            words[at:at] = change.add
    return words


def _shorten(change: Change) -> str:
    text = " ".join([*change.add[:1], *(repr(word) for word in change.add[1:])])
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"
