# SPDX-License-Identifier: Apache-2.0
"""Acceptance within a budget of memory, on the benchmark's own answers: it may not fall far below what the best plan
that knows the answers reaches, nor below private requests in the same memory."""

import sys

import pytest
from c_programs import PROJECT

BENCH = PROJECT / "bench"


@pytest.fixture(scope="module")
def pressure():
    if not (BENCH / "pressure.py").exists():
        pytest.skip("the benchmark is not in this source archive")
    sys.path.insert(0, str(BENCH))
    try:
        import pressure
    finally:
        sys.path.remove(str(BENCH))
    return pressure


@pytest.fixture(scope="module")
def groups(pressure):
    return pressure.groups_of(pressure.Texts(fixture=True), "math-cot-groups8")


@pytest.mark.parametrize("budget", [1.0, 1.5])
@pytest.mark.parametrize("order", ["together", "in turns", "mixed", "skewed"])
def test_acceptance_within_a_budget(pressure, groups, order, budget):
    found = pressure.compare(groups, order, budget)
    assert found["ours"] > 0.93 * found["best"] and found["ours"] > 0.96 * found["private"], found
    assert found["ours"] > 1.5
