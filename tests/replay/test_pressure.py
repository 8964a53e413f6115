# SPDX-License-Identifier: Apache-2.0
"""Acceptance within a budget of memory, against the best plan that knows the answers, and with private requests."""

import pytest

from sam_lab.bench import pressure


@pytest.fixture(scope="module")
def groups():
    return pressure.groups_of("math-cot-groups8")


@pytest.mark.parametrize("budget", [1.0, pytest.param(1.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ["together", "in turns", "mixed", "skewed"])
def test_acceptance_within_a_budget(groups, order, budget):
    found = pressure.compare(groups, order, budget)
    assert found["ours"] > 0.93 * found["best"] and found["ours"] > 0.98 * found["private"], found
    assert found["ours"] > 1.5
