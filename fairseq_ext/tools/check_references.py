"""Check that binarised sentences can be references of a score.

    python -m fairseq_ext.tools.check_references DATA/SPLIT.SOURCE-TARGET.TARGET

Words that the dictionary lacks are lost in binarised data. Where the text is not beside them,
nothing can be scored; this is said before anything is trained.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError, plain_errors
from fairseq_ext.tools.quiet import without_logging


@without_logging()
def check_references(prefix: Path) -> None:
    """Raise UsageError if a sentence of PREFIX.idx and PREFIX.bin has unknown words."""
    from fairseq.data import Dictionary, data_utils

    split, language = prefix.name.split(".")[0], prefix.suffix[1:]
    words = Dictionary.load(str(prefix.parent / f"dict.{language}.txt"))
    sentences = data_utils.load_indexed_dataset(str(prefix), words)
    lossy = sum(bool((sentence == words.unk()).any()) for sentence in sentences)
    if lossy:
        raise UsageError(
            f"{lossy} of the {len(sentences)} sentences of {prefix} have words that are not in the "
            f"dictionary, so nothing can be scored against them; put their text into "
            f"{prefix.parent}/text/{split}.{language}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; see the module's docstring."""
    plain_errors()
    parser = argparse.ArgumentParser(description="Refuse references that lack words")
    parser.add_argument("prefix", type=Path, metavar="PREFIX", help="of PREFIX.idx and PREFIX.bin")
    check_references(parser.parse_args(arguments).prefix)


if __name__ == "__main__":
    main()
