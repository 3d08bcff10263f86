"""Tests of differences, against closed formulas, known cases and simulations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy import special

from fairseq_ext.evaluation.metrics import METRICS
from fairseq_ext.evaluation.significance import (
    bootstrap,
    bootstrap_over_seeds,
    holm,
    paired_t,
    randomisation,
)


def mean(sums: np.ndarray) -> float:
    """A score that is the mean over sentences."""
    return float(sums[0] / sums[1])


def sentences(values: np.ndarray) -> np.ndarray:
    return np.stack([values, np.ones_like(values)], 1)


def test_t_is_that_of_the_closed_formula():
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 2 sqrt(3) with 2 degrees of
    # freedom, of which the distribution is (1 + t / sqrt(2 + t^2)) / 2.
    found = paired_t([31.0, 33.0, 35.0], [30.0, 31.0, 32.0])
    t = 2 * math.sqrt(3)
    assert found.difference == pytest.approx(2)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    half = 4.302652729911275 / math.sqrt(3)  # 97.5 % of that distribution, from a table
    assert found.interval == pytest.approx((2 - half, 2 + half))


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=9).filter(lambda x: len(set(x)) > 1))
def test_t_is_that_of_the_incomplete_beta_function(values):
    differences, n = np.array(values, float), len(values)
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(n))
    expected = special.betainc((n - 1) / 2, 0.5, (n - 1) / (n - 1 + t**2))
    assert paired_t(differences + 30, np.full(n, 30.0)).p == pytest.approx(expected, abs=1e-9)


def test_t_of_equal_differences_is_unknown():
    for shift in (0.0, 0.1):
        found = paired_t([1.0 + shift, 2.0 + shift, 3.0 + shift], [1.0, 2.0, 3.0])
        assert math.isnan(found.p) and found.interval is None
        assert found.difference == pytest.approx(shift)


@pytest.mark.parametrize("test", [bootstrap, randomisation])
def test_extremes(test):
    same = np.linspace(0, 1, 50)
    equal = test(sentences(same), sentences(same), mean, 200)
    assert (equal.difference, equal.p) == (0, 1)
    better = test(sentences(same + 1), sentences(same), mean, 200)
    assert better.difference == pytest.approx(1) and better.p == pytest.approx(1 / 201)
    worse = test(sentences(same - 1), sentences(same), mean, 200)
    assert worse.difference == pytest.approx(-1) and worse.p == better.p


def over_seeds(systems, baselines, samples=2000):
    sides = (np.stack([sentences(values) for values in side]) for side in (systems, baselines))
    return bootstrap_over_seeds(*sides, mean, samples)


def test_of_one_seed_the_bootstrap_over_seeds_is_that_over_sentences():
    """And of seeds with the same outputs, whose spread is none."""
    rng = np.random.default_rng(4)
    base = rng.normal(size=80)
    other = base + rng.normal(0.2, 1, size=80)
    expected = bootstrap(sentences(other), sentences(base), mean, 2000)
    for seeds in (1, 3):
        found = over_seeds([other] * seeds, [base] * seeds)
        assert found.difference == pytest.approx(expected.difference)
        assert found.p == pytest.approx(expected.p, abs=0.03)
        assert found.interval == pytest.approx(expected.interval, abs=0.03)


def test_worked_example_of_seeds():
    """Three seeds ahead by 0, 3 and 6, each of whose sentences are alike.

    Means of three with replacement: 0 in 1 of 27 cases, 6 in another, and p counts the cases whose
    distance from 3 is 3 at least.
    """
    base = np.linspace(0, 1, 20)
    found = over_seeds([base, base + 3, base + 6], [base] * 3, 20_000)
    assert found.difference == pytest.approx(3)
    assert found.p == pytest.approx(2 / 27, abs=0.006)
    assert found.interval == pytest.approx((0, 6))


def test_seeds_are_matched():
    """An effect of a seed on both variants does not count."""
    shifts = np.array([0.0, 5, 10])[:, None]
    base = np.linspace(0, 1, 30) + shifts
    found = over_seeds(base + 0.1, base)
    assert found.interval == pytest.approx((0.1, 0.1)) and found.p == pytest.approx(1 / 2001)


def test_with_seeds_that_differ_an_equal_variant_is_rarely_called_better():
    """Sentences alone call it so more often; seeds are ten, since few make p too small."""
    rng = np.random.default_rng(5)
    below, below_of_sentences = 0, 0
    for _ in range(100):
        one, other = rng.normal(size=(2, 10, 40)) + rng.normal(size=(2, 10, 1))
        below += over_seeds(one, other, 199).p <= 0.1
        below_of_sentences += bootstrap(sentences(one[0]), sentences(other[0]), mean, 199).p <= 0.1
    assert below <= 25 < 50 < below_of_sentences


def test_one_sentence_is_no_evidence():
    base = np.linspace(0, 1, 50)
    other = base.copy()
    other[7] += 5
    assert randomisation(sentences(other), sentences(base), mean, 200).p == 1
    assert bootstrap(sentences(other), sentences(base), mean, 500).p > 0.2


@pytest.mark.parametrize("test", [bootstrap, randomisation])
def test_of_a_mean_they_agree_with_student(test):
    """With 400 sentences the three ask the same, two-sided."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=400)
    for shift in (0.02, -0.05, 0.1):
        other = base + rng.normal(shift, 1, size=400)
        found = test(sentences(other), sentences(base), mean, 2000)
        student = paired_t(other, base)
        assert found.difference == pytest.approx(student.difference)
        assert found.p == pytest.approx(student.p, abs=0.04)
        if found.interval:
            assert found.interval == pytest.approx(student.interval, abs=0.02)


@pytest.mark.parametrize("test", [bootstrap, randomisation])
def test_when_nothing_differs_one_in_ten_is_below_a_tenth(test):
    rng = np.random.default_rng(2)
    below = 0
    for _ in range(200):
        one, other = rng.normal(size=(2, 60))
        below += test(sentences(one), sentences(other), mean, 199).p <= 0.1
    assert 8 <= below <= 34  # four standard errors of 200 draws


def test_randomisation_is_that_of_sacrebleu_but_for_the_draws():
    rng = np.random.default_rng(3)
    words = np.array(list("abcdefgh"))
    references = [" ".join(rng.choice(words, 12)) for _ in range(60)]

    def spoilt(share):
        swapped = lambda word: rng.choice(words) if rng.random() < share else word  # noqa: E731
        return [" ".join(map(swapped, line.split())) for line in references]

    base, other = spoilt(0.30), spoilt(0.27)
    _, theirs = PairedTest([("a", base), ("b", other)], {"b": BLEU()}, [references], "ar", 2000)()
    scorer = METRICS["bleu"].make(False, "en")
    numbers = [scorer.statistics(output, references) for output in (other, base)]
    ours = randomisation(*numbers, scorer.value, 2000)
    first, second = theirs["BLEU"]
    assert ours.difference == pytest.approx(second.score - first.score)
    assert 0.05 < ours.p < 0.95 and ours.p == pytest.approx(second.p_value, abs=0.04)


def test_holm():
    # 3 x 0.01, 2 x 0.02, 1 x 0.03 but not below what came before.
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    unknown, known = holm([math.nan, 0.5])
    assert math.isnan(unknown) and known == 0.5
