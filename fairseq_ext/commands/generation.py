"""Changes of what the flags of fairseq-generate and fairseq-interactive do."""

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from fairseq_ext.commands.outputs import GENERATE, rename_results
from fairseq_ext.errors import UsageError
from fairseq_ext.wrapping import as_usage_error, list_copies, wrap

BARE = "@@ "  # fairseq's value of --replace-unk without one
NO_TRANSLATIONS = (
    "--replace-unk is {argument}, which has a line of less than two words; give a word and its "
    "translation in each line"
)


def shard_sentences() -> None:
    """Let fairseq-generate translate one of --num-shards parts of a subset, that of --shard-id.

    The part is every n-th sentence in the order of their lengths. Its file of --results-path is
    generate-SUBSET-shardN.txt.

    Fault: Both flags have no effect: each process translates all.
    Asked: who translates on a cluster; silent; none.
    Since: fairseq 0.11.
    Until: fairseq-generate gives them to its iterator.
    """
    importlib.import_module(GENERATE)
    part = slice(0, None, 1)

    def main(original: Callable, cfg: Any) -> Any:
        nonlocal part
        data = cfg if isinstance(cfg, Namespace) else cfg.dataset
        part = slice(data.shard_id, None, data.num_shards)
        if part.step > 1:
            name = f"shard {part.start} of {part.step}"
            print(f"{name}: its score is that of its own sentences alone", file=sys.stderr)
        try:
            return original(cfg)
        finally:
            part = slice(0, None, 1)

    def dataset(original: Callable, task: Any, split: str) -> Any:
        data = original(task, split)
        if part.step > len(data):
            raise UsageError(
                f"--num-shards is {part.step} and {split} has {len(data)} sentences; give no more "
                "shards than sentences"
            )
        if part.step > 1 and "ordered_indices" not in vars(data):
            whole, own = data.ordered_indices, part
            data.ordered_indices = lambda: whole()[own]
        return data

    def rename(path: str) -> str:
        return f"{path.removesuffix('.txt')}-shard{part.start}.txt" if part.step > 1 else path

    for module in list_copies(GENERATE):
        wrap(module, "main", main)
    rename_results.append(rename)
    wrap("fairseq.tasks.fairseq_task:FairseqTask", "dataset", dataset)


def ask_for_alignment(args: Namespace) -> None:
    """Let a command align words if --replace-unk needs that; it prints the alignment then.

    Raises:
        UsageError: fairseq-generate joins subwords of the source before it replaces words.
    """
    if getattr(args, "replace_unk", None) is None:
        return
    if args.bpe is not None and "buffer_size" not in args:
        raise UsageError(
            f"--replace-unk and --bpe {args.bpe} are given, and words are aligned before subwords "
            "are joined; give --remove-bpe, or leave one of them out"
        )
    args.print_alignment = args.print_alignment or "hard"


def replace_unknown_words() -> None:
    """Let --replace-unk put source words, or their translations, in the place of unknown ones.

    fairseq-interactive shows and copies words of its input that its dictionary does not have. It
    also keeps the number of lines before a buffer, for messages.

    Fault: --replace-unk without a file opens "@@ ". Unknown words end in a traceback, or, with
        subwords and in fairseq-interactive, have no source word.
    Asked: who has unknown words; loud; none.
    Since: fairseq 0.9.
    Until: generators give the alignment that utils.replace_unk reads.
    """
    from fairseq.data.data_utils import post_process

    def load(original: Callable, given: str | None) -> Any:
        with as_usage_error("list index", NO_TRANSLATIONS, given):
            return original("" if given == BARE else given)

    def replace(
        original: Callable, text: str, source: str, alignment: Any, translations: Any, unk: str
    ) -> str:
        aligned = {target: place for place, target in alignment}
        words, sources = text.split(), source.split()
        for i, word in enumerate(words):
            if word == unk and aligned.get(i, len(sources)) < len(sources):
                found = sources[aligned[i]]
                words[i] = translations.get(found, found)
        return " ".join(words)

    def finish(original: Callable, *args: Any, **given: Any) -> Any:
        """Join subwords after words are replaced, which are aligned by token."""
        if given.get("align_dict") is None:
            return original(*args, **given)
        tokens, text, alignment = original(*args, **given | {"remove_bpe": None})
        return tokens, post_process(text, given.get("remove_bpe")), alignment

    def make_batches(
        original: Callable, lines: list[str], cfg: Any, task: Any, limits: Any, encode: Callable
    ) -> Iterator[Any]:
        numbers: list[int] = []
        for batch in original(lines, cfg, task, limits, encode):
            numbers += batch.ids.tolist()
            yield batch
        source = task.source_dictionary
        if cfg.generation.replace_unk is not None and source is not task.target_dictionary:
            texts = iter([encode(lines[number]) for number in sorted(numbers)])
            source.string = lambda *_: next(texts)  # they are printed in this order

    wrap("fairseq.utils", "load_align_dict", load)
    wrap("fairseq.utils", "replace_unk", replace)
    wrap("fairseq.utils", "post_process_prediction", finish)
    for module in list_copies("fairseq_cli.interactive"):
        wrap(module, "make_batches", make_batches)
