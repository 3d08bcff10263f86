"""A table of what a folder of binarised text holds, and its manifest.json.

Each file of text has its lines, tokens, unknown tokens, and lengths in tokens that 50, 90 and 99 %
of the lines do not exceed; documents, which empty lines separate, also have their number. The
manifest adds versions, and SHA-256 of all inputs and outputs.
"""

import json
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import list_files, read_lines, write_lines
from fairseq_ext.prepare.fetch import checksum_of
from fairseq_ext.prepare.step import INPUTS, logger, read_with_progress, step_parser
from fairseq_ext.prepare.workspace import MANIFEST

PACKAGES = (
    "fairseq_ext fairseq-fixed sacremoses sentencepiece subword-nmt fastBPE tokenizers torch numpy "
    "h5py"
)
Statistics = dict[str, Any]  # of a file of text, as `measure_text` returns them
SHARES = (0.5, 0.9, 0.99)
FEW = 50  # pairs for validation, below which a loss hardly tells two checkpoints apart


def measure_text(lines: Iterable[str], known: set[str], documents: bool = False) -> Statistics:
    """Return the statistics of lines.

    Args:
        lines: tokens, separated by white space.
        known: the tokens of the dictionary.
        documents: empty lines separate documents.

    Returns:
        Numbers of `lines` (of documents, those that are not empty), `tokens` and `unknown` tokens,
        those of the `longest` line, `lengths` (share of the lines -> tokens that these lines do
        not exceed), and `documents` if there are any.
    """
    lengths: Counter[int] = Counter()
    unknown = 0
    for line in lines:
        words = line.split()
        lengths[len(words)] += 1
        unknown += sum(word not in known for word in words)
    number = {"documents": lengths.pop(0, 0) + 1} if documents else {}
    return {
        "lines": lengths.total(),
        "tokens": sum(length * count for length, count in lengths.items()),
        "unknown": unknown,
        "lengths": {f"{share:.0%}": percentile(lengths, share) for share in SHARES},
        "longest": max(lengths, default=0),
        **number,
    }


def percentile(lengths: Counter[int], share: float) -> int:
    """Return the smallest length that this share of the lines does not exceed."""
    ordered = sorted(lengths)
    reached = accumulate(lengths[length] for length in ordered)
    enough = share * lengths.total()
    return next((n for n, lines in zip(ordered, reached, strict=True) if lines >= enough), 0)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages of `PACKAGES` that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES.split():
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def hash_files(files: Iterable[Path], name: Callable[[Path], str] = str) -> dict[str, str]:
    """Return the SHA-256 of each file, by its name."""
    ordered = tqdm(sorted(files), "hashing", unit=" files", delay=1)
    return {name(path): checksum_of(path, "sha256") for path in ordered}


def format_table(statistics: Mapping[str, Statistics]) -> str:
    """Return a table with a row for each file, numbers aligned to the right."""
    rows = [
        {
            "file": name,
            **{key: f"{text[key]:,}" for key in ("documents", "lines", "tokens") if key in text},
            "unknown": f"{text['unknown'] / max(text['tokens'], 1):.2%}",
            **text["lengths"],
            "longest": text["longest"],
        }
        for name, text in statistics.items()
    ]
    cells = [list(rows[0]), *(row.values() for row in rows)]  # titles as `headers` widen columns
    align = ("left", *["right"] * (len(cells[0]) - 1))
    return tabulate(cells, tablefmt="plain", colalign=align, disable_numparse=True)


def list_outputs(out: Path) -> list[Path]:
    """Return the files that stay: binarised data, text and BPE beside it, no logs nor stamps."""
    folders = filter(Path.is_dir, (out, out / "text", out / "bpe"))
    files = (path for folder in folders for path in list_files(folder))
    left_out = (MANIFEST, INPUTS, "source", "srcdict")
    return [path for path in files if path.name not in left_out and path.suffix != ".log"]


def write_manifest(
    out: Path, text: Path, about: str, documents: bool = False, settings: Sequence[str] = ()
) -> dict[str, Statistics]:
    """Write the manifest of a folder, and return the statistics of its text.

    Args:
        out: output of fairseq-preprocess; its file "inputs" lists what it was made from.
        text: folder of the text that was binarised: PART.LANGUAGE, or PART of a single language.
        about: the command.
        documents: empty lines separate documents.
        settings: of the recipe, as "--merges 4000".

    Raises:
        UsageError: there is no text.
    """
    statistics = {}
    texts = [path for path in list_files(text) if path.name != "dict.txt"]
    if not texts:
        raise UsageError(f"{text} has no files; give the folder of the text that was binarised")
    for path in texts:
        known = {line.rpartition(" ")[0] for line in read_lines(out / f"dict{path.suffix}.txt")}
        lines = read_with_progress("counting", path)
        statistics[path.name] = measure_text(lines, known, documents)
    inputs = map(Path, read_lines(out / INPUTS)) if (out / INPUTS).exists() else ()
    manifest = {
        "command": about,
        "settings": list(settings),
        "versions": installed_versions(),
        "inputs": hash_files(inputs),
        "text": statistics,
        "outputs": hash_files(list_outputs(out), lambda path: str(path.relative_to(out))),
    }
    write_lines(out / MANIFEST, [json.dumps(manifest, indent=2, ensure_ascii=False)])
    return statistics


def warn_of_few(statistics: Mapping[str, Statistics]) -> None:
    """Warn of a part for validation that has few pairs."""
    few = min(
        (text["lines"] for name, text in statistics.items() if name.startswith("valid.")),
        default=FEW,
    )
    if few < FEW:
        logger.warning(
            "valid has %d pairs, too few to tell by their loss which checkpoint is better; give %d "
            "or more, by a smaller --every or a longer --valid",
            *(few, FEW),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a manifest, and print its table."""
    parser = step_parser("manifest", __doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of binarised text")
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder of what was binarised")
    parser.add_argument("--about", default="", help="how it was made")
    parser.add_argument("--documents", action="store_true", help="empty lines separate documents")
    parser.add_argument("--setting", action="append", default=[], help="what it was made with")
    args = parser.parse_args(arguments)
    statistics = write_manifest(args.out, args.text, args.about, args.documents, args.setting)
    print(format_table(statistics), end="\n\n")
    warn_of_few(statistics)


if __name__ == "__main__":
    main()
