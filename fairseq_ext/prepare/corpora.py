"""Turn a published corpus into data for fine-tuning: a file of JSON lines for each part."""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.data.examples import HOW_TO_VALIDATE
from fairseq_ext.errors import UsageError
from fairseq_ext.files import new_folder, write_lines
from fairseq_ext.prepare import corpora_readers
from fairseq_ext.prepare.corpora_readers import Example, Reader
from fairseq_ext.prepare.corpora_tags import tagged
from fairseq_ext.prepare.manifest import hash_files
from fairseq_ext.prepare.step import step_parser
from fairseq_ext.prepare.workspace import MANIFEST

Parts = dict[str, list[Example]]
Shares = Callable[[Example], Sequence[Hashable]]

READERS: dict[str, Reader] = {**corpora_readers.READERS, "tagged": tagged}
EVERY = 10  # the number of examples, or groups of them, of which one is held out

# Ways to hold examples out: two that share one of some things stay in one part.
SPLITS: dict[str, Shares] = {
    "no text in both": lambda e: [e["text"]],
    "no pair in both": lambda e: [frozenset((e["text"], e["pair"]))],
    "no question and no sentence in both": lambda e: [(key, e[key]) for key in ("text", "pair")],
}


class Layout(NamedTuple):
    """A form in which a corpus is published.

    Attributes:
        folder: its name in the folder of corpora.
        files: part -> names or patterns, separated by spaces; test files may be missing.
        read: reader of a file.
        split: key of `SPLITS`, if there are no files for validation and examples are held out.
    """

    folder: str
    files: Mapping[str, str]
    read: Reader
    split: str


class Corpus(NamedTuple):
    """A corpus: its task, and layouts of which the first that exists counts."""

    task: str
    layouts: Sequence[Layout]


def make_layout(
    folder: str, files: Mapping[str, str], read: str, hold_out: str = "", **options: Any
) -> Layout:
    """Return a layout; options are those of its reader."""
    return Layout(folder, files, partial(READERS[read], **options), hold_out)


def read_table(path: Path) -> dict[str, Corpus]:
    """Return the corpora of a table, as corpora.toml describes it."""
    tables = tomllib.loads(path.read_text("utf-8"))
    defaults, corpora = tables.pop("defaults"), {}
    for name, table in tables.items():
        common = defaults | table
        task, layouts = common.pop("task"), common.pop("layouts")
        corpora[name] = Corpus(task, [make_layout(**(common | layout)) for layout in layouts])
    return corpora


CORPORA = read_table(Path(__file__).with_name("corpora.toml"))


def matching_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern, and those with .gz of which there is no plain one."""
    plain = set(folder.glob(pattern))
    packed = (file for file in folder.glob(f"{pattern}.gz") if file.with_suffix("") not in plain)
    return sorted({*plain, *packed})


def first_file(layout: Layout) -> str:
    """Return the name of the file by which a layout is recognised."""
    return f"{layout.folder}/{next(iter(layout.files.values())).split()[0]}"


def choose_layout(corpus: str, folder: Path) -> Layout:
    """Return the first layout of a corpus whose first file exists."""
    if corpus not in CORPORA:
        raise UsageError(f"CORPUS is '{corpus}' and must be one of {', '.join(CORPORA)}")
    layouts = CORPORA[corpus].layouts
    for layout in layouts:
        if matching_files(folder, first_file(layout)):
            return layout
    raise UsageError(
        f"{folder} has no {' and no '.join(map(first_file, layouts))} (plain or .gz), where "
        f"'{corpus}' is looked for; put the corpus there as it is published"
    )


def is_test(part: str) -> bool:
    """Return whether a part is one for testing, whose files and labels may be missing."""
    return part.startswith("test")


def files_of(part: str, layout: Layout, folder: Path) -> list[Path]:
    """Return the files of a part; none for a test part that is missing."""
    names = layout.files[part].split()
    found = [matching_files(folder, f"{layout.folder}/{name}") for name in names]
    if not all(found) and (any(found) or not is_test(part)):
        place, name = folder / layout.folder, names[found.index([])]
        raise UsageError(f"{place} has no {name} (plain or .gz) for '{part}'; put it there")
    return [path for paths in found for path in paths]


def read(corpus: str, folder: Path) -> Parts:
    """Return all examples of a corpus, by part.

    Args:
        folder: folder with a folder for each corpus.

    Raises:
        UsageError: the corpus is unknown, or one of its files is missing, empty or malformed.
    """
    layout, parts = choose_layout(corpus, folder), {}
    files = {part: files_of(part, layout, folder) for part in layout.files}
    for part, paths in files.items():
        parts[part] = [each for path in paths for each in layout.read(path, not is_test(part))]
        if paths and not parts[part]:
            raise UsageError(f"{paths[0]} has no example; get the file again")
    if layout.split:
        parts = hold_out(parts, SPLITS[layout.split])
    return {part: examples for part, examples in parts.items() if examples}


def hold_out(parts: Parts, shares: Shares) -> Parts:
    """Move every tenth group of training examples to the part for validation."""
    kept: Parts = {"train": [], "valid": []}
    for example, group in zip(parts["train"], groups(parts["train"], shares), strict=True):
        kept["valid" if group % EVERY == EVERY - 1 else "train"].append(example)
    if not kept["valid"]:
        raise UsageError(
            f"the corpus has {len(kept['train'])} examples, every {EVERY}th is held out; give more"
        )
    return kept | {part: examples for part, examples in parts.items() if part not in kept}


def groups(examples: Iterable[Example], shares: Shares) -> list[int]:
    """Return the number of each example's group; a group shares things, directly or by others."""
    above: dict[Hashable, Hashable] = {}

    def root(shared: Hashable) -> Hashable:
        while above.setdefault(shared, shared) != shared:
            shared = above[shared]
        return shared

    shared = [shares(example) for example in examples]
    for first, *others in shared:
        for other in others:
            above[root(other)] = root(first)
    roots = [root(first) for first, *_ in shared]
    numbers = {found: number for number, found in enumerate(dict.fromkeys(roots))}
    return [numbers[found] for found in roots]


def describe_shares(counts: Counter) -> str:
    """Return the share of each label, as text."""
    each = (f"{name} {count / counts.total():.1%}" for name, count in sorted(counts.items()))
    return ", ".join(each)


def describe_labels(examples: Sequence[Example]) -> str:
    """Return a description of the labels of a part."""
    if "tags" in examples[0]:
        tags = (tag for example in examples for tag in example["tags"])
        types = Counter(tag[2:] for tag in tags if tag.startswith("B-"))
        return f"{types.total():,} entities ({describe_shares(types)})"
    if "answers" in examples[0]:
        return f"{sum(map(bool, (e['answers'] for e in examples))) / len(examples):.1%} answerable"
    given = [example["label"] for example in examples if "label" in example]
    if given and isinstance(given[0], float):
        return f"labels {min(given)} to {max(given)}, mean {sum(given) / len(given):.2f}"
    return f"labels {describe_shares(Counter(given))}" if given else "no labels"


def summary(part: str, examples: Sequence[Example]) -> str:
    """Return the line that is printed about a part."""
    empty = sum(example.get("text") == "" for example in examples)
    without = f", {empty} without text" if empty else ""
    return f"{part}: {len(examples):,} examples{without}, {describe_labels(examples)}"


def listing() -> str:
    """Return the table of corpora, their tasks, folders and parts."""
    width = max(map(len, CORPORA))
    return "\n".join(
        f"{name:{width}}  {corpus.task:23}  {'; or '.join(map(describe_layout, corpus.layouts))}"
        for name, corpus in CORPORA.items()
    )


def describe_layout(layout: Layout) -> str:
    """Return the folder and the parts of a layout, as text."""
    split = f" (valid: every {EVERY}th of train, {layout.split})" if layout.split else ""
    return f"{layout.folder}: {', '.join(layout.files)}{split}"


def prepare(corpus: str, folder: Path, out: Path) -> Parts:
    """Write the folder `out` with a file PART.jsonl for each part; return the parts.

    Its manifest has the sums of the files that were read, named from `folder`.

    Raises:
        UsageError: as in `read`, or the folder exists and is not empty.
    """
    with new_folder(out) as work:
        parts = read(corpus, folder)
        for part, examples in parts.items():
            lines = (json.dumps(each, ensure_ascii=False) for each in examples)
            write_lines(work / f"{part}.jsonl", lines)
        layout = choose_layout(corpus, folder)
        paths = [path for part in layout.files for path in files_of(part, layout, folder)]
        sums = hash_files(paths, lambda path: str(path.relative_to(folder)))
        write_lines(work / MANIFEST, [json.dumps({"inputs": sums})])
    return parts


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the step."""
    parser = step_parser("corpora", __doc__)
    parser.add_argument("corpus", metavar="CORPUS", help="a name that --list prints")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the corpora lie")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument("--list", action="version", version=listing(), help="print the corpora")
    args = parser.parse_args(arguments)
    parts = prepare(args.corpus, args.folder, args.out)
    for part, examples in parts.items():
        print(summary(part, examples))
    if "valid" not in parts:
        print(f"{args.corpus} has no valid.jsonl; {HOW_TO_VALIDATE.format(args.out)}")


if __name__ == "__main__":
    main()
