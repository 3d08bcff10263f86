"""Adversarial self-attention and its baselines in DistributedDataParallel, of one process."""

import pytest
import torch
from adversarial import PLACES, build, gradients
from fairseq.distributed import ModuleProxyWrapper
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

PLAIN, DROPPED = {"asa_layers": "none"}, {"encoder_layerdrop": 0.5}
BASELINES = {
    "none": {},
    "two_pass": {"model": PLAIN},
    "bernoulli": {"model": PLAIN},
    "freelb": {"model": PLAIN, "asa_steps": 3},
    "smart": {"model": PLAIN, "asa_steps": 2},
}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    where = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", f"file://{where}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def trained(name, baseline, wrapped, options):
    """Gradients of the second of two steps."""
    case = build(name, asa_baseline=baseline, **options)
    model, drops = case.model, "encoder_layerdrop" in options.get("model", {})
    if wrapped:
        parallel = DistributedDataParallel(
            model, broadcast_buffers=False, find_unused_parameters=drops
        )
        model = ModuleProxyWrapper(parallel)  # as fairseq does
    torch.manual_seed(3)
    for _ in range(2):
        found = gradients(case.model, case.criterion(model, case.sample(PLACES))[0])
    return found


@pytest.mark.parametrize("name", ["sentence_classification", "label_smoothed_cross_entropy"])
@pytest.mark.parametrize(
    ("baseline", "options"),
    [*BASELINES.items(), ("freelb", {"model": PLAIN | DROPPED})],
    ids=[*BASELINES, "freelb, layers dropped"],
)
def test_gradients_are_those_of_the_model_alone(name, baseline, options):
    alone, wrapped = (trained(name, baseline, inside, options) for inside in (False, True))
    used = {name for name, gradient in wrapped.items() if gradient.any()}
    assert len(used) > 10 and used <= alone.keys() <= wrapped.keys()
    for parameter, gradient in alone.items():
        torch.testing.assert_close(wrapped[parameter], gradient, msg=parameter)
