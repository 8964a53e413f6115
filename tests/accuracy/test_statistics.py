# SPDX-License-Identifier: Apache-2.0
"""Intervals and the paired test: known answers, properties, and how often they hold on simulated data."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_rl.evaluation import statistics

ROUNDS = 1000


def simulated(rng, questions, answers):
    """Right answers of two arms to easy, hard and even questions."""
    chances = rng.choice([0.02, 0.3, 0.5, 0.8, 0.97], questions)
    return (rng.binomial(answers, chances).tolist() for _ in range(2))


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.7062), (3, 3.1824), (29, 2.0452), (499, 1.9647)])
def test_quantiles_of_student(freedom, quantile):
    """From printed tables."""
    assert statistics.t_quantile(freedom) == pytest.approx(quantile, abs=6e-5)


def test_wilson_known_answer():
    """The example of Newcombe (1998): 81 of 263, 0.2553 to 0.3662 with 1.96; wider by Student's quantile."""
    found = statistics.pass_at_1([1] * 81 + [0] * 182, 1)
    assert (found.value, found.low, found.high) == pytest.approx((81 / 263, 0.2553, 0.3662), abs=6e-4)
    assert found.low < 0.2553 and found.high > 0.3662


def test_interval_of_all_right_is_not_a_point():
    found = statistics.pass_at_1([4] * 30, 4)
    assert (found.value, found.high, found.standard_error) == (1.0, 1.0, 0.0)
    assert 0.85 < found.low < 0.92
    assert statistics.pass_at_1([1], 1).low < 0.2


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=1, max_size=40))))
def test_interval_holds_its_value_and_mirrors(drawn):
    answers, right = drawn
    found = statistics.pass_at_1(right, answers)
    wrong = statistics.pass_at_1([answers - count for count in right], answers)
    assert 0 <= found.low <= found.value + 1e-12 and found.value <= found.high + 1e-12 <= 1 + 1e-11
    assert found.low == pytest.approx(1 - wrong.high, abs=1e-9) and found.high == pytest.approx(1 - wrong.low, abs=1e-9)


@pytest.mark.parametrize(("questions", "answers"), [(30, 8), (100, 1)])
def test_intervals_cover_the_truth(questions, answers):
    """95 to 97 %, as far as four standard errors tell: of 0.518, the mean chance, and of 0, the arms' difference."""
    rng = np.random.default_rng(1)
    held = np.zeros(2)
    for _ in range(ROUNDS):
        off, on = simulated(rng, questions, answers)
        estimate, difference = statistics.pass_at_1(off, answers), statistics.difference(off, on, answers)
        held += estimate.low <= 0.518 <= estimate.high, difference.low <= 0 <= difference.high
    error = 4 * math.sqrt(0.95 * 0.05 / ROUNDS)
    assert (abs(held / ROUNDS - 0.96) <= 0.01 + error).all(), held


@pytest.mark.parametrize(("questions", "answers"), [(30, 8), (200, 1)])
def test_paired_test_is_wrong_as_often_as_it_says(questions, answers):
    rng = np.random.default_rng(3)
    values = [statistics.paired_test(*simulated(rng, questions, answers)) for _ in range(ROUNDS)]
    for level in (0.05, 0.2):
        share = sum(p <= level for p in values) / ROUNDS
        assert share <= level + 4 * math.sqrt(level * (1 - level) / ROUNDS)
        assert share > 0.5 * level, "a test that never says so says nothing"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9))
def test_paired_test_is_the_share_of_sign_patterns(pairs):
    off, on = zip(*pairs, strict=True)
    gaps = [b - a for a, b in pairs]
    patterns = itertools.product((-1, 1), repeat=len(gaps))
    exact = np.mean([abs(np.dot(signs, gaps)) >= abs(sum(gaps)) for signs in patterns])
    assert statistics.paired_test(off, on) == pytest.approx(exact)
    assert statistics.paired_test(on, off) == pytest.approx(exact)


@pytest.mark.parametrize("questions", [1, 4, 30])
def test_equal_differences_are_no_certain_ones(questions):
    """The next question may do otherwise; with few of them the interval agrees with the test, which sees nothing."""
    off, on = [1] * questions, [4] * questions
    found, mirrored = statistics.difference(off, on, 4), statistics.difference(on, off, 4)
    assert (found.value, found.standard_error) == (0.75, 0)
    assert found.low == pytest.approx(0.75 - 1.75 * (1 - 0.05 ** (1 / questions))) and 0.75 < found.high < 1
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    assert (found.low < 0) == (statistics.paired_test(off, on) > 0.05)
