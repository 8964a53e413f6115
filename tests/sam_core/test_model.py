# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of what is learned: the twin's against the real functions, and the C's tables against the twin's."""

import math
import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from sam_core.options import RULES
from sam_core.reference import model as M

import sam_core
from sam_core import reference


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


def test_squash_rises_and_is_symmetric():
    values = [M.squash(stretched) for stretched in range(-2100, 2101)]
    assert values == sorted(values)
    assert all(abs(low + high - M.ONE) <= 1 for low, high in zip(values, reversed(values)))


def test_stretch_inverts_squash():
    assert len(M.STRETCH) == M.ONE and list(M.STRETCH) == sorted(M.STRETCH)
    for p in range(1, M.ONE):
        assert M.squash(M.STRETCH[p]) >= p > M.squash(M.STRETCH[p] - 1) or M.STRETCH[p] == -2047


# ---- adaptive means -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("prior", [0.001, 0.3, 0.999])
def test_a_mean_comes_to_the_share_of_outcomes(share, prior):
    rng = random.Random(f"{share} {prior}")
    entry = int(prior * ((1 << 22) - 1)) << 10
    means = []
    for _ in range(2000):
        entry = M.updated(entry, rng.random() < share)
        means.append(mean(entry))
    assert abs(means[-1] - share) < 0.1 and abs(np.mean(means[500:]) - share) < 0.02


def test_a_mean_is_quick_at_first_and_a_window_later():
    first = M.updated(0, True)
    assert mean(first) == pytest.approx(2 / 3, abs=1e-6)
    entry = first
    for _ in range(5000):
        entry = M.updated(entry, False)
    assert entry & 1023 == M.LIMIT
    after = M.updated(entry, True)
    assert mean(after) - mean(entry) == pytest.approx(1 / (M.LIMIT + 1.5), rel=0.01)


@given(st.integers(0, (1 << 22) - 1), st.integers(0, M.LIMIT), st.booleans())
def test_a_mean_stays_one(start, seen, outcome):
    entry = M.updated(start << 10 | seen, outcome)
    assert 0 <= entry < 1 << 32 and entry & 1023 == min(seen + 1, M.LIMIT)
    assert mean(entry) >= mean(start << 10) if outcome else mean(entry) <= mean(start << 10)
    assert 1 <= M.probability(entry) < M.ONE


# ---- cells ----------------------------------------------------------------------------------------------------------


def test_classes_rise_and_are_all_used():
    for classes, largest in (
        ([M.coarse_class(length) for length in range(200)], M.CLASSES),
        ([M.first_cell(0, 0, length) for length in range(1, 200)], M.LENGTHS),
        ([M.cell(count, count, False) for count in range(200)], M.COUNTS),
        ([M.cell(0, count, False) for count in range(200)], M.COUNTS),
    ):
        assert classes == sorted(classes) and len(set(classes)) == largest


def test_cells_of_different_classes_are_apart():
    lengths, counts = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 48, 49), (0, 1, 2, 3, 5, 10, 30, 31)
    cells = [
        M.first_cell(source, rank, length) + M.cell(count, count + rest, newest)
        for source in range(M.SOURCES)
        for rank in range(M.RANKS)
        for length in lengths
        for count in counts
        for rest in counts
        for newest in (False, True)
    ]
    assert sorted(cells) == list(range(M.CELLS))


def test_share_cells_are_about_twice_the_logarithm():
    for total in (1, 7, 1000, 10**6, 2**31 - 1):
        cells = [M.share_cell(count, total) for count in (*range(1, min(total, 2000)), total)]
        assert cells == sorted(cells, reverse=True) and cells[-1] == M.CELLS
        for count, cell in zip(range(1, min(total, 2000)), cells):
            exact = min(2 * math.log2(total / count), M.SHARES - 1)
            assert exact - 2 < cell - M.CELLS <= exact + 0.01
    assert M.share_cell(0, 10**6) == M.CELLS + M.SHARES - 1


def test_hashes_spread():
    """Of 4,000 candidates in one place few share an entry; the tokens before them count as far as a table goes."""
    for order in range(M.TOKENS):
        entries = [M.token_hash(order, candidate, 5, 7) for candidate in range(4000)]
        assert 0 <= min(entries) and max(entries) < M.HASHES
        assert len(set(entries)) > 0.6 * 4000
    assert M.token_hash(0, 3, 5, 7) == M.token_hash(0, 3, 6, 8)
    assert M.token_hash(1, 3, 5, 7) == M.token_hash(1, 3, 5, 8) != M.token_hash(1, 3, 6, 7)
    assert M.token_hash(2, 3, 5, 7) != M.token_hash(2, 3, 5, 8)
    assert M.token_hash(2, 2**31 - 1, -1, -1) < M.HASHES


# ---- followers ------------------------------------------------------------------------------------------------------


def test_a_follower_is_the_one_that_came_most_lately():
    """Doubts halve what a follower has gained; then the other takes its place."""
    model = M.Model(copied=False)
    asked = []
    for token in [7] * 6 + [8] * 4 + [7, 7]:
        model.learn_follower((1, 2, 3, 4, 5), token)
        asked.append(model.follower(2, (1, 2, 3, 4, 5)))
    assert asked[:6] == [(7, times) for times in range(1, 7)]
    assert asked[6:] == [(7, 3), (7, 1), (8, 1), (8, 2), (8, 1), (7, 1)]
    for _ in range(50):
        model.learn_follower((1, 2, 3, 4, 5), 7)
    assert model.follower(2, (1, 2, 3, 4, 5)) == (7, M.MOST_SEEN)


def test_followers_go_by_the_last_tokens():
    model = M.Model(copied=False)
    model.learn_follower((1, 2, 3, 4, 5), 7)
    for differs, known in ((5, 4), (4, 3), (3, 3), (2, 2), (1, 1), (0, 0)):
        last = [1, 2, 3, 4, 5, 6]
        last[differs] = 9
        assert [model.follower(order, last[:5]) for order in range(4)] == [(7, 1)] * known + [(-1, 0)] * (4 - known)
    model.learn_follower((-1,) * 5, 2**31 - 1)
    assert [model.follower(order, (-1,) * 5) for order in range(4)] == [(2**31 - 1, 1)] * 4


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


def test_prior_of_counts():
    """More of N occurrences, the latest of them, and a longer match each make a candidate more probable."""

    def prior(length, count, marks, newest=False):
        return M.probability(cells[M.first_cell(0, 0, length) + M.cell(count, marks, newest)])

    cells = M.Model(copied=False).cells
    assert prior(20, 4, 4) > prior(20, 2, 4) > prior(20, 1, 4) > prior(20, 0, 4)
    assert all(prior(length, 1, 3, True) > prior(length, 1, 3) for length in range(1, 60))
    assert prior(1, 1, 1) < prior(3, 1, 1) < prior(20, 1, 1) < prior(20, 3, 3)


def test_prior_of_copies():
    """A longer match and a token that came after others that were copied right are more probable."""
    cells = M.Model(copied=True).cells
    by_length = [M.probability(cells[M.first_cell(1, 0, length)]) for length in (1, 2, 4, 8, 16, 32, 64)]
    by_depth = [M.probability(cells[M.first_cell(1, 0, 2) + depth * M.COUNTS * 2]) for depth in range(M.COUNTS)]
    assert by_length == sorted(by_length) and by_depth == sorted(by_depth)
    assert len(set(by_length)) == len(by_length) and len(set(by_depth)) == len(by_depth)


@pytest.mark.parametrize("rule", RULES)
def test_an_untrained_pool_holds_the_prior(tmp_path, rule):
    pool, twin = sam_core.Pool(rule=rule), reference.Pool(rule=rule)
    pool.save(tmp_path / "pool")
    learned = twin.learned()
    size = M.ALL_CELLS + 3 * M.HASHES + M.SETS * M.INPUTS + M.ORDERS * 2 * M.FOLLOWERS
    assert learned.dtype == np.uint32 and len(learned) == size
    assert learned.tobytes() in (tmp_path / "pool").read_bytes()
