# SPDX-License-Identifier: Apache-2.0
"""Costs of steps as they are learned, and the budget that follows from them."""

import itertools
import json
import logging
import math

import budget_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_oracle import i32
from sam_core._sam import choose_drafts, lowest_score, observe_drafts, to_lists
from sam_core.budget import Calibration, Choice, choose
from sam_core.cost import MAX_ROWS, STEPS_PER_BIN, Expected, PromptCost, StepCost
from sam_core.proof import PlainSteps, Proof
from sam_core.switch import AutoSwitch, BatchSwitch


def curve(rows, context=0.0, draft_context=0.0):
    """Seconds of a step on a machine that is flat up to 6 rows."""
    return 0.08 * np.maximum(1, np.asarray(rows) / 6) ** 0.9 + 0.011 * context + 0.0047 * draft_context


def learned(steps=3000, noise=0.05, spikes=0.05, seed=0, of=StepCost):
    rng = np.random.default_rng(seed)
    cost = of()
    for _ in range(steps):
        batch = int(rng.integers(1, 33))
        drafts = int(rng.integers(0, 3 * batch + 1))
        held = rng.random(batch) * 3
        context, draft_context = held.sum(), held.mean() * drafts
        seconds = curve(batch + drafts, context, draft_context) * (1 + abs(rng.normal()) * noise)
        cost.observe(batch + drafts, context, draft_context, float(seconds * (4 if rng.random() < spikes else 1)))
    cost.fit()
    return cost


def test_a_cost_is_learned_in_spite_of_noise_and_spikes():
    cost = learned()
    for rows in (1, 4, 8, 16, 32, 64, 96):
        assert cost.rows_cost(rows) == pytest.approx(curve(rows), rel=0.12)
    assert cost.context == pytest.approx(0.011, rel=0.15)
    assert cost.draft_context == pytest.approx(0.0047, rel=0.4)


def test_a_size_that_was_lucky_once_is_not_taken_for_cheap():
    cost = StepCost()
    for rows in (*range(8, 30), *range(31, 40)):
        for _ in range(STEPS_PER_BIN):
            cost.observe(rows, 0.0, 0.0, float(curve(rows)))
    cost.observe(30, 0.0, 0.0, 0.5 * float(curve(30)))
    cost.fit()
    assert cost.rows_cost(30) == pytest.approx(curve(30), rel=0.05)
    assert cost.rows_cost(20) == pytest.approx(curve(20), rel=0.02)


def test_a_small_size_that_is_dear_is_known_to_be():
    cost = StepCost()
    for rows, seconds in ((1, 0.10), (2, 0.12), (3, 0.10), (4, 0.10), (8, 0.13), (16, 0.2)):
        for _ in range(STEPS_PER_BIN):
            cost.observe(rows, 0.0, 0.0, seconds)
    cost.fit()
    assert cost.rows_cost([1, 2, 3]) == pytest.approx([0.10, 0.12, 0.10], rel=0.01)


def test_a_cost_is_proportional_beyond_what_was_seen():
    cost = learned(noise=0.5)
    most = cost.max_rows
    assert cost.rows_cost(3 * most) == pytest.approx(3 * cost.rows_cost(most))


@pytest.mark.parametrize("of", [StepCost, PromptCost])
def test_one_size_costs_what_it_costs_among_others(of):
    cost = learned(noise=0.5, of=of)
    rows = np.arange(3 * int(cost.max_rows))
    assert [cost.size_cost(n) for n in rows.tolist()] == pytest.approx(cost.rows_cost(rows).tolist(), rel=1e-12)


@pytest.mark.parametrize("of", [StepCost, PromptCost])
def test_costs_of_consecutive_sizes_are_kept_until_they_change(of):
    cost = learned(noise=0.5, of=of)
    kept = cost.consecutive_costs(5, 40)
    assert cost.consecutive_costs(5, 30) is kept and kept.tolist() == cost.rows_cost(np.arange(5, 45)).tolist()
    for first, count in (6, 30), (6, 50), (3, 50):
        costs = cost.consecutive_costs(first, count)
        assert costs[:count].tolist() == cost.rows_cost(np.arange(first, first + count)).tolist()
    cost._scale(2.0)
    cost.refresh()
    assert cost._consecutive[0] is cost._seconds
    assert cost.consecutive_costs(3, 50) == pytest.approx(2 * costs)
    for _ in range(10):
        cost.observe(4, 0.0, 0.0, 9.0)
    cost.fit()
    assert cost.consecutive_costs(3, 50).tolist() == cost.rows_cost(np.arange(3, 53)).tolist()


def test_a_cost_follows_a_machine_that_changes():
    cost = StepCost()
    for seconds in [1.0] * 100 + [2.0] * STEPS_PER_BIN:
        cost.observe(4, 0.0, 0.0, seconds)
    cost.fit()
    assert cost.rows_cost(4) == pytest.approx(2.0)


def test_fits_stay_frequent(monkeypatch):
    cost, fits = StepCost(300.0), []
    fit = StepCost.fit
    monkeypatch.setattr(StepCost, "fit", lambda self: fits.append(step) or fit(self))
    for step in range(2000):
        cost.learn(4, 0.0, 0.0, 1.0)
    assert len(fits) > 50 and max(np.diff(fits)) <= 32


def test_memory_of_costs_is_bounded():
    cost = StepCost()
    size = cost._samples.nbytes
    for rows in range(1, 200_000, 7):
        cost.observe(rows, 1.0, 0.0, 1.0)
    assert cost._samples.nbytes == size < 1 << 20


@st.composite
def steps(draw):
    batch, k = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    unit = st.floats(0, 1, width=32)
    scores = np.array(draw(st.lists(st.lists(unit, min_size=k, max_size=k), min_size=batch, max_size=batch)))
    lengths = np.array(draw(st.lists(st.integers(0, k), min_size=batch, max_size=batch)), np.int32)
    contexts = np.array(draw(st.lists(st.floats(0, 5), min_size=batch, max_size=batch)))
    levels = 1 + np.cumsum(draw(st.lists(st.floats(0, 1), min_size=12, max_size=12)))
    cost = StepCost()
    for rows, seconds in enumerate(levels, 1):
        cost.observe(rows, 0.0, 0.0, float(seconds))
    cost.fit()
    cost.context, cost.draft_context = draw(st.floats(0, 0.3)), draw(st.floats(0, 0.3))
    return np.minimum.accumulate(scores, axis=1), lengths, contexts, cost


def rate(n, scores, contexts, cost):
    accepted = sum(scores[i, :m].sum() for i, m in enumerate(n))
    seconds = float(cost.rows_cost(len(n) + sum(n))) + cost.context * contexts.sum()
    return (len(n) + accepted) / (seconds + cost.draft_context * float(np.dot(n, contexts)))


@settings(max_examples=300, deadline=None)
@given(steps())
def test_the_choice_is_the_best_of_all(step):
    scores, lengths, contexts, cost = step
    chosen, gain, *_ = choose(scores, lengths, contexts, cost)
    best = max(rate(n, scores, contexts, cost) for n in itertools.product(*(range(m + 1) for m in lengths)))
    assert (chosen <= lengths).all()
    assert rate(chosen.tolist(), scores, contexts, cost) == pytest.approx(best)
    assert gain == pytest.approx(best / rate([0] * len(lengths), scores, contexts, cost))
    for times in (1e-3, 0.9, 1.0, 1.1, 1e3):
        guessed = choose(scores, lengths, contexts, cost, guess=times * best)
        assert guessed.gain == pytest.approx(gain), "it depends on the guess"
        assert rate(guessed.lengths.tolist(), scores, contexts, cost) == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(steps())
def test_with_captured_graphs_all_get_k_or_none(step):
    scores, lengths, contexts, cost = step
    batch, k = scores.shape
    chosen, gain, *_ = choose(scores, lengths, contexts, cost, uniform=k)
    assert set(chosen.tolist()) in ({0}, {k})
    guessed = np.where(np.arange(k) < lengths[:, None], scores, 0)
    rates = {n: rate([n] * batch, guessed, contexts, cost) for n in (0, k)}
    assert rates[int(chosen[0])] == pytest.approx(max(rates.values()))
    assert gain == pytest.approx(max(1.0, rates[k] / rates[0]))


@settings(max_examples=200, deadline=None)
@given(steps(), st.lists(st.integers(0, 6), min_size=1, max_size=4), st.booleans())
def test_beside_prompts_the_choice_is_the_best_at_the_price_of_steps_without(step, read, uniform):
    scores, lengths, contexts, cost = step
    batch, k = scores.shape
    prompt = PromptCost()
    for rows in range(1, 20):
        prompt.observe(rows, 0.0, 0.0, 0.3 + 0.1 * (rows > 4) + 0.01 * rows)
    prompt.fit()
    expected = Expected(cost, prompt, read)
    chosen, gain, *_ = choose(scores, lengths, contexts, cost, k * uniform, expected)
    without, gain_without, price, _ = choose(scores, lengths, contexts, cost, k * uniform)
    guessed = np.where(np.arange(k) < lengths[:, None], scores, 0.0)
    assert price == pytest.approx(rate(without.tolist(), guessed, contexts, cost))
    if uniform and not without.any():
        assert not chosen.any()
        return

    def worth(n):
        costs = [prompt if more else cost for more in read]
        seconds = np.mean([c.rows_cost(batch + sum(n) + more) for c, more in zip(costs, read, strict=True)])
        seconds += cost.draft_context * float(np.dot(n, contexts))
        return sum(guessed[i, :m].sum() for i, m in enumerate(n)) - price * seconds

    all_of = [[0] * batch, [k] * batch] if uniform else itertools.product(*(range(m + 1) for m in lengths))
    best = max(map(worth, all_of))
    assert worth(chosen.tolist()) == pytest.approx(best)
    more = worth([k] * batch) if uniform else best
    assert gain == pytest.approx(max(1.0, min(gain_without, 1 + (more - worth([0] * batch)) / batch)))


class Padded:
    """A cost of steps that are padded, so that many totals are candidates."""

    def __init__(self, rng):
        self.size, self.fixed = int(rng.integers(1, 40)), rng.random()
        self.context, self.draft_context, self.verify = rng.random(3) * rng.choice([0.0, 1e-3, 0.1], 3)

    def rows_cost(self, rows):
        return self.fixed + 0.01 * np.ceil(np.asarray(rows, float) / self.size) * self.size


@pytest.mark.parametrize("seed", range(60))
def test_c_chooses_what_numpy_does_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    batch, k = int(rng.choice([1, 2, 7, 40, 300])), int(rng.integers(1, 9))
    scores = np.minimum.accumulate(rng.random((batch, k)) ** rng.choice([0.2, 1, 3]), axis=1)
    contexts = rng.random(batch) * 5
    if seed % 3 == 0:  # ties, also of tokens of other scores and contexts
        scores, contexts = np.ceil(scores * 4) / 4, np.round(contexts)
    lengths = rng.integers(0, k + 1, batch).astype(np.int32)
    cost, beside = Padded(rng), Padded(rng) if seed % 2 else None
    turn, usual = int(rng.integers(0, 1000)), choose(scores, lengths, contexts, cost).rate
    for guess in (0.0, usual, 0.7 * usual, 30 * usual, 1e-9):
        chosen = choose(scores, lengths, contexts, cost, 0, beside, guess, turn)
        expected = oracle.choose(scores, lengths, contexts, cost, beside, guess, turn)
        assert chosen.lengths.tolist() == expected.lengths.tolist()
        assert chosen[1:] == expected[1:]


@pytest.mark.parametrize("places", [np.zeros(100, int), np.arange(100), np.random.default_rng(0).permutation(100)])
def test_tokens_are_ordered_to_the_last_bit_then_by_turn(places):
    """5 rows are free. Scores at different places differ by the least that floats can."""
    scores, lengths, chosen = 0.5 + places * 2.0**-53, np.ones(100, np.int32), np.empty(100, np.int32)
    seconds = np.where(np.arange(101) < 6, 1.0, 1000.0)
    choose_drafts(scores[:, None], lengths, np.zeros(100), seconds, chosen, 0.0, 0.0, False, 670)
    best = sorted(range(100), key=lambda row: (-places[row], (row - 70) % 100))[:5]
    assert np.flatnonzero(chosen).tolist() == sorted(best)


def test_of_totals_that_are_worth_the_same_the_least_is_taken():
    chosen, seconds = np.empty(8, np.int32), 1.0 + np.arange(9) / 4
    scores, lengths = np.full((8, 1), 0.5), np.ones(8, np.int32)
    worth = choose_drafts(scores, lengths, np.zeros(8), seconds, chosen, 0.0, 2.0, True, 0)
    assert worth == (2.0, 0.0, 0.0) and not chosen.any()
    choose_drafts(scores, lengths, np.zeros(8), seconds, chosen, 0.0, 1.9, True, 0)
    assert chosen.all()


def test_of_equal_drafts_those_of_each_request_have_their_turn():
    batch = 5
    scores, lengths, contexts = np.full((batch, 1), 0.9), np.ones(batch, np.int32), np.ones(batch)
    cost = Padded(np.random.default_rng(0))
    cost.size, cost.fixed, cost.context, cost.draft_context, cost.verify = 7, 0.0, 0.0, 0.0, 0.0
    times = sum(choose(scores, lengths, contexts, cost, turn=turn).lengths for turn in range(batch))
    assert times.tolist() == [2] * batch, "two of seven rows are free"


def test_sizes_that_prompts_never_had_lie_on_a_line():
    cost = PromptCost()
    for rows in (300, 500, 900, 2048):
        for _ in range(4):
            cost.observe(rows, 0.0, 0.0, 0.02 + 1e-4 * rows)
    cost.fit()
    rows = np.array([10, 100, 3000, 9000])
    assert cost.rows_cost(rows) == pytest.approx(0.02 + 1e-4 * rows, rel=0.05)
    cost._scale(2.0)
    assert cost.rows_cost(rows) == pytest.approx(2 * (0.02 + 1e-4 * rows), rel=0.05), "the machine got slower"
    single = PromptCost()
    single.observe(100, 0.0, 0.0, 1.0)
    single.fit()
    assert single.rows_cost([50, 100, 200]) == pytest.approx([0.5, 1, 2], rel=0.12), (
        "a share of the rows, the least it can be"
    )


def test_scores_that_promise_too_much_are_corrected():
    rng = np.random.default_rng(0)
    calibration = Calibration()
    for _ in range(400):
        scores = rng.random(20)
        accepted, counts = rng.random(20) < 0.5 * scores, np.zeros((2, Calibration.NUM_BINS))
        np.add.at(counts, (accepted.astype(int), oracle.bins(scores)), 1)
        calibration.observe(counts)
    shown = np.array([[0.9, 0.5, 0.3]])
    assert calibration.correct(shown) == pytest.approx(0.5 * shown, abs=0.08)
    falling = np.sort(rng.random((50, 8)))[:, ::-1].astype(np.float32)
    falling[0], falling[1] = 1.0, 0.0
    falling[2] = np.arange(8)[::-1] / np.float32(Calibration.NUM_BINS)  # between bins
    corrected = calibration.correct(falling)
    assert (np.diff(corrected, axis=1) <= 0).all() and (corrected == oracle.correct(calibration, falling)).all()
    none, many = np.zeros(Calibration.NUM_BINS), np.full(Calibration.NUM_BINS, 1e4)
    calibration.observe(np.stack([none, many]))  # too few were promised
    corrected = calibration.correct(falling)
    assert corrected.max() == 1 and (corrected == oracle.correct(calibration, falling)).all()


@pytest.mark.parametrize("seed", range(20))
def test_what_became_of_the_last_drafts(seed):
    rng = np.random.default_rng(seed)
    batch, k = int(rng.integers(0, 60)), int(rng.integers(1, 6))
    last, now = (rng.permutation(80)[:batch].astype(np.int32) for _ in range(2))
    last[rng.random(batch) < 0.2] = -1
    drafted, gained = (rng.integers(0, k + more, batch).astype(np.int32) for more in (1, 2))
    contexts, scores = rng.random(batch) * 5, rng.random((batch, k)).astype(np.float32)
    sums, expected = oracle.observe(now, gained, last, drafted, contexts, scores)
    counts = np.ones((2, Calibration.NUM_BINS))
    assert observe_drafts(now, gained, last, drafted, contexts, counts, scores) == sums
    assert (counts == 1 + expected).all(), "it adds to what was counted"
    drafted[:] = 0
    sums, _ = oracle.observe(now, gained, last, drafted, contexts, scores)
    assert observe_drafts(now, gained, last, drafted, contexts, counts, None) == sums
    assert (counts == 1 + expected).all()


def test_the_lowest_score_is_that_of_a_last_token():
    scores = np.array([[0.9, 0.3, 0.1], [0.8, 0.7, 0.6], [0.2, 0.1, 0.1]], np.float32)
    for lengths, lowest in (((2, 3, 0), 0.3), ((1, 2, 0), 0.7), ((3, 1, 1), 0.1), ((0, 0, 0), 1.0)):
        assert lowest_score(scores, i32(*lengths)) == np.float32(lowest)


def test_rows_become_lists():
    table = np.array([[1, -2, 3], [2**31 - 1, 5, 6], [7, 8, 9], [10, 11, 12]], np.int32)
    assert to_lists(table, i32(2, 3, 0, 1)) == [[1, -2], [2**31 - 1, 5, 6], [], [10]]
    assert to_lists(table[:0], i32()) == []


class Machine:
    """Runs a switch against steps whose seconds and acceptance are given; its clock is simulated."""

    def __init__(self, k=4, batch=8, accept=0.6, noise=0.02, seconds=curve, state=None, read=0):
        self.now, self.k, self.batch, self.accept, self.noise, self.seconds = 0.0, k, batch, accept, noise, seconds
        self.read = read  # tokens of prompts in each step
        self.rng = np.random.default_rng(0)
        self.switch = AutoSwitch(k, logging.getLogger("test"), clock=lambda: self.now)
        if state:
            self.switch.restore(state)
        self.given = np.zeros(batch, np.int32)
        self.believed = accept
        self.tokens = 0
        self.switch.choose(self.slots, self.held, self.given, np.zeros((batch, k), np.float32))

    @property
    def slots(self):
        return np.arange(self.batch, dtype=np.int32)

    @property
    def held(self):
        return np.full(self.batch, 100)

    def step(self, uniform=False, held=None, room=True):
        num_tokens = self.batch + int(self.given.sum()) + self.read
        self.now += float(self.seconds(num_tokens)) * self.rng.uniform(1 - self.noise, 1 + self.noise)
        gained = np.array([1 + next((j for j in range(n) if self.rng.random() > self.accept), n) for n in self.given])
        self.tokens += int(gained.sum())
        self.switch.observe(self.slots, gained, num_tokens)
        self.looks = self.switch.should_draft(self.batch, room)
        lengths = np.full(self.batch, self.k if self.looks else 0, np.int32)
        scores = np.tile(self.believed ** np.arange(1, self.k + 1), (self.batch, 1)).astype(np.float32)
        held = self.held if held is None else held
        self.given = self.switch.choose(self.slots, held, lengths, scores, uniform, room)

    def run(self, steps, **kwargs):
        tokens, now = self.tokens, self.now
        for _ in range(steps):
            self.step(**kwargs)
        return (self.tokens - tokens) / (self.now - now)


def test_auto_finds_that_free_rows_are_free():
    machine = Machine(batch=1, accept=0.8)
    assert machine.run(400) > 2 / curve(1)  # k = 4 at 0.8 gives 3.4 tokens a step
    assert machine.switch.steps_on > 250


@pytest.mark.parametrize("k", [3, 7])
def test_auto_finds_that_free_rows_are_free_in_captured_graphs(k):
    machine = Machine(k=k, batch=1, accept=0.9, seconds=lambda rows: 0.02 + 1e-5 * np.asarray(rows))
    machine.run(3000, uniform=True)
    expected = sum(0.9**i for i in range(k + 1))
    assert machine.run(200, uniform=True) > 0.85 * expected / 0.02


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("slow", [2, 8])
def test_auto_gets_over_a_size_whose_first_step_was_slow(slow, uniform):
    met = set()

    def compiles(rows):
        first = int(rows) not in met and int(rows) > 2
        met.add(int(rows))
        return curve(rows) * (slow if first else 1)

    machine = Machine(k=3, batch=2, accept=0.8, seconds=compiles)
    machine.run(2000, uniform=uniform)
    assert machine.run(200, uniform=uniform) > 1.5 * 2 / curve(2)


def test_auto_tries_again_what_was_bad():
    machine = Machine(k=4, batch=8, accept=0.0, seconds=lambda rows: 0.08 + 0.002 * np.asarray(rows))
    machine.believed = 0.7
    machine.run(1000)
    assert not machine.given.any()
    machine.accept = 0.9
    machine.run(4000)
    assert machine.run(200) > 1.7 * 8 / 0.096


@pytest.mark.parametrize("uniform", [False, True])
def test_auto_does_not_lose_where_drafts_are_bad_or_rows_are_dear(uniform):
    for machine in (
        Machine(batch=32, accept=0.05),
        Machine(batch=16, accept=0.3, seconds=lambda rows: 0.01 * np.asarray(rows)),
    ):
        assert machine.run(2000, uniform=uniform) > 0.99 * machine.batch / machine.seconds(machine.batch)
        assert machine.switch.explored < 100


@pytest.mark.parametrize("read", [0, 2048])
def test_drafts_that_lose_end_whatever_is_believed_of_their_cost(monkeypatch, read):
    """The budget is made to believe that one token more for each request doubles the tokens a second."""

    def believed(worth, lengths, contexts, cost, *args):
        return Choice(np.ones(len(lengths), np.int32), 2.0, len(lengths) / 0.05, 0.0)

    monkeypatch.setattr("sam_core.switch.choose", believed)
    machine = Machine(batch=40, accept=0.0, read=read, seconds=lambda rows: 0.05 + 0.03 * (rows > 40 + read))
    machine.run(AutoSwitch.MAX_WAIT if read else 4)
    now, tokens = machine.now, machine.tokens
    machine.run(1500)
    assert machine.tokens - tokens > 0.985 * (machine.now - now) * 40 / 0.05
    assert machine.switch.steps_on > 10, "it does not try again"


def test_pauses_double_until_drafts_are_seen_to_pay():
    proof, step, pauses = Proof(), 0, []

    def lose():
        """Two steps that lose, as one counts at most a half, and the pause behind them; returns the step after it."""
        proof.add(-5.0, step)
        assert not proof.pauses(step)
        proof.add(-5.0, step)
        pauses.append(sum(proof.pauses(later) for later in range(step, step + 1000)))
        return step + pauses[-1]

    for _ in range(6):
        step = lose()
    assert pauses == [16, 32, 64, 128, 256, 256] and not proof.seen
    for _ in range(4):
        proof.add(5.0, step)
    assert proof.seen
    for _ in range(4):
        proof.add(-0.5, step)
    assert proof.seen and not proof.pauses(step), "what they gained may be lost"
    pauses.clear()
    for _ in range(5):
        step = lose()
    assert pauses == [4, 8, 16, 32, 32] and not proof.seen


def test_plain_steps_are_compared_at_the_same_size_and_speed():
    cost, steps = StepCost(300.0), PlainSteps()
    assert steps.seconds(cost, 4, 0.0, True) == 0
    for rows in (2, 4, 8) * STEPS_PER_BIN:
        cost.observe(rows, 0.0, 0.0, 0.01 * rows)
    cost.fit()
    assert steps.seconds(cost, 4, 0.0, True) == 0, "none is known"
    for odd in (1, 1, 6, 1, 1):
        steps.add(cost, 4, 0.0, 0.05 * odd)
    assert steps.seconds(cost, 8, 0.0, True) == pytest.approx(0.1, rel=0.05)
    cost._scale(3.0)
    assert steps.seconds(cost, 4, 0.0, True) == pytest.approx(0.15) and steps.seconds(cost, 4, 0.0, False) == 0.05
    cost.context = 0.12
    assert steps.seconds(cost, 4, 1.0, False) == pytest.approx(0.1, rel=0.05), "contexts have grown"


def test_exploring_loses_no_more_than_its_share():
    machine = Machine(batch=16, k=8, accept=0.3, noise=0.0, seconds=lambda rows: 0.01 * np.asarray(rows))
    lost = (0.0075 * 400 + 3) * 0.16  # what the documentation promises
    machine.run(400)
    assert 0 < machine.now - machine.tokens * 0.01 <= lost


def test_exploring_gets_no_share_of_the_time_that_prompts_take():
    """One request at a time decodes for 50 steps, behind a prompt that takes as long as 2000 of them."""
    machine = Machine(batch=1, k=5, accept=0.3, noise=0.0, seconds=lambda rows: 0.01 * np.asarray(rows))
    read = 0
    for step in range(600):
        machine.read = 2000 * (step % 50 == 10)
        read += machine.read
        machine.step()
    lost = machine.now - 0.01 * (machine.tokens + read)
    assert 0 < lost <= (0.0075 * 600 + 3) * 0.01


def test_drafts_wait_for_steps_that_read_no_prompt():
    """What a token is worth beside prompts is not known before, nor what a step without takes."""
    machine = Machine(batch=8, accept=0.8, read=2048, seconds=lambda rows: 0.02 + 1e-5 * np.asarray(rows))
    machine.run(60)
    machine.read = 0
    machine.run(3)
    assert machine.switch.steps_on == 0
    machine.run(60)
    before = machine.switch.steps_on
    assert before > 40
    machine.read = 2048
    machine.run(60)
    assert machine.switch.steps_on > before + 40


def test_turns_are_few_where_drafts_hardly_pay():
    machine = Machine(batch=6, accept=0.4, noise=0.3, seconds=lambda rows: 0.05 + 0.005 * np.asarray(rows))
    machine.run(1500)
    assert machine.switch.transitions < 40


def test_with_many_requests_drafts_may_end_where_they_would_not_be_chosen():
    rng = np.random.default_rng(0)
    for batch in (AutoSwitch.LARGE_BATCH, AutoSwitch.LARGE_BATCH - 1):
        machine = Machine(batch=batch, k=4, accept=0.5, seconds=lambda rows: 0.02 + 1e-4 * np.asarray(rows))
        machine.run(100)
        switch, lengths = machine.switch, np.full(batch, 4, np.int32)
        for _ in range(20):
            scores = np.cumprod(rng.random((batch, 4)), axis=1).astype(np.float32)
            chosen = switch.choose(machine.slots, machine.held, lengths, scores)
            if batch < AutoSwitch.LARGE_BATCH:
                assert switch.min_score == 0
                continue
            lowest = min(scores[row, n - 1] for row, n in enumerate(chosen) if n)
            assert 0 < chosen.sum() < 4 * batch and switch.min_score == pytest.approx(lowest / 2)
    switch.choose(machine.slots, machine.held, np.zeros(batch, np.int32), scores)
    assert switch.min_score == 0


def test_many_requests_look_for_something_to_explore_in_few_steps(monkeypatch):
    looks = {}
    for batch in (AutoSwitch.LARGE_BATCH, AutoSwitch.LARGE_BATCH - 1):
        machine = Machine(batch=batch, k=4, accept=0.5, seconds=lambda rows: 0.02 + 1e-5 * np.asarray(rows))
        machine.run(200)
        explored, count = machine.switch.explored, [0]

        def counted(*args, explore=machine.switch._explore, count=count):
            count[0] += 1
            return explore(*args)

        monkeypatch.setattr(machine.switch, "_explore", counted)
        machine.run(100)
        looks[batch] = count[0] - (machine.switch.explored - explored)  # in vain
        assert machine.switch.steps_on > 250
    large, small = looks.values()
    assert small > 90 and 20 <= large <= 25


@pytest.mark.parametrize("uniform", [False, True])
def test_counters_are_plain_integers(uniform):
    """Engines send them to other processes as such."""
    machine = Machine(batch=6, accept=0.4, noise=0.3, seconds=lambda rows: 0.05 + 0.005 * np.asarray(rows))
    machine.run(600, uniform=uniform)
    machine.accept = 0.9
    machine.run(600, uniform=uniform)
    counters = machine.switch.steps, machine.switch.steps_on, machine.switch.transitions
    assert all(counters) and {type(n) for n in counters} == {int}


def test_what_cannot_be_seen_to_pay_is_looked_at_less():
    machine = Machine(batch=32, accept=0.05)
    machine.run(500)
    looks = sum(machine.switch.should_draft(32) for _ in range(100) if machine.step() is None)
    assert 10 < looks < 40


@pytest.mark.parametrize("uniform", [False, True])
def test_an_engine_that_plans_ahead_has_room_for_drafts_only_where_they_pay(uniform):
    """It hears of the switch two steps late. Otherwise only steps that explore have room, and a few behind them."""

    def run(machine, steps):
        """In how many of the last 200 steps it wanted room, and looked at drafts."""
        wants, looks = [True, True], []
        for _ in range(steps):
            machine.step(uniform, room=wants[-2])
            assert wants[-2] or not machine.given.any()
            wants.append(machine.switch.wants_room(machine.batch))
            looks.append(machine.looks)
        return sum(wants[-200:]), sum(looks[-200:])

    machine = Machine(batch=16, accept=0.05, seconds=lambda rows: 1e-3 * np.asarray(rows))
    wanted, looks = run(machine, 800)
    assert wanted <= 10 and 20 < looks < 60
    machine.accept = machine.believed = 0.99
    machine.seconds = lambda rows: 0.1
    assert min(run(machine, 1000)) > 190 and machine.given.any()
    assert BatchSwitch(8, logging.getLogger("test")).wants_room(8)
    assert not BatchSwitch(8, logging.getLogger("test")).wants_room(9)
    assert not BatchSwitch(8, logging.getLogger("test")).should_draft(8, room=False)


def saved():
    """What a switch learned in 300 steps, as a file gives it back."""
    machine = Machine(batch=2, accept=0.8)
    machine.run(300)
    return json.loads(json.dumps(machine.switch.state()))


def test_what_a_switch_learned_starts_another_one():
    state = saved()
    second = Machine(batch=2, accept=0.8, state=state)
    second.run(3)
    assert second.given.any(), "it waits to learn what it was told"
    assert Machine(batch=2, accept=0.8).run(3) < second.run(50)


def test_more_requests_than_were_saved_are_no_other_machine():
    state = saved()
    there = Machine(batch=64, accept=0.8)
    there.switch.take_over(state)
    kept = there.switch.cost
    there.run(100)
    assert there.switch.cost is kept


@pytest.mark.parametrize("times", [0.2, 5])
def test_one_odd_step_is_no_other_machine(times):
    state = saved()
    for odd in range(1, AutoSwitch.TRIAL_STEPS + 2):
        there, met = Machine(batch=2, accept=0.8), []
        there.seconds = lambda rows, met=met, odd=odd: met.append(0) or curve(rows) * (times if len(met) == odd else 1)
        there.switch.take_over(state)
        kept = there.switch.cost
        there.run(20)
        assert there.switch.cost is kept


def test_a_slow_first_step_of_a_size_does_not_count_after_a_restart_either():
    state = saved()
    cost = StepCost()
    cost.restore(state["cost"])
    before = cost._count.sum()
    cost.observe(2, 0.2, 0.0, 9.0)
    assert cost._count.sum() == before


def test_the_latest_steps_stay_the_latest():
    cost, again = StepCost(), StepCost()
    for i in range(30):
        cost.observe(4, 0.0, 0.0, 100.0 + i)
    again.restore(json.loads(json.dumps(cost.state())))
    for i in range(12):
        again.observe(4, 0.0, 0.0, 130.0 + i)
    assert sorted(row[3] for row in again.state()["samples"][0]) == [118.0 + i for i in range(24)]


@pytest.mark.parametrize("times", [0.4, 1.0, 3.0])
def test_costs_of_another_machine_are_forgotten(times):
    state = saved()
    there = Machine(batch=2, accept=0.8, seconds=lambda rows: times * curve(rows))
    there.switch.take_over(state)
    there.run(AutoSwitch.TRIAL_STEPS)  # the first is not timed
    assert there.given.any(), "it waits to learn what it was told"
    kept = there.switch.cost
    there.run(1)
    assert (there.switch.cost is kept) == (times == 1.0)
    assert there.switch.calibration.offered.sum() > 100, "what drafts are worth is not forgotten"
    there.run(100)
    plain = there.switch.cost.seconds(2, 0.2, 0.0)
    assert plain == pytest.approx(times * curve(2), rel=0.1)


NOTHING = AutoSwitch(3, logging.getLogger("test")).state()


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        NOTHING | {"cost": {}},
        *(
            NOTHING | {"cost": {"samples": samples}}
            for samples in ([[]], [[[0, 0, 0, 1]]], [[[1, 0, 0, 0]]], [[[1, -1, 0, 1]]], [[[1e308, 0, 0, 1]]])
        ),
        *(
            NOTHING | {"calibration": {"offered": 24 * [offered], "accepted": 24 * [accepted]}}
            for offered, accepted in ((math.inf, 1), (20, -20), (1, 2), (math.nan, 0))
        ),
        NOTHING | {"calibration": {"offered": [1], "accepted": [1]}},
    ],
)
def test_a_record_that_is_none_is_refused(state):
    switch = AutoSwitch(3, logging.getLogger("test"))
    switch.restore(NOTHING)
    with pytest.raises(ValueError, match="no record"):
        switch.restore(state)


def test_steps_may_have_more_rows_than_costs_tell_apart():
    machine = Machine(seconds=lambda rows: 0.02 + 1e-6 * rows)
    machine.run(100)
    machine.read = 2 * MAX_ROWS
    machine.run(100)
    assert machine.switch.prompt_cost.fitted


def test_steps_that_read_prompts_have_costs_of_their_own():
    machine = Machine()
    machine.run(1)
    slots = machine.slots
    more = np.array([*slots, 63], np.int32)
    costs = {"plain": machine.switch.cost, "prompt": machine.switch.prompt_cost}

    def end(slots, read=0, reading=False):
        machine.now += 5.0
        before = {name: cost._count.sum() for name, cost in costs.items()}
        gained = np.ones(len(slots), np.int32)
        gained[len(slots) - reading :] = 0
        machine.switch.observe(slots, gained, len(slots) + read)
        none = np.zeros(len(slots), np.int32)
        machine.switch.choose(slots, np.full(len(slots), 100), none, np.zeros((len(slots), 4), np.float32))
        return [name for name, cost in costs.items() if cost._count.sum() > before[name]]

    assert end(slots) == ["plain"]
    assert end(more, 9, reading=True) == ["prompt"]
    assert end(more, 5) == ["prompt"], "its last chunk"
    assert end(more) == ["plain"]
    assert end(slots) == ["plain"], "one has ended"
    assert end(more, 3) == ["prompt"], "it came again with its prompt"
    assert end(more) == ["plain"]
    machine.switch.forget(63)
    assert end(more) == ["prompt"], "another one in its slot, with a prompt of one token"


def test_an_ordinary_step_is_learned_behind_the_next_drafts():
    machine = Machine(batch=2, accept=0.8, noise=0)
    machine.run(500)
    switch, seconds, ordinary = machine.switch, machine.seconds, []

    def learned_at_once():
        """Whether the next step is; what it took is learned later in any case."""
        switch.learn()
        steps, counts = switch.cost._now, switch.calibration.offered.copy()
        machine.step()
        at_once = switch.cost._now > steps
        assert (switch.calibration.offered != counts).any() == at_once
        switch.learn()
        assert switch.cost._now > steps and (switch.calibration.offered != counts).any()
        return at_once

    for _ in range(100):
        is_known = not switch.cost.unsettled(2 + int(machine.given.sum()))
        ordinary.append(is_known and switch._probe is None)
        assert learned_at_once() != ordinary[-1]
    assert sum(ordinary) > 50
    for times in (1.2, 0.8):
        machine.seconds = lambda rows, times=times: times * seconds(rows)
        assert learned_at_once()
        machine.seconds = seconds
        machine.run(300)


@pytest.mark.parametrize("uniform", [False, True])
def test_costs_are_learned_where_every_step_reads_a_prompt(uniform):
    cheap = Machine(batch=2, accept=0.8, read=1000, seconds=lambda rows: 0.02 + 1e-6 * rows)
    cheap.run(AutoSwitch.MAX_WAIT + 400, uniform=uniform)
    assert cheap.switch.steps_on > 100 and not cheap.switch.cost.fitted
    dear = Machine(batch=2, accept=0.4, read=10, seconds=lambda rows: 1e-4 * rows)
    dear.run(AutoSwitch.MAX_WAIT + 400, uniform=uniform)
    assert dear.switch.steps_on < 20
    dear.read = 0
    dear.run(100, uniform=uniform)
    assert dear.switch.cost.fitted


@pytest.mark.parametrize("uniform", [False, True])
def test_drafts_start_where_every_other_step_reads_a_prompt(uniform):
    machine = Machine(batch=2, accept=0.8, seconds=lambda rows: 0.02 + 1e-6 * rows)
    for step in range(400):
        machine.read = 1000 * (step % 2)
        machine.step(uniform)
    assert machine.switch.steps_on > 100


def test_drafts_leave_room_for_the_prompts_that_come_with_them():
    """Steps are padded to 64 tokens: 24 rows are free beside 40 requests, but 4 beside those that also read 20 tokens."""
    machine = Machine(batch=40, accept=0.5, seconds=lambda rows: 0.01 * np.ceil(np.asarray(rows) / 64))
    usual, rates = {}, {}
    for machine.read in (0, 20):
        machine.run(300)
        given = []
        for _ in range(100):
            machine.step()
            given.append(int(machine.given.sum()))
        usual[machine.read] = sorted(given)[50]
        rates[machine.read] = machine.run(200)
    assert usual[0] == 24 and usual[20] == 4
    assert rates[0] > 0.98 * (40 + 0.5 * 24) / 0.01
    assert rates[20] > 0.98 * (40 + 0.5 * 4) / 0.01


def test_requests_whose_drafts_are_equal_get_them_in_turn():
    machine = Machine(batch=40, k=1, accept=0.5, seconds=lambda rows: 0.01 * np.ceil(np.asarray(rows) / 64))
    machine.run(300)
    times = np.zeros(40, int)
    for _ in range(80):
        machine.step()
        times += machine.given
    assert times.min() > 0.9 * times.mean() > 0.9 * 80 * 23 / 40


def paused(steps, pauses, gap=300.0, **kwargs):
    """A machine that has made steps, after some of which its engine made none for `gap` seconds; time without the pauses."""
    machine = Machine(k=3, accept=0.8, **kwargs)
    slept, clock = [0.0], machine.switch.clock
    machine.switch.clock = lambda: clock() + slept[0]
    for step in range(steps):
        slept[0] += gap * (step in pauses)
        machine.step()
    return machine


@pytest.mark.parametrize("gap", [3.0, 300.0])
@pytest.mark.parametrize("read", [0, 64])
def test_a_pause_is_not_learned_as_a_step(gap, read):
    """Wherever it comes: also in a step that explores, or before anything is known."""
    steps = AutoSwitch.MAX_WAIT + 60 if read else 200

    def plain_seconds(machine):
        cost = machine.switch.prompt_cost if read else machine.switch.cost
        return cost.size_cost(2 + read)

    never = paused(steps, (), batch=2, read=read)
    assert never.switch.steps_on > 50
    for at in range(1, 40):
        once = paused(steps, (at,), gap, batch=2, read=read)
        assert once.switch.steps_on > 0.93 * never.switch.steps_on - 2, at
        assert plain_seconds(once) == pytest.approx(plain_seconds(never), rel=0.1)
        assert once.switch._credit > -3 * curve(2)
    often = paused(2000, range(0, 2000, 100), gap, batch=2, read=read)
    assert often.switch.steps_on > 0.93 * paused(2000, (), batch=2, read=read).switch.steps_on


def test_credit_for_a_step_that_nothing_is_known_of_is_returned():
    machine = Machine(batch=2, accept=0.8)
    while not machine.switch._probe:
        machine.step()
    reserved, credit = machine.switch._probe[-1], machine.switch._credit
    machine.switch.forget(0)
    machine.switch.forget(1)
    machine.switch.observe(machine.slots, np.ones(2, np.int32), 2)
    assert machine.switch._probe is None and machine.switch._credit == credit + reserved


@pytest.mark.parametrize("times", [1.3, 3, 10, 100])
def test_a_sudden_change_of_speed_is_noticed_within_five_steps(times):
    machine = Changing(lambda step: times if step > 600 else 1, batch=2, accept=0.8, k=3)
    machine.run(600)
    before = machine.switch.cost.size_cost(8)
    machine.run(6)  # the first of them ended before
    machine.switch.learn()
    assert machine.switch.cost.size_cost(8) > 0.8 * times * before


@pytest.mark.parametrize("batch", [1, 8])
def test_drafts_that_take_ten_times_as_long_as_a_plain_step_are_learned(batch):
    machine = Machine(batch=batch, accept=0.8, k=3, seconds=lambda rows: 0.2 if rows > batch else 0.02)
    assert machine.run(2000) > 0.95 * batch / 0.02


class Changing(Machine):
    """A machine whose steps take `slow(step)` times as long."""

    def __init__(self, slow, **kwargs):
        self.done = 0
        base = kwargs.pop("seconds", curve)

        def seconds(rows):
            self.done += 1
            return slow(self.done) * base(rows)

        super().__init__(seconds=seconds, **kwargs)


def test_drafts_among_plain_steps_are_no_slower_machine():
    """They have the bin of the plain steps, and take twice as long whatever their number."""
    cost = StepCost(300.0)
    for step in range(200):
        drafting = step >= 100 and step % 20 < 8
        rows = 140 + step % 5 if drafting else 133
        cost.learn(rows, 0.0, float(drafting), 0.08 if drafting else 0.04)
        if cost.fitted:
            assert cost.size_cost(133) == pytest.approx(0.04, rel=0.1), step
    assert cost.verify == pytest.approx(0.04, rel=0.1)


def test_what_verification_costs_is_seen_where_sizes_are_padded():
    """Drafts padded to 128 rows, and once to 256, show what they cost over a plain step that is padded to 128 too."""
    cost = StepCost(300.0)
    for rows, steps in ((92, 4), (96, 8), (104, 2), (120, 12), (144, 5)):
        for _ in range(steps):
            cost.observe(rows, 0.0, float(rows > 92), (0.007 if rows <= 128 else 0.010) + 0.003 * (rows > 92))
    cost.fit()
    assert cost.verify == pytest.approx(0.003, rel=0.05)


@pytest.mark.parametrize("verify", [0.0, 0.04])
def test_what_verification_costs_is_learned_where_every_step_reads_a_prompt(verify):
    """Drafts add few rows to a prompt's, and the machine's speed drifts; tokens are worth little beside so many of prompts."""
    machine = Changing(
        lambda step: 1 + 0.3 * math.sin(step / 60),
        batch=8,
        accept=0.3,
        read=2048,
        seconds=lambda rows: 0.05 + verify * (rows > 8 + 2048),
    )
    machine.run(AutoSwitch.MAX_WAIT + 100)
    before = machine.switch.steps_on
    machine.run(600)
    share = (machine.switch.steps_on - before) / 600
    assert share < 0.05 if verify else share > 0.9
    assert machine.switch.prompt_cost.verify == pytest.approx(verify, abs=0.01)


def tokens_a_step(accept, k):
    return sum(accept**i for i in range(k + 1))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("times", "length", "every"), [(2, 20, 2000), (3, 10, 200)])
def test_bursts_of_slow_steps_are_got_over(batch, times, length, every):
    def nearly_free(rows):
        return 0.010 + 0.00005 * (rows - batch)

    for seed in range(2):
        rng = np.random.default_rng(seed)
        slow = np.ones(3000)
        for at in np.flatnonzero(rng.random(1500) < 1 / every):
            slow[at : at + length] = times
        machine = Changing(lambda step, slow=slow: slow[step], batch=batch, k=3, accept=0.8, seconds=nearly_free)
        machine.run(2200)
        best = batch * tokens_a_step(0.8, 3) / nearly_free(4 * batch)
        assert machine.run(300) > 0.95 * best


@pytest.mark.parametrize("batch", [1, 4, 8, 16])
@pytest.mark.parametrize("faster", [0.25, 0.7])
def test_a_machine_that_gets_faster_ends_drafts_that_no_longer_pay(batch, faster):
    def seconds(rows):
        extra = (rows - batch) / batch
        return 0.020 * (1 + 0.05 * extra if machine.before else faster * (1 + 0.7 * extra))

    machine = Machine(batch=batch, k=3, accept=0.6, seconds=seconds)
    machine.before = True
    machine.run(1500)
    assert machine.given.sum() > batch
    machine.before = False
    machine.run(1000)
    assert machine.run(500) > 0.97 * batch / (0.020 * faster)


@pytest.mark.parametrize("context", [0.00002, 0.0001])
def test_drafts_pay_all_along_a_rollout_whose_contexts_grow_together(context):
    machine = Machine(batch=32, k=3, accept=0.7, seconds=lambda rows: 0)
    held = np.full(32, 1000.0)
    machine.seconds = lambda rows: 0.010 + 0.00005 * (rows - 32) + context * held.sum() / 1000
    best = took = 0.0
    for step in range(4000):
        now, tokens = machine.now, machine.tokens
        machine.step(held=held)
        held += (machine.tokens - tokens) / 32
        if step > 500:
            took += machine.now - now
            best += (machine.tokens - tokens) * machine.seconds(128) / (32 * tokens_a_step(0.7, 3))
    assert best / took > 0.97


def test_a_drift_of_speed_is_followed_by_sizes_that_are_not_met():
    machine = Changing(
        lambda step: math.exp(0.3 * math.sin(step / 100)),
        batch=80,
        k=3,
        accept=0.5,
        noise=0.05,
        seconds=lambda rows: 0.0001 * rows,
    )
    machine.run(1500)
    assert machine.now < 1.02 * machine.tokens * 0.0001 * np.mean(np.exp(0.3 * np.sin(np.arange(1500) / 100)))


def test_a_padded_curve_is_known_by_its_steps():
    rng = np.random.default_rng(0)
    cost = StepCost(300.0)
    padded = lambda rows: 0.001 * 2 ** math.ceil(math.log2(rows))  # noqa: E731
    for step in range(3000):
        rows = int(rng.integers(33, 200))
        cost.observe(rows, 0.0, 0.0, padded(rows) * rng.uniform(0.98, 1.02))
        if step % 32 == 3:
            cost.fit()
    for rows in (40, 56, 64, 66, 100, 120, 128, 130, 180):
        assert float(cost.rows_cost(rows)) == pytest.approx(padded(rows), rel=0.05)
    for step in range(320):
        cost.observe(64, 0.0, 0.0, padded(64) * rng.uniform(0.98, 1.02))
        if step % 32 == 3:
            cost.fit()
    assert float(cost.rows_cost(58)) == pytest.approx(0.064, rel=0.03), "what steps of one size do not show is kept"
