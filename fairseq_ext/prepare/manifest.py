"""What a folder of binarised text holds, in a table and as manifest.json.

Of each file of text: lines, tokens, unknown ones, and lengths in tokens that 50, 90 and 99 % of the
lines do not exceed; of documents, which empty lines part, also their number. The manifest adds
versions, and SHA-256 of all inputs and outputs.
"""

import argparse
import json
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate
from tqdm import tqdm

from fairseq_ext.files import list_files, read_lines, write_lines
from fairseq_ext.prepare.fetch import digest

MANIFEST = "manifest.json"
INPUTS = "inputs"  # a line for each file that was read
PACKAGES = (
    *("fairseq_ext", "fairseq-fixed", "sacremoses", "subword-nmt", "fastBPE", "tokenizers"),
    *("torch", "numpy"),
)
SHARES = (0.5, 0.9, 0.99)


class Facts(NamedTuple):
    """Of a file of text.

    Attributes:
        lengths: the number of tokens that this share of the lines does not exceed.
        documents: None if text is no documents.
    """

    lines: int
    tokens: int
    unknown: int
    lengths: dict[str, int]
    longest: int
    documents: int | None = None


def facts(lines: Iterable[str], known: set[str], documents: bool = False) -> Facts:
    lengths: Counter[int] = Counter()
    unknown = 0
    for line in lines:
        words = line.split()
        lengths[len(words)] += 1
        unknown += sum(word not in known for word in words)
    breaks = lengths.pop(0, 0) if documents else None
    tokens = sum(length * count for length, count in lengths.items())
    found = {f"{share:.0%}": percentile(lengths, share) for share in SHARES}
    parts = None if breaks is None else breaks + 1
    return Facts(lengths.total(), tokens, unknown, found, max(lengths, default=0), parts)


def percentile(lengths: Counter[int], share: float) -> int:
    """The smallest length that this share of the lines does not exceed."""
    ordered = sorted(lengths)
    reached = accumulate(lengths[length] for length in ordered)
    enough = share * lengths.total()
    return next((n for n, lines in zip(ordered, reached, strict=True) if lines >= enough), 0)


def symbols(dictionary: Path) -> set[str]:
    return {line.rpartition(" ")[0] for line in read_lines(dictionary)}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hashes(files: Iterable[Path], name: Callable[[Path], str] = str) -> dict[str, str]:
    shown = tqdm(sorted(files), "hashing", unit=" files")
    return {name(path): digest(path, "sha256") for path in shown}


def format_table(statistics: Mapping[str, Facts]) -> str:
    """Return a table with a row for each file, numbers aligned to the right."""
    documents = all(facts.documents is not None for facts in statistics.values())
    rows = [
        {
            "file": name,
            **({"documents": f"{facts.documents:,}"} if documents else {}),
            "lines": f"{facts.lines:,}",
            "tokens": f"{facts.tokens:,}",
            "unknown": f"{facts.unknown / max(facts.tokens, 1):.2%}",
            **facts.lengths,
            "longest": facts.longest,
        }
        for name, facts in statistics.items()
    ]
    cells = [list(rows[0]), *(row.values() for row in rows)]  # titles as `headers` widen columns
    align = ("left", *["right"] * (len(cells[0]) - 1))
    return tabulate(cells, tablefmt="plain", colalign=align, disable_numparse=True)


def made(out: Path) -> list[Path]:
    """The files that stay: binarised data, text and BPE beside it, no logs nor stamps."""
    there = [*out.iterdir(), *(out / "text").glob("*"), *(out / "bpe").glob("*")]
    left_out = (MANIFEST, INPUTS, "source", "srcdict")
    return [
        path
        for path in there
        if path.is_file()
        and path.name not in left_out
        and path.suffix != ".log"
        and not path.name.startswith(".")
    ]


def summarise(
    out: Path, text: Path, about: str, documents: bool = False, settings: Sequence[str] = ()
) -> dict[str, Facts]:
    """Write the manifest of a folder.

    Args:
        out: what fairseq-preprocess made; its file "inputs" names what it was made from.
        text: folder of what was binarised, PART.LANGUAGE, or PART where there is one language.
        about: the command.
        documents: empty lines part documents.
        settings: of the recipe, as "--merges 4000".
    """
    found = {}
    for path in (each for each in list_files(text) if each.name != "dict.txt"):
        known = symbols(out / f"dict{path.suffix}.txt")
        lines = tqdm(read_lines(path), path.name, unit=" lines")
        found[path.name] = facts(lines, known, documents)
    inputs = map(Path, read_lines(out / INPUTS)) if (out / INPUTS).exists() else ()
    manifest = {
        "command": about,
        "settings": list(settings),
        "versions": versions(),
        "inputs": hashes(inputs),
        "text": {name: _known(each) for name, each in found.items()},
        "outputs": hashes(made(out), lambda path: str(path.relative_to(out))),
    }
    write_lines(out / MANIFEST, [json.dumps(manifest, indent=2, ensure_ascii=False)])
    return found


def _known(found: Facts) -> dict[str, Any]:
    return {name: value for name, value in found._asdict().items() if value is not None}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.manifest", description=__doc__
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of binarised text")
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder of what was binarised")
    parser.add_argument("--about", default="", help="how it was made")
    parser.add_argument("--documents", action="store_true", help="empty lines part documents")
    parser.add_argument("--setting", action="append", default=[], help="what it was made with")
    given = parser.parse_args(arguments)
    found = summarise(given.out, given.text, given.about, given.documents, given.setting)
    print(format_table(found), end="\n\n")


if __name__ == "__main__":
    main()
