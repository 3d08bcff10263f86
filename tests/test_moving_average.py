"""--store-ema: a moving average of all parameters, whatever a training begins from."""

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


@pytest.mark.parametrize("precision", [[], ["--bf16", "--ema-fp32"]], ids=["float32", "bf16"])
def test_an_average_begins_from_a_checkpoint_without_one(data_bin, tmp_path, precision):
    train(data_bin, "transformer_una_tiny", tmp_path, 2, *precision)
    flags = ["--store-ema", "--ema-decay", 0.9, *precision]
    saved = load_checkpoint_to_cpu(
        str(train(data_bin, "transformer_una_tiny", tmp_path, 4, *flags))
    )
    assert saved["extra_state"]["ema"].keys() == saved["model"].keys()
