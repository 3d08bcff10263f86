"""Each part of ours in a slot, as users check theirs: with twins, gradients and invariants."""

import pytest
from cases import slow_but_first
from mechanism_cases import TABLES, find_case, list_cases, list_parts

from fairseq_ext import testing
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.attention.normalisers import Normaliser
from fairseq_ext.mechanisms.kernels import doubly_cpu
from fairseq_ext.models.architectures import FAMILIES


def check_positions(name, twin, **options):
    """They have no function of fairseq_ext.testing, since users cannot register any."""
    testing.check_model(encoder_positions=name, decoder_positions=name, **options)


CHECKS = {
    "normaliser": testing.check_normaliser,
    "scorer": testing.check_scorer,
    "positions": check_positions,
    "head_mixer": testing.check_head_mixer,
    "head_gate": testing.check_head_gate,
    "masks": lambda name, twin, **options: testing.check_mask(name, **options),
}
EMPTY = {("head_mixer", "none"), ("head_gate", "none")}
PARTS = [key for key in list_parts() if key not in EMPTY]


@pytest.mark.parametrize(("slot", "part"), list_parts())
def test_a_file_of_tests_knows_every_part(slot, part):
    find_case(slot, part)


def test_every_case_is_that_of_a_part():
    """And of another one than any other case."""
    cases = [case.key for case in list_cases() if case.slot in TABLES]
    assert sorted(cases) == sorted(list_parts())


CASES = [case for case in list_cases() if case.key in PARTS]
MORE = [
    pytest.param(*case.key, options, marks=pytest.mark.slow)
    for case in CASES
    for options in case.options[1:]
]


@pytest.mark.parametrize(
    ("slot", "part", "options"), [*((*case.key, case.options[0]) for case in CASES), *MORE]
)
def test_checks_for_users(slot, part, options):
    CHECKS[slot](part, find_case(slot, part).twin, **options)


KERNELS = [
    case.key[1]
    for case in CASES
    if case.slot == "normaliser" and type(case.build(1)).fused is not Normaliser.fused
]


@pytest.mark.parametrize("part", KERNELS)
def test_kernels_on_inputs_of_any_size(part, monkeypatch):
    monkeypatch.setattr(softmax, "MIN_SCORES", 0)
    monkeypatch.setattr(doubly_cpu, "MIN_SCORES", 0)
    case = find_case("normaliser", part)
    testing.check_normaliser(part, case.twin, **case.options[0])


SECOND_PASSES = {case.name for case in list_cases() if case.slot == "second pass"}
MECHANISMS = {name: None for family in FAMILIES.values() for name in family.mechanisms}


@pytest.mark.parametrize(
    "mechanism", slow_but_first(name for name in MECHANISMS if name not in SECOND_PASSES)
)
def test_mechanisms(mechanism):
    """But those whose parameters have gradients with a criterion of their own alone."""
    testing.check_mechanism(mechanism)
