"""Patches of tasks of fairseq, and of files that they read beside their text."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from fairseq_ext.wrapping import find_owner, wrap, wrapper_of

logger = logging.getLogger(__name__)


@wrapper_of("fairseq.data:Dictionary", "_save")
def keep_overwriting_symbols(
    original: Callable, words: Any, file: Any, pairs: Iterable[tuple[str, Any]]
) -> None:
    """Save the mark of symbols that overwrite others of their name.

    Fault: A dictionary with #fairseq:overwrite is saved without it, and cannot be read.
    Asked: who binarises with such a --srcdict; loses the dictionary; none.
    Since: fairseq 0.10.
    Until: Dictionary.save writes the mark.
    """
    from fairseq_ext.data.dictionaries import OVERWRITE

    seen, lines = set(words.symbols[: words.nspecial]), []
    for symbol, count in pairs:
        lines.append((symbol, f"{count}{OVERWRITE if symbol in seen else ''}"))
        seen.add(symbol)
    original(words, file, lines)


def read_all_vectors() -> None:
    """Read word vectors with a header or without, and check that they fit the embeddings.

    Fault: The first line of --encoder-embed-path and --decoder-embed-path is skipped: GloVe's files
        lose a word. Vectors of another width end in a traceback. Files without a word of the
        dictionary are accepted.
    Asked: who begins with word vectors; silent, loses a vector; none.
    Since: always.
    Until: parse_embedding and load_embedding look.
    """
    from fairseq_ext.models.word_vectors import WordVectors

    def load(original: Callable, vectors: Any, words: Any, embedding: Any) -> Any:
        if isinstance(vectors, WordVectors):
            vectors.check(words, embedding.embedding_dim)
        return original(vectors, words, embedding)

    wrap("fairseq.utils", "parse_embedding", lambda original, path: WordVectors(path))
    wrap("fairseq.utils", "load_embedding", load)


def complete_pretrained_bart() -> None:
    """Let the task translation_from_pretrained_bart find its options.

    Fault: The task looks for its options under a name that is gone.
    Asked: who fine-tunes mBART; loud; none.
    Since: fairseq 0.11.
    Until: the task reads `cfg`.
    """
    module = find_owner("fairseq.tasks.translation_from_pretrained_bart")
    module.TranslationFromPretrainedBARTTask.args = property(lambda task: task.cfg)
