"""Trained models in Python: what notebooks use."""

import inspect

import pytest
import torch
from conftest import train, train_encoder

from fairseq_ext.analysis.notebook import load
from fairseq_ext.errors import UsageError

SENTENCE = "a man in an orange hat ."


@pytest.fixture(scope="module")
def translation(data_bin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    return load(str(train(data_bin, "transformer_dna_tiny", folder, 1)), str(data_bin))


@pytest.fixture(scope="module")
def encoder(encoder_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    return load(train_encoder(encoder_data, "roberta_una_tiny", folder), encoder_data)


def test_a_translation_has_whole_words_of_the_target(translation):
    numbers = translation.inspector.translate(translation.inspector.words(SENTENCE.split()).numbers)
    dictionary = translation.inspector.task.target_dictionary
    assert translation.translate(SENTENCE) == dictionary.string(numbers, "@@ ")
    pieces = [dictionary[number] for number in numbers[:-1]]
    assert translation.translate(SENTENCE, None) == " ".join(pieces)


def test_maps_are_those_of_the_inspector(translation):
    attention = translation.attend(SENTENCE, target="ein mann .")
    assert set(attention.sites) == {"encoder", "decoder", "cross"} == set(translation.heads)
    inspector = translation.inspector
    codec = inspector.codec
    target = codec.encode("ein mann .".split(), target=True).numbers
    batch = inspector.batch(codec.encode(SENTENCE.split()).numbers, target)
    maps = inspector.maps(batch)
    torch.testing.assert_close(attention.map("cross", 1, 2), maps["cross"][1][0, 2])
    torch.testing.assert_close(attention.map("encoder"), maps["encoder"][3][0, 0])
    mean = attention.map("decoder", 0, "mean")
    torch.testing.assert_close(mean, maps["decoder"][0][0].mean(0))
    assert attention.tokens("cross") == inspector.label_axes(batch, "cross")
    assert attention.tokens("encoder")[0][:2] == ["a", "man"]
    assert attention.map("cross").shape == tuple(map(len, attention.tokens("cross")))


@pytest.mark.parametrize("head", [1, "mean", "all"])
def test_figures_name_layer_and_head(translation, head):
    figure = translation.attend(SENTENCE).draw("encoder", layer=2, head=head)
    texts = {text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text"))}
    named = {1: "layer 2, head 1", "mean": "layer 2, mean of 4 heads", "all": "layer 2, head 0"}
    assert any(named[head] in text for text in texts)


def test_statistics_have_a_row_for_each_head(encoder):
    rows = encoder.statistics("valid", limit=5)
    assert [(row["layer"], row["head"]) for row in rows] == [
        (i, j) for i in range(4) for j in range(8)
    ]
    assert all(row["entropy"] > 0 and 0 <= row["next"] <= 1 for row in rows)


def test_bertviz_gets_the_arguments_that_it_takes(translation, encoder):
    """As its version 1.4 documents them; the real function where it is installed."""
    plain = encoder.attend("The dog sleeps.").for_bertviz()
    both = translation.attend(SENTENCE).for_bertviz()
    assert set(plain) == {"attention", "tokens"} and len(plain["attention"]) == 4
    assert set(both) == {
        f"{name}_{what}"
        for name, what in [("encoder", "attention"), ("decoder", "attention")]
        + [("cross", "attention"), ("encoder", "tokens"), ("decoder", "tokens")]
    }
    size = len(plain["tokens"])
    assert all(each.shape == (1, 8, size, size) for each in plain["attention"])
    sizes = len(both["decoder_tokens"]), len(both["encoder_tokens"])
    assert all(each.shape == (1, 4, *sizes) for each in both["cross_attention"])
    bertviz = pytest.importorskip("bertviz", exc_type=ImportError)
    for arguments in (plain, both):
        inspect.signature(bertviz.head_view).bind(**arguments)
        assert "script" in str(bertviz.head_view(**arguments, html_action="return").data)


def test_refusals(translation, encoder, tmp_path):
    with pytest.raises(UsageError, match="does not translate"):
        encoder.translate(SENTENCE)
    with pytest.raises(UsageError, match="the site is 'decoder' and must be one of encoder"):
        encoder.attend(SENTENCE).map("decoder")
    with pytest.raises(UsageError, match="--layer is 9"):
        encoder.attend(SENTENCE).draw(layer=9, head=0)
    with pytest.raises(UsageError, match="is not there"):
        load(tmp_path / "none.pt")
