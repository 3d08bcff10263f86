"""Annotations in batches: those of each sentence, where its tokens stand."""

import numpy as np
import pytest
import torch
from fairseq.data import (
    AppendTokenDataset,
    Dictionary,
    LanguagePairDataset,
    ListDataset,
    StripTokenDataset,
    TruncateDataset,
)

from fairseq_ext.data.annotations import Annotated
from fairseq_ext.mechanisms.roles.role_masks import NO_PARSE

LENGTHS = [3, 7, 1, 5, 6, 2]


class Records:
    """Word w of sentence s is s, w, 1."""

    def __getitem__(self, sentence):
        return np.array([(sentence, word, 1) for word in range(LENGTHS[sentence])], np.int16)


def dataset(cut=None, **options):
    words = Dictionary()
    for number in range(60):
        words.add_symbol(f"w{number}")
    # the token says which word of which sentence it is
    tokens = [
        torch.tensor([words.nspecial + 10 * s + w for w in range(n)] + [words.eos()])
        for s, n in enumerate(LENGTHS)
    ]
    sizes = np.array([len(row) for row in tokens])
    source = ListDataset(tokens, sizes)
    if cut:
        bare = TruncateDataset(StripTokenDataset(source, words.eos()), cut - 1)
        source = AppendTokenDataset(bare, words.eos())
    sizes = np.array([len(source[place]) for place in range(len(tokens))])
    return words, LanguagePairDataset(source, sizes, words, **options)


def batches(made, words, order, **options):
    annotated = Annotated(made, Records(), words.pad(), **options)
    return annotated.collater([annotated[place] for place in order])["net_input"]


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("cut", [None, 5])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [4, 2, 1], [5], [2]])
def test_each_token_has_its_own(left, cut, order):
    words, made = dataset(cut, left_pad_source=left)
    inputs = batches(made, words, order)
    tokens, found = inputs["src_tokens"], inputs["annotations"]
    assert found.shape == (*tokens.shape, 3)
    for row, annotations in zip(tokens.tolist(), found.tolist(), strict=True):
        for token, annotation in zip(row, annotations, strict=True):
            sentence, word = divmod(token - words.nspecial, 10)
            wanted = [sentence, word, 1] if token >= words.nspecial else list(NO_PARSE)
            assert annotation == wanted


def test_a_part_of_the_sentences_has_theirs():
    """In cross-validation the sentences of a dataset are some of those of the file."""
    words, made = dataset()
    inputs = batches(made, words, [1, 3], places=np.array([5, 4, 3, 2, 1, 0]))
    rows = [{tuple(x) for x in row} - {NO_PARSE} for row in inputs["annotations"].tolist()]
    assert rows[0] == {(4, word, 1) for word in range(6)}  # the longer one stands first
    assert rows[1] == {(2, 0, 1)}


def test_no_samples_no_batch():
    words, made = dataset()
    assert Annotated(made, Records(), words.pad()).collater([]) == {}
