# SPDX-License-Identifier: Apache-2.0
"""Tests of pauses of drafting, which are chosen by the measured times of steps."""

import functools
import gzip
import json
import math
import random
import types
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sam_core.engines.vllm.passes import PASS_INTERVAL, Passes
from sam_core.engines.vllm.pauses import LAG, PLAIN_INTERVALS, PLAIN_SHARE, PLAIN_STEPS, Pauses
from sam_core.engines.vllm.texts import Sampled


def test_a_step_without_tokens_is_no_step():
    """The step only ends requests. A trial run of the engine follows, which does not count as a step either."""
    device = Device(row_ms=0.1, acceptance=0.5)
    device.pauses.begin(0, joined=0, launches=False)
    device.pauses.launched(None)
    assert not device.pauses._steps


class Device:
    """A device that runs a Pauses with a simulated clock. A step is over when the second step after it begins.

    planned: drafts were planned for the step. verifies: drafts were also made.
    """

    def __init__(self, row_ms=0.1, acceptance=0.5, drafting_ms=0.5, requests=8, budget=16):
        self.row_ms, self.acceptance, self.drafting_ms = row_ms, acceptance, drafting_ms
        self.requests, self.budget, self.context = requests, budget, 1000
        self.random, self.ms, self.begun = random.Random(0), 0.0, 0
        self.pauses = Pauses(self.event)
        self.paused = [False] * (LAG + 1)
        self.times = []  # of each step: whether it paused, milliseconds, tokens

    def event(self):
        device = self

        class Event:
            def record(self):
                self.ms, self.number = device.ms, device.begun

            def query(self):
                return device.begun - self.number >= 2

            def elapsed_time(self, end):
                return end.ms - self.ms

        return Event()

    def begin(self, requests, joined):
        """Begin a step, and return whether drafting pauses in it."""
        self.begun += 1
        self.pauses.begin(requests, joined)
        self.paused.append(self.pauses.pause)
        self.planned = not self.paused[-1 - LAG]
        self.verifies = self.planned and not self.paused[-2]
        return self.pauses.pause

    def end(self, requests, verified, tokens, took):
        """End a step that took `took` ms, verified `verified` draft tokens and yielded `tokens` tokens."""
        batch = types.SimpleNamespace(
            num_tokens=requests + verified,
            num_reqs=requests,
            has_prefill=False,
            num_scheduled_tokens=np.full(requests, 16 if self.planned else 1),
            seq_lens_cpu_upper_bound=torch.full((requests,), self.context),
        )
        self.pauses.launched(batch)
        self.pauses.ended(Sampled([[0] * tokens], [verified]))
        self.ms += took

    def step(self, joined=0):
        paused = self.begin(self.requests, joined)
        verified = self.budget if self.verifies else 0
        accepted = round(verified * self.acceptance)
        took = 10 + self.row_ms * (self.requests + verified) + self.drafting_ms * self.planned
        self.end(self.requests, verified, self.requests + accepted, took)
        self.times.append((paused, took, self.requests + accepted))

    def run(self, steps, joined=0):
        """Run steps, and return their times. joined: the number of new requests in each step."""
        for _ in range(steps):
            self.step(joined)
        return self.times[-steps:]


def rate(times):
    return sum(tokens for *_, tokens in times) / sum(ms for _, ms, _ in times)


def test_drafting_pauses_where_it_does_not_pay():
    device = Device(row_ms=0.5, acceptance=0.1)
    device.run(2000)
    plain = device.requests / (10 + 0.5 * device.requests)
    assert rate(device.times) > 0.97 * plain
    assert sum(not paused for paused, *_ in device.times[-1000:]) > 0, "it never looks again"


@pytest.mark.parametrize(("pass_ms", "pays"), [(0.2, True), (2.0, False)])
def test_passes_run_where_they_pay(pass_ms, pays):
    """Three passes are expected to yield a tenth more tokens than one pass. A step of 16 ms has 4 % noise."""
    device, passes, noise = Device(acceptance=0.8, drafting_ms=3.6), Passes(3), random.Random(1)
    device.pauses.passes, ran = passes, []
    for _ in range(4000):
        device.begin(device.requests, 0)
        ran.append(passes.choose(20.0, 22.0, explores=True) if device.verifies else None)
        verified = device.budget if device.verifies else 0
        took = 10 + 0.1 * (device.requests + verified) + 3.6 * device.planned
        count = 3 if ran[-1] else 1
        device.end(device.requests, verified, 20, (took + pass_ms * (count - 1)) * math.exp(noise.gauss(0, 0.04)))
        device.pauses.drafted(count)
    latest = [all_passes for all_passes in ran[1500:] if all_passes is not None]
    assert 1 / (2 * PASS_INTERVAL) < latest.count(not pays) / len(latest) < 2 / PASS_INTERVAL
    assert passes.share == pytest.approx(2 * pass_ms / 16, abs=0.05)


def test_nothing_is_tried_where_steps_are_not_timed():
    passes = Passes(3)
    assert all(passes.choose(10.0, 12.5, explores=False) for _ in range(2 * PASS_INTERVAL))
    assert not any(passes.choose(10.0, 11.5, explores=False) for _ in range(2 * PASS_INTERVAL))


def test_drafting_goes_on_where_it_pays():
    device = Device(row_ms=0.1, acceptance=0.8)
    device.run(2000)
    always = (8 + 13) / (10 + 0.1 * 24 + 0.5)
    assert rate(device.times) > (1 - 1.5 * PLAIN_SHARE) * always
    assert sum(paused for paused, *_ in device.times[-1000:]) > 0, "it never looks again"
    device.acceptance, device.row_ms = 0.0, 0.5
    assert rate(device.run(1500)[-1000:]) > 0.92 * device.requests / (10 + 0.5 * device.requests)


def test_steps_of_which_the_time_says_nothing_do_not_count():
    """Every step has a new request, for which the device may have waited."""
    device = Device(row_ms=0.1, acceptance=0.5)
    least = PLAIN_INTERVALS[0]
    device.run(least + 2 * PLAIN_STEPS, joined=1)
    assert not device.pauses.cost.fitted
    assert device.pauses.curve([8, 16]) is None
    assert sum(paused for paused, *_ in device.run(2 * least)) > 0, "it looks again soon"


@pytest.mark.parametrize(("requests", "joined"), [(8, 8), (2, 0)])
def test_a_pause_is_of_its_batch_and_its_number_of_requests(requests, joined):
    """After a pause begins, another batch begins, or most requests end."""
    device = Device(row_ms=0.5, acceptance=0.0)
    device.run(600)
    while not all(paused for paused, *_ in device.times[-2 * PLAIN_STEPS :]):
        assert len(device.times) < 2000, "drafting does not pause"
        device.step()
    device.acceptance, device.row_ms, device.requests = 0.8, 0.1, requests
    device.step(joined)
    assert sum(not paused for paused, *_ in device.run(60)) >= 60 - 2 * PLAIN_STEPS


def test_a_batch_goes_on_until_its_first_drafts_are_verified():
    """The first steps of a batch yield one token per request, and are slow, as the host begins to draft."""
    device = Device(row_ms=0.1, acceptance=0.8)
    device.run(PLAIN_INTERVALS[0] + 3 * PLAIN_STEPS)
    device.acceptance, device.drafting_ms = 0, 20
    device.step(joined=device.requests)
    device.run(LAG - 1)
    device.acceptance, device.drafting_ms = 0.8, 0.5
    assert sum(paused for paused, *_ in device.run(60)) <= PLAIN_STEPS, "it only looks"


@functools.cache
def recorded():
    """Return the steps of each arm and batch that read no prompt, recorded on an H200 with an older, slower `auto`."""
    with gzip.open(Path(__file__).with_name("steps-of-a-slow-host.jsonl.gz"), "rt") as lines:
        runs = [*map(json.loads, lines)]
    return {(run["arm"], run["batch"]): [step for step in run["steps"] if not step["prefill"]] for run in runs}


def by_requests(steps):
    found = {}
    for step in steps:
        found.setdefault(step["running"], []).append(step)
    return found


class RecordedDevice(Device):
    """A device whose steps take the time, and yield the tokens, of recorded steps with a similar number of requests."""

    def like(self, steps, requests):
        return self.random.choice(steps[min(steps, key=lambda running: abs(math.log(running / requests)))])

    def rollout(self, batch):
        """Run a batch of recorded answers, and return the speed-up over the recorded steps without drafts."""
        every = recorded()["plain", batch]
        plain = by_requests(every + (recorded()["plain", 0] if every[-1]["running"] > 50 else []))
        drafting = by_requests(step for step in recorded()["auto", batch] if step["rows"] > step["running"])
        running = [step["running"] for step in every]
        left = [float(t) for t, (now, after) in enumerate(pairwise([*running, 0]), 1) for _ in range(now - after)]
        start, joined = self.ms, len(left)
        while left:
            requests = len(left)
            self.begin(requests, joined)
            joined = 0
            without, with_drafts = self.like(plain, requests), self.like(drafting, requests)
            verified, gained, took = 0, 1.0, without["s"]
            if self.verifies:
                verified, took = with_drafts["rows"] - with_drafts["running"], with_drafts["s"]
                gained = with_drafts["emitted"] / max(1, with_drafts["gaining"])
            elif self.planned:
                took += 0.25 * with_drafts["s"]  # the cost of planning on the host, and of new drafts
            self.end(requests, verified, round(gained * requests), 1000 * took)
            left = [tokens - gained for tokens in left if tokens > gained]
        return 1000 * sum(step["s"] for step in every) / (self.ms - start)


def test_batches_as_a_gpu_took_them():
    """Constant drafting makes long reasoning slower. Pauses prevent this, and RL answers keep their speed-up."""
    gains = {}
    for always in (False, True):
        device = RecordedDevice(row_ms=0, acceptance=0)
        if always:
            device.pauses = AlwaysDrafts(device.event)
        gains[always] = np.array([device.rollout(batch) for batch in (0, 1, 0, 1, 2, 1)])
    long_reasoning = [1, 3, 5]
    assert gains[False][long_reasoning].min() > 0.97 > gains[True][long_reasoning].max()
    assert (gains[False] > 0.93 * gains[True]).all()


class AlwaysDrafts(Pauses):
    def begin(self, *args, **kwargs):
        super().begin(*args, **kwargs)
        self.pause = False


def test_a_size_that_was_slow_by_chance_does_not_make_all_larger_ones_slow():
    """vLLM uses the running maximum of the cost curve, so one slow size would raise all larger sizes."""
    device = Device(row_ms=0.01, acceptance=0.5)
    for i in range(400):
        device.budget = 8 * (i % 8) or 1
        device.drafting_ms = 0.5
        if device.budget == 16:
            device.budget, device.drafting_ms = (16, 9) if i < 30 else (24, 0.5)
        device.step()
    curve = device.pauses.curve([*range(8, 72, 8)])
    assert all(ms < 12 for _, ms in curve[3:]), "size 24 took 19 ms"
    assert [ms for _, ms in curve] == sorted(ms for _, ms in curve)


def test_the_curve_is_what_steps_with_drafts_take():
    device = Device(row_ms=0.5, acceptance=0.9)
    for i in range(600):
        device.budget = 1 + i % 24
        device.step()
    curve = dict(device.pauses.curve([8, 16, 32]))
    assert curve == pytest.approx({n: 10.5 + 0.5 * n for n in (8, 16, 32)}, rel=0.08)


def test_sizes_that_no_step_had_cost_what_the_trials_took_more():
    """A trial run samples nothing and is faster than a step, so only differences between trials are used."""
    device = Device(row_ms=0.1, acceptance=0.9)
    device.pauses.trials = [1, 24, 64, 512], [0.005, 0.006, 0.008, 0.03]
    device.run(100)
    curve = dict(device.pauses.curve([24, 64, 512]))
    assert curve[64] - curve[24] == pytest.approx(2, rel=0.01) and curve[512] - curve[64] == pytest.approx(22, rel=0.01)


def test_steps_that_verify_nothing_say_nothing_of_drafts():
    """The steps get slower because the contexts of their requests grow, not because of drafts."""
    device = Device(row_ms=0.1, acceptance=0.0, drafting_ms=0.0, requests=100, budget=0)
    for i in range(1000):
        device.context = 1000 + i
        device.drafting_ms = 0.04 * device.context / 10
        device.step()
    curve = dict(device.pauses.curve([100, 1600]))
    assert device.pauses.cost.draft_context == 0 and curve[1600] == pytest.approx(curve[100])
