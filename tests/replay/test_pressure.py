# SPDX-License-Identifier: Apache-2.0
"""Acceptance within a budget of memory, on the benchmark's own answers: it may not fall far below what the best plan
that knows the answers reaches, nor below private requests in the same memory."""

import pytest

from sam_lab.bench import pressure
from sam_lab.bench.rows import TARGETS, Targets
from sam_lab.bench.texts import Texts


@pytest.fixture(scope="module")
def groups():
    return pressure.groups_of(Texts(fixture=True), "math-cot-groups8")


@pytest.mark.parametrize("budget", [1.0, 1.5])
@pytest.mark.parametrize("order", ["together", "in turns", "mixed", "skewed"])
def test_acceptance_within_a_budget(groups, order, budget):
    found = pressure.compare(groups, order, budget)
    assert found["ours"] > 0.93 * found["best"] and found["ours"] > 0.98 * found["private"], found
    assert found["ours"] > 1.5


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle(monkeypatch):
    shares = iter([1.0, 0.9, 0.8, 0.6] * 9)
    monkeypatch.setattr(pressure, "compare", lambda *of: {"ours": next(shares), "best": 1.0, "private": 1.0})
    ((rows, measure),) = pressure.rows(Texts(fixture=True), Targets(TARGETS), False, lambda text: None)
    measure(rows)
    assert rows[0].ours.median == 0.6 and rows[0].note.endswith("median 0.850")
