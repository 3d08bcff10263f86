"""Patches of the search for translations."""

from collections.abc import Callable
from typing import Any

from fairseq_ext.wrapping import wrapper_of


@wrapper_of("fairseq.search:DiverseBeamSearch", "step")
def find_overlaps_by_row(original: Callable, search: Any, step: int, *given: Any) -> Any:
    """Find the overlap of groups of diverse beam search by the rows of a batch.

    Fault: Numbers of sentences are taken for rows of the batch: an IndexError, or another
        sentence's penalty.
    Asked: who gives --diverse-beam-groups; partly silent; none.
    Since: fairseq 0.12.
    Until: SequenceGenerator passes rows.
    """
    *others, sentences = given  # of a generator, which gives them by position
    if step == 0:
        search.sentences = sentences
    else:
        sentences = sentences.unsqueeze(1).eq(search.sentences).long().argmax(1)
    return original(search, step, *others, sentences)
