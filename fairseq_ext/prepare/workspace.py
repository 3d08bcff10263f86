"""Checks of the folders in which a script is going to work.

    python -m fairseq_ext.prepare.workspace room FOLDER MB [--corpus FOLDER] [--work FOLDER]
    python -m fairseq_ext.prepare.workspace same OUT SETTING...
    python -m fairseq_ext.prepare.workspace setting OUT NAME
    python -m fairseq_ext.prepare.workspace record OUT SETTING...

`room` refuses a FOLDER that cannot be written to or has less free space than MB. `same` refuses
data in OUT that a recipe made with other settings, as in "--merges 4000", or from files that have
changed; `setting` prints one of the settings; `record` writes them into a manifest. All need the
standard library alone, so that they run before an environment is set up.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.files import MB, atomic_writer, check_writable
from fairseq_ext.standard_output import guard_standard_output

MANIFEST = "manifest.json"
BLOCK = 512  # bytes, the unit of st_blocks


def read_manifest(out: Path) -> dict[str, Any]:
    """Return the manifest of a folder; nothing if it has none."""
    manifest = out / MANIFEST
    return json.loads(manifest.read_text("utf-8")) if manifest.is_file() else {}


def read_settings(out: Path) -> dict[str, str]:
    """Return the settings in the manifest of a folder, by name; none if it has no manifest."""
    settings = read_manifest(out).get("settings", [])
    return {name: value for name, _, value in (text.partition(" ") for text in settings)}


def record_settings(out: Path, settings: Sequence[str]) -> None:
    """Write settings into the manifest of a folder, for `read_settings`."""
    content = read_manifest(out) | {"settings": settings}
    with atomic_writer(out / MANIFEST) as file:
        json.dump(content, file)


def check_same_settings(out: Path, settings: Sequence[str]) -> None:
    """Raise UsageError if a folder was made with another value of one of these settings.

    A setting that the manifest does not name may have been the same. So may the corpus where only
    one of both commands names its folder (--offline).
    """
    recorded = read_settings(out)
    for name, _, value in (text.partition(" ") for text in settings):
        previous = recorded.get(name, value)
        if previous != value and not (name == "--offline" and "" in (previous, value)):
            raise UsageError(
                f"'{out}' was made with {_in_words(name, previous)} and this command has "
                f"{_in_words(name, value)}: delete it, give another folder, or give the same "
                "options"
            )


def check_same_inputs(out: Path) -> None:
    """Raise UsageError if a file that a folder was made from has changed, by its SHA-256.

    Names that are no whole paths are of files in FAIRSEQ_EXT_CORPORA. A corpus of which nothing is
    left may have been deleted to save room.
    """
    corpora = Path(os.environ.get("FAIRSEQ_EXT_CORPORA", ""))
    inputs = {corpora / name: total for name, total in read_manifest(out).get("inputs", {}).items()}
    for path, total in inputs.items() if any(map(Path.is_file, inputs)) else ():
        change = "" if path.is_file() else "is gone"
        if change or sum_file(path) != total:
            raise UsageError(
                f"'{out}' was made from {path}, which {change or 'has changed'} since: delete "
                f"'{out}' to prepare it again, or give another folder"
            )


def sum_file(path: Path) -> str:
    """Return the SHA-256 of a file, as manifests have it."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _in_words(name: str, value: str) -> str:
    return f"'{name} {value}'" if value else f"no {name}"


def disk_usage(path: Path) -> int:
    """Return the MB that a folder takes on the disk, 0 if it does not exist."""
    blocks = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # others may work there
                blocks += Path(folder, name).lstat().st_blocks
    return blocks * BLOCK // MB


def needed_space(published: int, corpus: Path | None) -> int:
    """Return the MB that the preparation of a corpus needs.

    Args:
        published: MB that the corpus as published needs.
        corpus: folder with the corpus, which may be smaller than published. Ten times its archives
            cover every stage of the preparation.
    """
    return published if corpus is None else min(published, 100 + 10 * disk_usage(corpus))


def check_room(folder: Path, needed: int, work: Path | None = None) -> None:
    """Raise UsageError if a folder cannot be written to or has fewer than `needed` MB free.

    Args:
        folder: need not exist yet.
        needed: MB, of which those that `work` takes already are not needed again.
        work: folder in which an interrupted command worked.
    """
    check_writable(folder, (needed - (disk_usage(work) if work else 0)) * MB)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; see the module's docstring."""
    guard_standard_output()
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.workspace", description="Check a folder to work in"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    room = commands.add_parser("room")
    room.add_argument("folder", type=Path, metavar="FOLDER")
    room.add_argument("needed", type=int, metavar="MB")
    room.add_argument("--corpus", type=Path, metavar="FOLDER", help="the corpus, if it is there")
    room.add_argument("--work", type=Path, metavar="FOLDER", help="of an interrupted command")
    for name in ("same", "record"):
        command = commands.add_parser(name, prefix_chars="\0")  # settings begin with --
        command.add_argument("out", type=Path, metavar="OUT")
        command.add_argument("settings", nargs="*", metavar="SETTING")
    setting = commands.add_parser("setting", prefix_chars="\0")
    setting.add_argument("out", type=Path, metavar="OUT")
    setting.add_argument("name", metavar="NAME")
    args = parser.parse_args(arguments)
    if args.command == "room":
        check_room(args.folder, needed_space(args.needed, args.corpus), args.work)
    elif args.command == "same":
        check_same_settings(args.out, args.settings)
        check_same_inputs(args.out)
    elif args.command == "record":
        record_settings(args.out, args.settings)
    else:
        print(read_settings(args.out).get(args.name, ""))


if __name__ == "__main__":
    main()
