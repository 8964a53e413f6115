# SPDX-License-Identifier: Apache-2.0
"""The interval and the paired test: known answers, properties, and how often they hold on simulated data."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_rl.evaluation import statistics

ROUNDS = 1000


def simulated(rng, questions, answers):
    """Return two arms' numbers of right answers to questions of mixed difficulty."""
    chances = rng.choice([0.02, 0.3, 0.5, 0.8, 0.97], questions)
    return (rng.binomial(answers, chances).tolist() for _ in range(2))


@pytest.mark.parametrize(("questions", "answers"), [(30, 8), (100, 1)])
def test_intervals_cover_the_truth(questions, answers):
    """The arms do not differ, so 95 to 97 % of the intervals contain 0, give or take four standard errors."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(ROUNDS):
        difference = statistics.difference(*simulated(rng, questions, answers), answers)
        held += difference.low <= 0 <= difference.high
    assert abs(held / ROUNDS - 0.96) <= 0.01 + 4 * math.sqrt(0.95 * 0.05 / ROUNDS)


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
    """The interval keeps a width although the standard error is 0, as the next question may differ; it includes 0
    exactly if the test finds nothing."""
    off, on = [1] * questions, [4] * questions
    found, mirrored = statistics.difference(off, on, 4), statistics.difference(on, off, 4)
    assert (found.value, found.standard_error) == (0.75, 0)
    assert found.low == pytest.approx(0.75 - 1.75 * (1 - 0.05 ** (1 / questions))) and 0.75 < found.high < 1
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    assert (found.low < 0) == (statistics.paired_test(off, on) > 0.05)
