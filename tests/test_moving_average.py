"""--store-ema: a moving average of all parameters, whatever a training begins from."""

from argparse import Namespace

import pytest
import torch
from conftest import train
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

from fairseq_ext.testing.mechanisms import build_tiny_model

PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}


@pytest.mark.parametrize("in_float32", [False, True])
@pytest.mark.parametrize(
    ("name", "options", "last_norm"),
    [
        ("transformer_dna_tiny", PRE_NORM, True),
        ("transformer_una_tiny", {}, False),
        ("transformer_lm_una_tiny", {}, True),
        ("transformer_una_tiny", {"share_all_embeddings": True, "encoder_positions": "t5"}, False),
        ("transformer_una_tiny", {"share_encoder_decoder_layers": True}, False),
        ("roberta_una_tiny", {}, False),
    ],
)
def test_every_parameter_is_averaged(name, options, last_norm, in_float32):
    model = build_tiny_model(name, **options)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.75, ema_fp32=in_float32))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    average.step(model)
    found = average.get_model().state_dict()
    assert found.keys() == before.keys()
    assert ("decoder.layer_norm.weight" in found) == last_norm
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value - 0.75)
    assert all(torch.equal(found[x], before[x]) for x in before if "version" in x)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("transformer_una_tiny", {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "1"}),
        ("roberta_una_tiny", {"encoder_layers_to_keep": "1,3"}),
        ("transformer_lm_una_tiny", {"decoder_layers_to_keep": "1,3"}),
    ],
)
def test_an_average_begins_from_the_layers_that_are_kept(name, kept):
    sizes = {f"{option.partition('_')[0]}_layers": 4 for option in kept}
    whole, model = build_tiny_model(name, **sizes), build_tiny_model(name, **sizes, **kept)
    model.load_state_dict(whole.state_dict(), model_cfg=Namespace(arch=name, **kept))
    average = EMA(build_tiny_model(name, **sizes, **kept), EMAConfig(store_ema=True))
    average.restore(whole.state_dict())
    expected, found = model.state_dict(), average.get_model().state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    average.restore(found)  # as each step does
    assert all(torch.equal(average.get_model().state_dict()[n], expected[n]) for n in expected)


def test_a_resumed_average_counts_on(data_bin, tmp_path):
    """An average moves after 3 updates, whether the training was cut after 2 or not."""
    flags = ["--store-ema", "--ema-decay", 0.5, "--ema-update-freq", 3, "--lr-scheduler", "fixed"]
    whole = train(data_bin, "transformer_una_tiny", tmp_path / "whole", 4, *flags)
    for updates in (2, 4):
        resumed = train(data_bin, "transformer_una_tiny", tmp_path / "cut", updates, *flags)
    found, expected = (
        load_checkpoint_to_cpu(str(path))["extra_state"]["ema"] for path in (resumed, whole)
    )
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("precision", [[], ["--bf16", "--ema-fp32"]], ids=["float32", "bf16"])
def test_an_average_begins_from_a_checkpoint_without_one(data_bin, tmp_path, precision):
    train(data_bin, "transformer_una_tiny", tmp_path, 2, *precision)
    flags = ["--store-ema", "--ema-decay", 0.9, *precision]
    saved = load_checkpoint_to_cpu(
        str(train(data_bin, "transformer_una_tiny", tmp_path, 4, *flags))
    )
    assert saved["extra_state"]["ema"].keys() == saved["model"].keys()
