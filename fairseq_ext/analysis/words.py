"""Sentences of words: what their tokens attend to, word by word, and batches of them.

Attention to a word is the sum over its tokens, from it the mean over them (Clark et al. 2019, "What
Does BERT Look At?").
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_ext.analysis.subjects import Subject
from fairseq_ext.analysis.tokens import Words

Spans = Sequence[Sequence[int]]
"""The tokens of each word of a sentence."""


def members(sentences: Sequence[Spans], tokens: int) -> Tensor:
    """[B, W, tokens] 1 where a token belongs to a word, else 0, as where a sentence has fewer
    words."""
    found = torch.zeros(len(sentences), max(map(len, sentences)), tokens)
    places = [
        (sentence, word, token)
        for sentence, spans in enumerate(sentences)
        for word, span in enumerate(spans)
        for token in span
    ]
    if places:
        found[tuple(torch.tensor(places).T)] = 1
    return found


def merge(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Maps between tokens [B, H, T, S] as maps between words [B, H, R, C].

    Args:
        rows: [B, R, T], columns: [B, C, S] as from `members`. A word without tokens attends to
            nothing and gets nothing.
    """
    mean = rows / rows.sum(-1, keepdim=True).clamp(min=1)
    attending = torch.einsum("brt,bhts->bhrs", mean.to(maps), maps)
    return torch.einsum("bhrs,bcs->bhrc", attending, columns.to(maps))


def with_special(words: Words) -> list[list[int]]:
    """The spans of the words and after them each special token, so that rows sum to one."""
    inside = {token for span in words.spans for token in span}
    return [*words.spans, *([i] for i in range(len(words.numbers)) if i not in inside)]


def alike(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Numbers of sentences of like length, for batches of at most so many tokens, or one
    sentence."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[number] > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def together(
    subject: Subject, sources: Sequence[Tensor], targets: Sequence[Tensor] | None = None
) -> dict[str, Any]:
    """Sentences [S], padded on the right, as a batch for `Subject.listen`.

    A translation model reads targets [T], or the end of a sentence alone, which is enough for its
    encoder.
    """
    tokens = pad_sequence(list(sources), batch_first=True, padding_value=subject.source.pad())
    lengths = torch.tensor([len(each) for each in sources])
    inputs: dict[str, Any] = {"src_tokens": tokens, "src_lengths": lengths}
    if subject.translates:
        words = subject.task.target_dictionary
        targets = targets or [torch.tensor([words.eos()])] * len(sources)
        read = [target.roll(1) for target in targets]  # the end begins a sentence
        inputs["prev_output_tokens"] = pad_sequence(
            read, batch_first=True, padding_value=words.pad()
        )
    return {"net_input": inputs}
