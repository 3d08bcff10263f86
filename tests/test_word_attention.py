"""Maps between words, and sentences of words as batches."""

import pytest
import torch
from conftest import train_encoder

from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.tokens import TokenisedWords
from fairseq_ext.analysis.word_attention import (
    build_membership,
    group_by_length,
    merge_tokens,
)

# <s> un@@ known word </s>: three words, of which the last has no token
SPANS = [[1, 2], [3], []]
WORDS = TokenisedWords(torch.arange(5), SPANS)


def test_worked_example():
    """To a word the sum, from a word the mean."""
    maps = torch.tensor(
        [
            [0.2, 0.2, 0.2, 0.2, 0.2],
            [0.0, 0.3, 0.1, 0.4, 0.2],
            [0.6, 0.1, 0.3, 0.0, 0.0],
            [0.0, 0.5, 0.25, 0.25, 0.0],
            [1.0, 0.0, 0.0, 0.0, 0.0],
        ]
    )
    own = build_membership([SPANS], 5)
    expected = [[0.4, 0.2, 0], [0.75, 0.25, 0], [0, 0, 0]]
    torch.testing.assert_close(
        merge_tokens(maps[None, None], own, own)[0, 0], torch.tensor(expected)
    )
    every = build_membership([WORDS.all_spans()], 5)
    found = merge_tokens(maps[None, None], own, every)[0, 0]
    torch.testing.assert_close(found[0], torch.tensor([0.4, 0.2, 0.0, 0.3, 0.1]))


def naive(maps, rows, columns):
    """[H, T, S] of one sentence, with loops."""
    found = torch.zeros(len(maps), len(rows), len(columns), dtype=maps.dtype)
    for head, weights in enumerate(maps):
        for row, attending in enumerate(rows):
            for column, attended in enumerate(columns):
                for t in attending:
                    for s in attended:
                        found[head, row, column] += weights[t, s] / len(attending)
    return found


def test_naive_twin():
    """Of sentences that differ in their words, outputs and gradients."""
    torch.manual_seed(0)
    maps = torch.rand(3, 2, 6, 7, dtype=torch.float64).softmax(-1).requires_grad_()
    rows = [[[0, 1], [2], [5, 3, 4]], [[4]], [[], [1, 2]]]
    columns = [[[6, 0], [1]], [[2], [], [3, 4, 5]], [[0, 1, 2, 3, 4, 5, 6]]]
    ours = merge_tokens(maps, build_membership(rows, 6), build_membership(columns, 7))
    assert ours.shape == (3, 2, 3, 3)
    expected = torch.zeros_like(ours)
    for number, (attending, attended) in enumerate(zip(rows, columns, strict=True)):
        part = naive(maps[number], attending, attended)
        expected[number, :, : len(attending), : len(attended)] = part
    torch.testing.assert_close(ours, expected)
    weights = torch.rand_like(ours)
    grads = [torch.autograd.grad((each * weights).sum(), maps)[0] for each in (ours, expected)]
    torch.testing.assert_close(*grads)


def test_rows_sum_to_one_with_special_tokens():
    every = build_membership([WORDS.all_spans()], 5)
    maps = torch.rand(1, 3, 5, 5, dtype=torch.float64).softmax(-1)
    sums = merge_tokens(maps, every, every).sum(-1)[0]
    expected = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)  # one has no token
    torch.testing.assert_close(sums, expected.expand(3, 5))
    words = build_membership([SPANS], 5)
    assert (merge_tokens(maps, words, words).sum(-1)[:, :, :2] < 1).all()


def test_batches_of_like_length():
    lengths = [5, 40, 3, 4, 9, 9, 2]
    found = list(group_by_length(lengths, 12))
    assert found == [[6, 2, 3], [0], [4], [5], [1]]
    assert list(group_by_length([], 12)) == []


@pytest.fixture(scope="module")
def subjects(hybrid_run, data_bin, encoder_data, tmp_path_factory) -> dict[str, ModelInspector]:
    encoder = train_encoder(encoder_data, "roberta_dna_tiny", tmp_path_factory.mktemp("encoder"))
    return {
        "translation": ModelInspector(hybrid_run / "checkpoint_last.pt", data_bin),
        "encoder": ModelInspector(encoder),
    }


@pytest.mark.parametrize("kind", ["translation", "encoder"])
def test_a_batch_changes_no_map(subjects, kind):
    subject = subjects[kind]
    texts = ["ein mann .".split(), "zwei hunde spielen im schnee .".split()]
    words = [subject.words(text) for text in texts]
    sources = [each.numbers for each in words]
    targets = [torch.tensor([8, 9, 2]), torch.tensor([9, 8, 7, 6, 2])]
    found = subject.maps(subject.collate(sources, targets))
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = subject.maps(subject.batch(source, target))
        assert alone.keys() == found.keys()
        for site in alone:
            for layer, maps in alone[site].items():
                part = found[site][layer][number, :, : maps.size(2), : maps.size(3)]
                torch.testing.assert_close(part, maps[0], rtol=0, atol=1e-5)
                assert not found[site][layer][number, :, : maps.size(2), maps.size(3) :].any()


def test_an_encoder_needs_no_target(subjects):
    subject = subjects["translation"]
    source = subject.words(["ein", "mann"]).numbers
    found = subject.maps(subject.collate([source]))["encoder"][0]
    expected = subject.maps(subject.batch(source, torch.tensor([8, 2])))["encoder"][0]
    torch.testing.assert_close(found, expected)


def test_an_encoder_says_features(subjects):
    subject = subjects["encoder"]
    batch = subject.collate([subject.words(["a", "dog"]).numbers])
    features, _ = subject.record_attention(batch, lambda heard: None)
    assert features.size(-1) == subject.model.args.encoder_embed_dim


def test_words_of_a_translation(subjects):
    """With the dictionary of the other side."""
    subject = subjects["translation"]
    word = subject.task.target_dictionary[8]
    found = subject.codec.encode([word, word], target=True)
    assert found.numbers.tolist() == [8, 8, 2] and found.spans == [[0], [1]]
