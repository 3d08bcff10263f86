"""A model passes over its modules at each step as fairseq does, without a call for each."""

import sys

import pytest
from fairseq.models import BaseFairseqModel, FairseqEncoder
from torch import nn

from fairseq_ext.models.reporting import ReportingModel, list_modules


class Told(nn.Module):
    """A module that is told of updates, with modules within."""

    def __init__(self, *parts):
        super().__init__()
        self.parts, self.absent, self.updates = nn.ModuleList(parts), None, []

    def set_num_updates(self, num_updates):
        self.updates.append(num_updates)


class Encoder(FairseqEncoder):
    def __init__(self, *parts):
        super().__init__({})
        self.parts = nn.ModuleList(parts)


class Model(ReportingModel):
    reporting = Told

    def __init__(self, *parts):
        super().__init__()
        self.parts, self.empty = nn.ModuleList(parts), nn.ModuleList()


Told.statistics = dict


@pytest.fixture
def model():
    shared = nn.Linear(1, 1)
    inner = Model(Told())
    encoder = Encoder(Told(Told(), shared), nn.Sequential(shared, nn.ReLU()))
    return Model(encoder, inner, shared)


def test_modules_are_listed_in_their_order(model):
    assert list_modules(model) == list(model.modules())


@pytest.mark.parametrize("mode", [True, False])
def test_each_module_gets_the_mode(model, mode):
    """Modules that were switched by hand get it, too."""
    for at in range(len(list_modules(model))):
        list_modules(model)[at].training = not mode
        assert model.train(mode) is model
        assert {module.training for module in model.modules()} == {mode}
    model.train(not mode)
    assert {module.training for module in model.modules()} == {not mode}


def test_a_module_that_never_trains_is_asked_again(model):
    frozen = model.parts[2]
    frozen.train = lambda mode=True: nn.Module.train(frozen, False)
    for _ in range(2):
        model.train()
        assert not frozen.training and model.parts[0].training


def test_whoever_asks_is_told_of_updates(model):
    """An encoder of fairseq's tells its own modules, which were told; it is not asked."""
    model.set_num_updates(3)
    told = [module for module in model.modules() if isinstance(module, Told)]
    inner = model.parts[1].parts[0]
    assert len(told) == 3 and {tuple(module.updates) for module in told} == {(3,), (3, 3)}
    assert inner.updates == [3, 3]  # by both models, as fairseq does
    assert model.num_updates == model.parts[1].num_updates == 3


def test_a_step_makes_no_call_for_each_module():
    many = Model(*(nn.Linear(1, 1) for _ in range(100)))
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    many.train()
    many.set_num_updates(1)
    sys.setprofile(None)
    assert len(calls) < 50, calls
    assert issubclass(Model, BaseFairseqModel)
