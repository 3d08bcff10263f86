"""Changes of how commands read raw text: what fairseq would misread is refused by file and line."""

import io
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_line_ends, count_lines
from fairseq_ext.wrapping import as_usage_error, list_copies, wrap

MOST_BYTES = 4  # of a character in UTF-8
buffer_place: list[tuple[str, int]] = []  # of fairseq-interactive: file, number of its first line
NO_UTF8 = "{argument} is not valid UTF-8; convert it to UTF-8"


def check_raw_text() -> None:
    """Refuse raw text that is not valid UTF-8, has U+0000, or carriage returns within lines.

    Fault: fairseq-preprocess ends in a late traceback at what it cannot decode, and binarises
        zeros. A carriage return ends a line, so that pairs are no translations.
    Asked: who binarises; partly silent; a message.
    Since: fairseq 0.8.
    Until: ChunkLineIterator reads without universal newlines.
    """

    def read_line(original: Callable, file: Any) -> str:
        begin = file.tell()
        for back in range(min(MOST_BYTES, begin + 1)):  # begin may be within a character
            try:
                if back:
                    file.seek(begin - back)
                return file.readline()
            except UnicodeDecodeError:
                continue
        raise UsageError(NO_UTF8.format(argument=file.name))

    def read_lines(original: Callable, lines: Any) -> Iterator[str]:
        try:
            for line in original(lines):
                if "\0" in line:
                    raise UsageError(f"{lines._fd.name} holds U+0000; give a file of plain text")
                yield line
        except UnicodeDecodeError:
            raise UsageError(NO_UTF8.format(argument=lines._fd.name)) from None

    def find_offsets(original: Callable, path: str, chunks: int) -> list[int]:
        check_line_ends(Path(path))
        with as_usage_error("'utf-8' codec", NO_UTF8, path):
            return original(path, chunks)

    def read_raw(original: Callable, data: Any, path: str, words: Any) -> None:
        check_line_ends(Path(path))
        with as_usage_error("'utf-8' codec", NO_UTF8, path):
            original(data, path, words)

    wrap("fairseq.file_chunker_utils", "_safe_readline", read_line)
    wrap("fairseq.file_chunker_utils:ChunkLineIterator", "__iter__", read_lines)
    wrap("fairseq.binarizer", "find_offsets", find_offsets)
    wrap("fairseq.data.dictionary", "find_offsets", find_offsets)
    wrap("fairseq.data.indexed_dataset:IndexedRawTextDataset", "read_data", read_raw)


def read_input_by_lines() -> None:
    """Let a newline alone end a line that fairseq-interactive reads.

    Fault: A carriage return within a line makes two sentences of one.
    Asked: who translates text of others; silent; a message, but for standard input.
    Since: always.
    Until: fairseq-interactive reads newlines alone.
    """

    def read(original: Callable, given: str, size: int) -> Iterator[list[str]]:
        first = 1
        if given != "-":
            check_line_ends(Path(given))
        elif isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(newline="\n")
        for lines in original(given, size):
            buffer_place[:] = [("standard input" if given == "-" else given, first)]
            yield lines
            first += len(lines)

    for module in list_copies("fairseq_cli.interactive"):
        wrap(module, "buffered_read", read)


def forget_translated_lines() -> None:
    """Let fairseq-interactive forget the lines that it has translated.

    Fault: The task keeps the iterator of each buffer with its lines: 0.6 KB of memory a line.
    Asked: who translates much text; loud where memory ends; none.
    Since: fairseq 0.10.
    Until: fairseq-interactive gives disable_iterator_cache.
    """

    def make(original: Callable, lines: list[str], cfg: Any, task: Any, *how: Any) -> Iterator[Any]:
        yield from original(lines, cfg, task, *how)
        task.dataset_to_epoch_iter.clear()

    for module in list_copies("fairseq_cli.interactive"):
        wrap(module, "make_batches", make)


def check_sides(args: Namespace) -> None:
    """Raise UsageError if the two sides of text to be binarised differ in their number of lines."""
    if args.only_source or args.dict_only or not (args.source_lang and args.target_lang):
        return
    given = ",".join(filter(None, (args.validpref, args.testpref))).split(",")
    for prefix in filter(None, (args.trainpref, *given)):
        sides = [Path(f"{prefix}.{language}") for language in (args.source_lang, args.target_lang)]
        if all(side.is_file() for side in sides):
            one, other = map(count_lines, sides)
            if one != other:
                raise UsageError(
                    f"{sides[0]} has {one} lines and {sides[1]} {other}; give parallel text, line "
                    "by line"
                )
