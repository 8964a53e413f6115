# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of what is learned: the twin's against the real functions."""

import math

import pytest
from twin import model as M


def mean(entry):
    """The probability of an adaptive mean."""
    return (entry >> 10) / ((1 << 22) - 1)


# ---- stretch and squash ---------------------------------------------------------------------------------------------


def test_squash_is_the_logistic_function():
    """Interpolation errs most halfway between two of its points; the table's ends stand for all that is beyond."""
    for stretched in range(-4000, 4000, 7):
        exact = 4096 / (1 + math.exp(-stretched / 256))
        assert abs(M.squash(stretched) - exact) < 32
        assert 1 <= M.squash(stretched) <= M.ONE - 1
    for half in range(-14, 15):
        assert abs(M.squash(128 * half) - 4096 / (1 + math.exp(-half / 2))) < 2


def test_stretch_inverts_squash():
    assert len(M.STRETCH) == M.ONE and list(M.STRETCH) == sorted(M.STRETCH)
    for p in range(1, M.ONE):
        assert M.squash(M.STRETCH[p]) >= p > M.squash(M.STRETCH[p] - 1) or M.STRETCH[p] == -2047


# ---- adaptive means -------------------------------------------------------------------------------------------------


def test_a_mean_is_quick_at_first_and_a_window_later():
    first = M.updated(0, True)
    assert mean(first) == pytest.approx(2 / 3, abs=1e-6)
    entry = first
    for _ in range(5000):
        entry = M.updated(entry, False)
    assert entry & 1023 == M.LIMIT
    after = M.updated(entry, True)
    assert mean(after) - mean(entry) == pytest.approx(1 / (M.LIMIT + 1.5), rel=0.01)


# ---- cells ----------------------------------------------------------------------------------------------------------


# ---- followers ------------------------------------------------------------------------------------------------------


def test_a_follower_that_came_twice_keeps_its_entry_for_a_while():
    model, first = M.Model(copied=False), (1, 2, 3, 4, 5)
    entry, key = M.follower_hash(0, first)
    other = next((at, 2, 3, 4, 5) for at in range(2, 10**6) if M.follower_hash(0, (at, 2, 3, 4, 5))[0] == entry)
    assert M.follower_hash(0, other)[1] != key
    model.learn_follower(first, 7)
    model.learn_follower(first, 7)
    for _ in range(M.PATIENCE):
        model.learn_follower(other, 8)
        assert model.follower(0, first) == (7, 2) and model.follower(0, other) == (-1, 0)
    model.learn_follower(other, 8)
    assert model.follower(0, first) == (-1, 0) and model.follower(0, other) == (8, 1)


# ---- the prior ------------------------------------------------------------------------------------------------------
