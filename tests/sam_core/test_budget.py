# SPDX-License-Identifier: Apache-2.0
"""Tests of the learned costs of steps, and of the budget that follows from them."""

import json
import logging
import math

import numpy as np
import pytest
from sam_core._sam import observe_drafts
from sam_core.budget import Calibration, choose
from sam_core.cost import StepCost
from sam_core.switch import AutoSwitch, BatchSwitch


def curve(rows):
    """Seconds of a step on a machine that is flat up to 6 rows."""
    return 0.08 * np.maximum(1, np.asarray(rows) / 6) ** 0.9


def padded(rng, batch, count):
    """The seconds of a step by its number of draft tokens. Padding makes many of these numbers candidates."""
    size, rows = int(rng.integers(1, 40)), batch + np.arange(count + 1)
    verify = rng.random() * rng.choice([0.0, 1e-3, 0.1]) * (rows > batch)
    return rng.random() + 0.01 * np.ceil(rows / size) * size + verify


def value(n, price, scores, contexts, seconds, draft_context):
    """The expected tokens of a step with drafts of lengths n, minus its time at `price` tokens per second."""
    tokens = len(n) + scores[np.arange(scores.shape[1]) < n[:, None]].sum()
    return tokens - price * (seconds[n.sum()] + draft_context * n @ contexts)


def most(price, scores, lengths, contexts, seconds, draft_context):
    """The largest value of any drafts. Because scores fall, the best tokens of each total form prefixes of drafts."""
    worth = scores - price * draft_context * contexts[:, None]
    worth = np.sort(worth[np.arange(scores.shape[1]) < lengths[:, None]])[::-1]
    tokens = len(scores) + np.concatenate([[0.0], np.cumsum(worth)])
    return (tokens - price * seconds[: len(tokens)]).max()


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_is_the_best_of_all(seed):
    """A rate is the best if no drafts are worth more than their time at the price of this rate. With captured graphs,
    either all requests get k draft tokens or none does. The price of steps with prompts is that of steps without."""
    rng = np.random.default_rng(seed)
    batch, k = int(rng.choice([1, 2, 7, 40, 300])), int(rng.integers(1, 9))
    scores = np.minimum.accumulate(rng.random((batch, k)) ** rng.choice([0.2, 1, 3]), axis=1)
    contexts, lengths = rng.random(batch) * 5, rng.integers(0, k + 1, batch).astype(np.int32)
    if seed % 3 == 0:  # ties, also of tokens of other scores and contexts
        scores, contexts = np.ceil(scores * 4) / 4, np.round(contexts)
    every, total = [padded(rng, batch, batch * k) for _ in range(2)], int(lengths.sum())
    every.append(float(rng.random() * rng.choice([0.0, 1e-3, 0.1])))
    (seconds, prompts), draft_context = [each[: total + 1] for each in every[:2]], every[2]
    given, nothing, zero = (scores, lengths, contexts), np.zeros(batch, int), pytest.approx(0, abs=1e-9 * batch)
    plain, cost, expected = batch / seconds[0], (seconds, draft_context), (prompts, draft_context)
    chosen, gain, price, accepted = choose(*given, *cost)
    assert (chosen >= 0).all() and (chosen <= lengths).all() and gain == pytest.approx(price / plain)
    assert value(chosen, price, scores, contexts, *cost) == zero and most(price, *given, *cost) == zero
    assert accepted == pytest.approx(scores[np.arange(k) < chosen[:, None]].sum())
    for times in (1e-3, 0.7, 1.0, 1.1, 30):
        guessed = choose(*given, *cost, guess=times * price, turn=seed)
        assert guessed.gain == pytest.approx(gain) and value(guessed.lengths, price, scores, contexts, *cost) == zero

    chosen, gain_with_prompts, *_ = choose(*given, *cost, prompts)
    best = most(price, *given, *expected)
    assert value(chosen, price, scores, contexts, *expected) == pytest.approx(best, abs=1e-9)
    worth = best - value(nothing, price, scores, contexts, *expected)
    assert gain_with_prompts == pytest.approx(max(1.0, 1 + worth / batch))

    scores, (seconds, prompts, _) = np.where(np.arange(k) < lengths[:, None], scores, 0.0), every
    chosen, gain, price, _ = choose(*given, seconds, draft_context, uniform=k)
    values = [value(n, price, scores, contexts, seconds, draft_context) for n in (nothing, nothing + k)]
    assert max(values) == zero and gain == pytest.approx(price / plain)
    assert set(chosen.tolist()) == {k if gain > 1 else 0}
    chosen, gain_with_prompts, *_ = choose(*given, seconds, draft_context, prompts, k)
    worth = np.subtract(*(value(n, price, scores, contexts, prompts, draft_context) for n in (nothing + k, nothing)))
    assert gain_with_prompts == pytest.approx(max(1.0, 1 + worth / batch))
    assert set(chosen.tolist()) == {k if gain_with_prompts > 1 else 0}


def test_equal_tokens_take_turns():
    scores, lengths = np.full((7, 2), 0.5), np.full(7, 2, np.int32)
    seconds = 0.5 + 0.01 * np.ceil(np.arange(7, 22) / 5) * 5  # 13 drafts fill the padding
    got = [choose(scores, lengths, np.zeros(7), seconds, turn=turn).lengths for turn in range(9)]
    assert got[0].sum() == 13 and np.array_equal(got, [np.roll(got[0], turn) for turn in range(9)])


BINS = Calibration.NUM_BINS


def bins(scores):
    return np.minimum((np.asarray(scores, np.float32) * np.float32(BINS)).astype(int), BINS - 1)


def test_a_noisy_machine_keeps_its_costs():
    """The estimated costs of a noisy machine stay in bounds, and another process can restore them."""
    draw, cost = np.random.default_rng(0), StepCost(300)
    for _ in range(40):
        cost.learn(24, True, False, 1000.0, 16.0, 0.02)
    verify = cost.verify + float(cost.rows_cost([24])[0])
    for _ in range(4000):
        cost.learn(8, False, False, 1000.0, 0.0, 0.01 * float(np.exp(draw.normal(0, 0.7))))
    assert 0.002 < float(cost.rows_cost([8])[0]) + 1000 * cost.context < 0.02
    assert cost.verify + float(cost.rows_cost([24])[0]) < 4 * verify, "drafts were not seen since"
    other = StepCost(300)
    other.restore(json.loads(json.dumps(cost.state())))
    assert other.rows_cost([8]) == cost.rows_cost([8])


def test_costs_are_those_of_a_linear_machine():
    """The machine pads steps to captured sizes, and a few steps are slow by chance."""
    rng, cost = np.random.default_rng(0), StepCost(graph_sizes=range(8, 513, 8))

    def seconds(rows, drafts, prompts, context, draft_context):
        padded = np.where(rows <= 512, np.ceil(rows / 8) * 8, rows)
        return 0.01 + 5e-5 * padded + 2e-3 * drafts + 4e-3 * prompts + 1e-4 * context + 5e-5 * draft_context

    for i in range(800):
        batch, drafted = int(rng.integers(1, 60)), int(rng.integers(0, 200)) * int(rng.random() < 0.7)
        prompts, context = int(rng.integers(1, 2000)) * int(rng.random() < 0.3), batch * rng.random() * 4
        step = batch + drafted + prompts, drafted > 0, prompts > 0, context, drafted * rng.random() * 4
        cost.learn(*step, seconds(*step) * rng.uniform(0.99, 1.01) * (5 if i % 40 == 9 else 1))
    assert (cost.verify, cost.context, cost.draft_context) == pytest.approx((2e-3, 1e-4, 5e-5), rel=0.2)
    rows = np.array([30, 31, 100, 400, 1500])
    assert cost.rows_cost(rows) == pytest.approx(seconds(rows, 0, 0, 0, 0), rel=0.05)
    assert cost.rows_cost(25) == cost.rows_cost(32) < cost.rows_cost(33)
    read = [0, 7, 7, 600]
    expected, rows = cost.by_drafts(30, 400, 2.0, 300, read), np.arange(30, 431)
    mean = np.mean([cost.rows_cost(rows + n) for n in read], 0) + 2 * cost.context + cost.verify * (rows > 30)
    assert expected[:271] == pytest.approx(mean[:271]) and np.isinf(expected[271:]).all()


def test_scores_that_promise_too_much_are_corrected():
    rng = np.random.default_rng(0)
    calibration = Calibration()
    for _ in range(400):
        scores = rng.random(20)
        accepted, counts = rng.random(20) < 0.5 * scores, np.zeros((2, BINS))
        np.add.at(counts, (accepted.astype(int), bins(scores)), 1)
        calibration.observe(counts)
    shown = np.array([[0.9, 0.5, 0.3]])
    assert calibration.correct(shown) == pytest.approx(0.5 * shown, abs=0.08)
    falling = np.sort(rng.random((50, 8)))[:, ::-1].astype(np.float32)
    calibration.observe(np.stack([np.zeros(BINS), np.full(BINS, 1e4)]))  # too few were promised
    corrected = calibration.correct(falling)
    assert (np.diff(corrected, axis=1) <= 0).all() and corrected.max() == 1


def test_what_became_of_the_last_drafts():
    """Drafts of requests that are gone (slot -1) or gained nothing are not counted."""
    rng = np.random.default_rng(0)
    for batch, k in ((0, 3), (1, 1), (30, 5), (59, 2)):
        last, now = (rng.permutation(80)[:batch].astype(np.int32) for _ in range(2))
        last[rng.random(batch) < 0.2] = -1
        drafted, gained = (rng.integers(0, k + more, batch).astype(np.int32) for more in (1, 2))
        contexts, scores = rng.random(batch) * 5, rng.random((batch, k)).astype(np.float32)
        sums, expected, counts = np.zeros(4), np.ones((2, BINS)), np.ones((2, BINS))
        for slot, tokens in zip(now.tolist(), gained.tolist(), strict=True):
            for place in np.flatnonzero(last == slot):
                n, context = int(drafted[place]), contexts[place]
                sums += (1, n, context, n * context)
                for depth in range(n if tokens else 0):
                    expected[int(depth < tokens - 1), bins(scores[place, depth])] += 1
        assert observe_drafts(now, gained, last, drafted, contexts, counts, scores) == pytest.approx(tuple(sums))
        assert (counts == expected).all(), "it adds to what was counted"
        drafted[:] = 0
        assert observe_drafts(now, gained, last, drafted, contexts, counts, None)[1::2] == (0, 0)
        assert (counts == expected).all()


class Machine:
    """Runs a switch against steps whose seconds and acceptance are given; its clock is simulated."""

    def __init__(self, k=4, batch=8, accept=0.6, noise=0.02, seconds=curve, read=0):
        self.now, self.k, self.batch, self.accept, self.noise, self.seconds = 0.0, k, batch, accept, noise, seconds
        self.believed, self.tokens, self.read = accept, 0, read  # read: tokens of prompts in each step
        self.rng, self.given = np.random.default_rng(0), np.zeros(batch, np.int32)
        self.slots, self.held = np.arange(batch, dtype=np.int32), np.full(batch, 100)
        self.switch = AutoSwitch(k, logging.getLogger("test"), clock=lambda: self.now)
        self.switch.choose(self.slots, self.held, self.given, np.zeros((batch, k), np.float32))

    def step(self, uniform=False, planned=True):
        num_tokens = self.batch + int(self.given.sum()) + self.read
        self.now += float(self.seconds(num_tokens)) * self.rng.uniform(1 - self.noise, 1 + self.noise)
        gained = np.array([1 + next((j for j in range(n) if self.rng.random() > self.accept), n) for n in self.given])
        self.tokens += int(gained.sum())
        self.switch.observe(self.slots, gained, num_tokens)
        self.looks = self.switch.should_draft(self.batch, planned)
        lengths = np.full(self.batch, self.k if self.looks else 0, np.int32)
        scores = np.tile(self.believed ** np.arange(1, self.k + 1), (self.batch, 1)).astype(np.float32)
        self.given = self.switch.choose(self.slots, self.held, lengths, scores, uniform, planned)

    def run(self, steps, uniform=False):
        """Tokens a second."""
        tokens, now = self.tokens, self.now
        for _ in range(steps):
            self.step(uniform)
        return (self.tokens - tokens) / (self.now - now)


@pytest.mark.parametrize("uniform", [False, True])
def test_auto_gets_over_a_size_whose_first_step_was_slow(uniform):
    met = set()

    def compiles(rows):
        first = int(rows) not in met and int(rows) > 2
        met.add(int(rows))
        return curve(rows) * (8 if first else 1)

    machine = Machine(k=3, batch=2, accept=0.8, seconds=compiles)
    machine.run(2000, uniform=uniform)
    assert machine.run(200, uniform=uniform) > 1.5 * 2 / curve(2)
    free = Machine(k=7, batch=1, accept=0.9, seconds=lambda rows: 0.02 + 1e-5 * np.asarray(rows))
    free.run(3000, uniform=uniform)
    assert free.run(200, uniform=uniform) > 0.85 * sum(0.9**i for i in range(8)) / 0.02


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
    dear = {"batch": 16, "accept": 0.3, "seconds": lambda rows: 0.01 * np.asarray(rows)}
    for machine in (Machine(batch=32, accept=0.05), Machine(**dear)):
        assert machine.run(2000, uniform=uniform) > 0.99 * machine.batch / machine.seconds(machine.batch)
        assert machine.switch.steps_on < 100
    machine = Machine(k=8, noise=0.0, **dear)
    machine.run(400)
    lost = (0.0075 * 400 + 3) * 0.16  # what the documentation promises
    assert 0 < machine.now - machine.tokens * 0.01 <= lost


@pytest.mark.parametrize("read", [0, 2048])
def test_drafts_end_where_only_verification_is_dear(read):
    """Plain steps do not show what verification costs, with or without prompts in each step."""
    machine = Machine(batch=40, accept=0.3, read=read, seconds=lambda rows: 0.05 + 0.05 * (rows > 40 + read))
    assert machine.run(1500) > 0.985 * 40 / 0.05
    assert machine.switch.steps_on > 0, "it does not try"


def test_plain_steps_show_that_drafts_no_longer_pay():
    """Verification becomes expensive while each step has drafts, as if the whole machine had become slow."""
    machine = Machine(batch=8, accept=0.8, seconds=lambda rows: 0.02 + 1e-5 * np.asarray(rows))
    machine.run(400)
    assert 380 < machine.switch.steps_on < 395, "few steps check"
    machine.seconds = lambda rows: 0.02 + 0.08 * (rows > 8)
    machine.run(100)
    assert machine.run(400) > 0.97 * 8 / 0.02


def test_few_drafts_in_steps_that_read_prompts_before_their_cost_is_known():
    machine, steps_on = Machine(batch=8, accept=0.8, seconds=lambda rows: 0.02 + 1e-5 * np.asarray(rows)), []
    cold = AutoSwitch.FEW_STEPS - 8
    for read, steps in ((2048, 8), (2048, cold), (2048, 60), (0, 60), (2048, 60)):
        for _ in range(steps):
            machine.read = int(machine.rng.integers(read // 8, read + 1))
            machine.step()
        steps_on.append(machine.switch.steps_on)
    more = np.diff(steps_on)
    assert steps_on[0] <= 2 and 1 <= more[0] <= cold / (AutoSwitch.MAX_IDLE_STEPS + 1) + 1
    assert min(more[1:]) > 20, "a server that always reads prompts drafts too"


def test_a_server_whose_steps_all_read_the_same_number_of_prompt_tokens_drafts():
    """On this server only a step's cost beside its prompts can be learned, not the time of a step without prompts."""
    machine = Machine(batch=8, accept=0.8, seconds=lambda rows: 0.02 + 1e-5 * np.asarray(rows))
    machine.read = 2048
    machine.run(AutoSwitch.FEW_STEPS)
    before = machine.switch.steps_on
    machine.run(300)
    assert machine.switch.steps_on - before > 200


def test_only_steps_that_were_learned_allow_larger_ones():
    """An unexpectedly slow step counts as a stall and is not learned. A second one that is as slow is learned."""
    cost = StepCost(memory=300)
    for _ in range(4):
        cost.learn(1, False, False, 1.0, 0.0, 0.1)
    cost.learn(2, True, False, 1.0, 1.0, 0.2)
    assert cost.max_rows == 1 and cost.verify + float(cost.rows_cost(2)[0]) < 0.11
    cost.learn(2, True, False, 1.0, 1.0, 0.2)
    assert cost.max_rows == 2 and cost.verify + cost.draft_context + float(cost.rows_cost(2)[0]) > 0.15


def test_a_trial_drafts_about_a_token_of_each_request():
    machine = Machine(batch=4, k=8, accept=0.7, noise=0, seconds=lambda rows: 1e-3 * rows)
    machine.run(100)
    machine.switch.cost.max_rows = 64
    most = 0
    for _ in range(600):
        machine.step()
        most = max(most, 0 if machine.switch.on else int(machine.given.sum()))
    assert 0 < most <= machine.batch


def test_a_trial_finds_that_verification_is_cheap_however_expensive_it_was():
    """A trial ignores the learned cost, at which its drafts would have too few tokens to show anything."""
    machine = Machine(batch=8, accept=0.8, seconds=lambda rows: 0.02 + 1.0 * (rows > 8))
    machine.run(300)
    assert not machine.given.any()
    machine.seconds = lambda rows: 0.02 + 1e-5 * rows
    machine.run(700)
    assert machine.run(100) > 2 * 8 / 0.02


def test_a_check_that_is_faster_than_predicted_is_repeated_soon():
    machine = Machine(batch=28, accept=0.9, seconds=lambda rows: 0.02)
    machine.run(400)
    machine.seconds = lambda rows: 0.02 if rows > 28 else 0.003
    while machine.switch.on and machine.given.any():
        machine.step()
    before = machine.switch.steps_on
    machine.run(100)
    assert machine.switch.steps_on - before < 12


@pytest.mark.parametrize("uniform", [False, True])
def test_an_engine_that_plans_ahead_plans_drafts_only_where_they_pay(uniform):
    """The engine hears of the switch two steps late. Where drafts do not pay, it plans few besides exploration."""

    def run(machine, steps):
        """Return how many of the last 200 steps had planned drafts, and in how many the switch looked at drafts."""
        wants, looks = [True, True], []
        for _ in range(steps):
            machine.step(uniform, planned=wants[-2])
            assert wants[-2] or not machine.given.any()
            wants.append(machine.switch.plans_drafts(machine.batch))
            looks.append(machine.looks)
        return sum(wants[-200:]), sum(looks[-200:])

    machine = Machine(batch=16, accept=0.05, seconds=lambda rows: 1e-3 * np.asarray(rows))
    wanted, looks = run(machine, 800)
    assert wanted <= 10 and 20 < looks < 60
    machine.accept = machine.believed = 0.99
    machine.seconds = lambda rows: 0.1
    assert min(run(machine, 1000)) > 190 and machine.given.any()
    batch = BatchSwitch(8, logging.getLogger("test"))
    assert batch.plans_drafts(8) and not batch.plans_drafts(9) and not batch.should_draft(8, planned=False)


@pytest.mark.parametrize("times", [0.4, 1.0, 3.0])
def test_what_a_switch_learned_starts_another_one_but_for_costs_of_another_machine(times):
    here, plain = (Machine(batch=2, accept=0.8) for _ in range(2))
    here.run(300)
    saved = json.loads(json.dumps(here.switch.state()))
    there = Machine(batch=2, accept=0.8, seconds=lambda rows: times * curve(rows))
    there.switch.restore(saved)
    there.run(1)
    assert there.given.any(), "it waits to learn what it was told"
    there.run(100)
    assert there.switch.calibration.counts.sum() > 100, "what drafts are worth is not forgotten"
    assert there.switch.cost.rows_cost([2])[0] == pytest.approx(times * curve(2), rel=0.1)
    second = Machine(batch=2, accept=0.8)
    second.switch.restore(saved)
    second.run(3)
    assert second.given.any() and plain.run(3) < second.run(50)


def test_a_record_that_is_none_is_refused():
    switch = AutoSwitch(3, logging.getLogger("test"))
    nothing = switch.state()
    switch.restore(nothing)
    cost = nothing["cost"]
    changes = {"model": [[0]]}, {"counts": []}, {"counts": [1, 0, 0, 1]}, {"counts": [1e19, 0, 0, 1]}
    huge = {"model": np.full_like(cost["model"], 1e200).tolist()}
    costs = [{}, *(cost | bad for bad in (*changes, huge))]
    bad = [{"cost": cost} for cost in costs] + [{"calibration": [24 * [math.nan], 24 * [0]]}]
    for state in [None, *(nothing | changed for changed in bad)]:
        with pytest.raises(ValueError, match="not a record"):
            switch.restore(state)


def test_a_record_of_version_0_2_0_is_learned_again():
    switch = AutoSwitch(3, logging.getLogger("test"))
    nothing = switch.state()
    calibration = {"offered": 24 * [50.0], "accepted": 24 * [0.0]}
    switch.restore({"cost": {"samples": [[[8, 1.0, 0.0, 0.02]]]}, "calibration": calibration})
    assert switch.state() == nothing


def paused(steps, pauses, gap=300.0, read=0, **kwargs):
    """A machine after `steps` steps, with pauses of `gap` seconds before `pauses`. The first 30 read no prompts."""
    machine, slept = Machine(k=3, accept=0.8, **kwargs), 0.0
    machine.switch.clock = lambda: machine.now + slept
    for step in range(steps):
        slept += gap * (step in pauses)
        machine.read = read * (step >= 30)
        machine.step()
    return machine


@pytest.mark.parametrize(("gap", "read"), [(3.0, 0), (300.0, 64)])
def test_a_pause_is_not_learned_as_a_step(gap, read):
    """The pause may come at any step, also in a step that explores or before anything is known."""

    def seconds(machine):
        return machine.switch.cost.rows_cost([2 + read])[0]

    never = paused(200, (), batch=2, read=read)
    assert never.switch.steps_on > 50
    for at in (1, 7, 13, 31, 43, 61):
        once = paused(200, (at,), gap, batch=2, read=read)
        assert once.switch.steps_on > 0.93 * never.switch.steps_on - 2, at
        assert seconds(once) == pytest.approx(seconds(never), rel=0.1)
    often = paused(2000, range(0, 2000, 100), gap, batch=2, read=read)
    assert often.switch.steps_on > 0.93 * paused(2000, (), batch=2, read=read).switch.steps_on


@pytest.mark.parametrize("times", [1.3, 3, 10, 100])
def test_a_sudden_change_of_speed_is_noticed_within_five_steps(times):
    machine = Machine(batch=2, accept=0.8, k=3)
    machine.run(600)
    machine.seconds = lambda rows: times * curve(rows)
    before = machine.switch.cost.rows_cost([8])[0]
    machine.run(5)
    assert machine.switch.cost.rows_cost([8])[0] > 0.8 * times * before
