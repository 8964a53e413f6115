# SPDX-License-Identifier: Apache-2.0
"""Random machines, loads and drafts, and a run of switch `auto` on them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.budget import choose
from sam_core.switch import AutoSwitch

from sam_lab.cost import Cost
from sam_lab.switch_worlds.acceptance import Record

Float64 = npt.NDArray[np.float64]

THRESHOLD = 8
"""Maximum running requests with which the compared switch `batch` drafts k tokens."""
STEPS = (600, 2000)
ARMS = ("auto", "best", "foresight", "plain", "batch")
SIZES = {"multiples of 8": [1, 2, 4, *range(8, 513, 8)], "powers of 2": [1 << i for i in range(10)]}
"""Captured batch sizes; larger steps are not padded."""


@dataclass(frozen=True)
class Curve:
    """True cost of a step.

    A step takes f(rows + prompt_rows) + context * (thousands of tokens held + read) + draft_context * (for each draft
    token, the thousands of tokens of its request) seconds, and `verify` more if it has drafts. Here f is
    fixed + row * max(knee, rows), with rows padded to the next of `sizes`.
    """

    fixed: float
    row: float
    knee: float
    sizes: Float64
    context: float
    draft_context: float
    verify: float = 0.0
    prompt_rows: int = 0
    read: float = 0.0

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        rows = np.asarray(rows, float) + self.prompt_rows
        if len(self.sizes):
            padded = self.sizes[np.minimum(np.searchsorted(self.sizes, rows), len(self.sizes) - 1)]
            rows = np.maximum(rows, padded)
        return self.fixed + self.row * np.maximum(self.knee, rows)

    def by_drafts(self, contexts: Float64, count: int, read: Sequence[int] = (0,)) -> Float64:
        """Seconds by the number of draft tokens up to `count`, as sam_core.budget.choose expects them: the mean over
        steps that read each of these numbers of prompt tokens."""
        rows = len(contexts) + np.arange(count + 1)
        seconds = self.rows_cost(rows + np.asarray(read)[:, None]).mean(0) + self.context * contexts.sum()
        seconds[1:] += self.verify
        return seconds

    def step(self, given: npt.NDArray[np.int32], contexts: Float64) -> float:
        """Seconds of a step whose requests have `contexts` thousand tokens and `given` draft tokens each."""
        rows = float(self.rows_cost(len(contexts) + int(given.sum()))) + self.verify * bool(given.any())
        return rows + self.context * (contexts.sum() + self.read) + self.draft_context * float(given @ contexts)


@dataclass(frozen=True)
class Clocked(Curve):
    """The cost of a device of the command `evidence`: f is at least the host's time to launch a step."""

    cost: Cost | None = None

    @staticmethod
    def of(cost: Cost) -> Clocked:
        return Clocked(0, 0, 0, np.empty(0), cost.context, cost.draft_context, cost.verify, cost=cost)

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        assert self.cost
        return self.cost.rows_cost(np.asarray(rows, float) + self.prompt_rows)


class Scenario:
    """All that a seed determines: costs and their changes, bursts, drift, noise; requests; drafts.

    device: if given, the cost of its steps, of which only the speed changes.
    busy: whether the machine does other work too, which changes the time of each step.
    """

    def __init__(self, seed: int, records: Sequence[Record], device: Cost | None = None) -> None:
        rng = self.rng = np.random.default_rng(seed)

        def between(low: float, high: float) -> float:
            return float(np.exp(rng.uniform(np.log(low), np.log(high))))

        def maybe(share: float) -> bool:
            return bool(rng.random() < share)

        self.steps = round(between(*STEPS))
        self.k = int(rng.choice([3, 3, 5, 8]))
        self.record = records[int(rng.integers(len(records)))]
        # the load: rollouts of `asked` prompts each, or endless requests; at most `most` requests run
        self.most = round(between(1, 256))
        self.serving = maybe(0.4)
        self.asked = round(self.most * rng.uniform(1, 3))
        self.answer = between(50, 2000)
        self.spread = float(rng.uniform(0.2, 1.2))
        self.prompt = between(30, 6000)
        self.chunk = int(rng.choice([2048, 8192]))
        # the machine
        form = str(rng.choice(["flat", "linear", "knee"]))
        pads = str(rng.choice(["none", *SIZES]))
        self.form, self.pads = form, pads
        self.plain = between(0.004, 0.1)
        self.share = float(rng.uniform(0, 0.5) if maybe(0.7) else 0.0)
        self.draft_share = float(rng.uniform(0, 0.6))
        self.noise = between(0.003, 0.08)
        self.spikes = float(rng.uniform(0, 0.02)) if maybe(0.5) else 0.0
        n = self.steps
        log_speed = np.zeros(n)
        self.bursts = self.drift = 0.0
        if maybe(0.35):
            self.bursts = float(rng.uniform(1.3, 3))
            every, longest = between(100, 2000), between(5, 60)
            at = 0
            while (at := at + 1 + int(rng.exponential(every))) < n:
                log_speed[at : at + 1 + int(rng.exponential(longest))] = np.log(self.bursts)
        if maybe(0.3):
            self.drift = float(rng.uniform(0.05, 0.4))
            log_speed += self.drift * np.sin(2 * np.pi * (np.arange(n) / between(400, 4000) + rng.random()))
        self.curves = [self._curve(form, pads)]
        self.which = np.zeros(n, int)
        self.changes = int(rng.integers(1, 4)) if maybe(0.3) else 0
        for at in np.sort(rng.integers(n // 10, n, self.changes)):
            log_speed[at:] += np.log(between(0.25, 4))
            if maybe(0.5):
                self.curves.append(self._curve(form, pads))
            self.which[at:] = len(self.curves) - 1
        self.slow = np.exp(log_speed)
        # a second generator, so that the values above do not depend on these
        more = np.random.default_rng([seed, 1])
        self.verify = float(more.uniform(0.1, 1)) * self.plain if more.random() < 0.25 else 0.0
        self.curves = [replace(curve, verify=self.verify) for curve in self.curves]
        self.busy = bool(more.random() < 0.1)
        if self.busy:
            self.noise = float(more.uniform(0.1, 0.8))
        if device:
            self.curves = [Clocked.of(device)] * len(self.curves)

    def _curve(self, form: str, pads: str) -> Curve:
        """A curve on which a plain step of `most` requests takes self.plain seconds, a share of it for contexts."""
        rng = self.rng
        usual = self.most * (self.prompt + self.answer / 2) / 1000
        rows = self.plain * (1 - self.share)
        knee = float(np.exp(rng.uniform(0, np.log(1024)))) if form == "knee" else 1.0
        shares = {"flat": rng.uniform(0, 0.1), "linear": min(1, rng.uniform(0.1, 1.3)), "knee": rng.uniform(0.3, 1)}
        fixed, row = rows * (1 - shares[form]), rows * shares[form] / max(knee, self.most)
        context = self.plain * self.share / usual
        return Curve(fixed, row, knee, np.array(SIZES.get(pads, []), float), context, context * self.draft_share)

    @property
    def facts(self) -> dict[str, Any]:
        names = "steps k most serving asked answer prompt chunk form pads busy "
        names += "plain share noise spikes bursts drift changes verify"
        return {name: getattr(self, name) for name in names.split()} | {"record": self.record.name}


class _Requests:
    """Requests by slot: their tokens held, to read and to write, and where in the record their drafts are."""

    def __init__(self, world: Scenario) -> None:
        self.world = world
        n = world.most
        self.running = np.zeros(n, bool)
        self.begun = np.zeros(n, bool)
        self.context = np.zeros(n)
        self.unread = np.zeros(n, np.int64)
        self.unwritten = np.zeros(n, np.int64)
        self.run = np.zeros(n, np.int64)
        self.at = np.zeros(n, np.int64)
        self.waiting = 0

    def admit(self) -> None:
        """Give free slots to waiting prompts; begin the next rollout when none is left."""
        world, rng = self.world, self.world.rng
        if world.serving:
            self.waiting = world.most
        elif not self.running.any() and not self.waiting:
            self.waiting = world.asked
        free = np.flatnonzero(~self.running)[: self.waiting]
        if not len(free):
            return
        self.waiting -= len(free)
        self.running[free] = True
        length = world.prompt * np.exp(0.3 * rng.standard_normal(len(free)))
        answer = world.answer * np.exp(world.spread * rng.standard_normal(len(free)))
        self.unread[free] = np.maximum(1, length)
        self.context[free] = self.unread[free]
        self.unwritten[free] = np.maximum(1, answer)
        self.run[free] = rng.integers(len(world.record.scores), size=len(free))
        self.at[free] = rng.integers(world.record.scores.shape[1], size=len(free))

    def read(self) -> int:
        """Read prompts in the order of slots, up to the chunk; returns the number of tokens read."""
        reading = np.flatnonzero(self.running & (self.unread > 0))
        if not len(reading):
            return 0
        taken = np.diff(np.minimum(np.cumsum(self.unread[reading]), self.world.chunk), prepend=0)
        self.unread[reading] -= taken
        self.begun[reading] |= taken > 0
        return int(taken.sum())

    def write(
        self,
        slots: npt.NDArray[np.int64],
        decoding: npt.NDArray[np.int64],
        read: npt.NDArray[np.int64],
        accepted: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int32]:
        """End a step of these slots; returns the tokens that each has got.

        decoding, read: slots that decode, and those that read prompts. accepted: draft tokens of those that decode.
        """
        gained = np.zeros(len(self.running), np.int32)
        gained[decoding] = np.minimum(1 + accepted, self.unwritten[decoding])
        self.at[decoding] = (self.at[decoding] + 1) % self.world.record.scores.shape[1]
        gained[read] = self.unread[read] == 0
        self.context[slots] += gained[slots]
        self.unwritten[slots] -= gained[slots]
        return gained[slots]

    def scores(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The scores of the drafts that the record has for these slots, float32 [B, k]."""
        return self.world.record.scores[self.run[slots], self.at[slots]][:, : self.world.k]

    def end(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """End the requests that have nothing left to write; returns their slots."""
        ended = slots[self.unwritten[slots] <= 0]
        self.running[ended] = self.begun[ended] = False
        return ended


def play(world: Scenario) -> dict[str, Any]:
    """Run switch `auto` through a scenario.

    Returns:
        seconds: the time of its tokens (`auto`), and the time that the same tokens would have taken with other drafts:
            `best`, the drafts of an oracle that knows costs and acceptance, but expects the prompt tokens of the latest
            steps, as drafts are chosen before a step is scheduled; `foresight`, those of an oracle that knows the
            prompts too; `plain`, no drafts; `batch`, those of switch `batch`. All are expected values without noise.
        drafted: verified draft tokens of `auto`.
        host: mean seconds per step that the switch itself took on this processor.
    """
    rng, k = world.rng, world.k
    clock = [0.0]
    graph_sizes = SIZES.get(world.pads, [])
    switch = AutoSwitch(k, logging.getLogger("switch-worlds"), lambda: clock[0], graph_sizes)
    host = 0.0
    requests = _Requests(world)
    seconds = dict.fromkeys(ARMS, 0.0)
    noise = np.exp(world.noise * rng.standard_normal(world.steps))
    noise *= np.where(rng.random(world.steps) < world.spikes, rng.uniform(2, 6, world.steps), 1)
    chosen = np.zeros(world.most, np.int32)
    drafted = 0
    latest: deque[int] = deque([0], maxlen=switch.PROMPT_WINDOW)
    reading = False
    for step in range(world.steps):
        requests.admit()
        decoding = np.flatnonzero(requests.begun & (requests.unread == 0))
        prompts = requests.read()
        slots = np.flatnonzero(requests.begun)
        curve = world.curves[world.which[step]]
        contexts = requests.context[decoding] / 1000
        with_prompts, read = curve, slots[:0]
        if prompts:
            read = np.setdiff1d(slots, decoding, assume_unique=True)
            with_prompts = replace(curve, prompt_rows=prompts, read=requests.context[read].sum() / 1000)
        truth = world.record.truth[requests.run[decoding], requests.at[decoding]][:, :k]
        n = chosen[decoding]
        spent = with_prompts.step(n, contexts)
        clock[0] += spent * world.slow[step] * noise[step]
        if len(decoding):
            likely = [tokens for tokens in latest if tokens or not reading]
            for name, cost in _judge(truth, n, contexts, curve, with_prompts, likely, len(slots)).items():
                seconds[name] += world.slow[step] * cost
        drafted += int(n.sum())
        latest.append(prompts)
        reading = bool((requests.unread[read] > 0).any())
        accepted = ((rng.random(len(decoding))[:, None] < truth) & (np.arange(k) < n[:, None])).sum(1)
        tokens = requests.write(slots, decoding, read, accepted)
        scores = requests.scores(slots) * (tokens[:, None] > 0)
        begin = time.thread_time()
        chosen[slots] = _draft(switch, slots, tokens, len(decoding) + int(n.sum()) + prompts, requests, scores)
        host += time.thread_time() - begin
        for slot in requests.end(slots):
            chosen[slot] = 0
            switch.forget(int(slot))
    return {"seconds": seconds, "drafted": drafted, "host": host / world.steps} | world.facts


def _draft(
    switch: AutoSwitch,
    slots: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int32],
    num_tokens: int,
    requests: _Requests,
    scores: npt.NDArray[np.float32],
) -> npt.NDArray[np.int32] | int:
    """The draft tokens of each of B requests for the next step, after a step of `num_tokens` that gave them `tokens`.

    scores: float32 [B, k], of the drafts that the texts have for them.
    """
    known, lengths, held = slots.astype(np.int32), (scores > 0).sum(1).astype(np.int32), requests.context[slots]
    switch.observe(known, tokens, num_tokens)
    if switch.should_draft(len(slots)):
        return switch.choose(known, held, lengths, scores)
    switch.skip(known, held)
    return 0


def _judge(
    truth: Float64,
    given: npt.NDArray[np.int32],
    contexts: Float64,
    curve: Curve,
    with_prompts: Curve,
    likely: Sequence[int],
    running: int,
) -> dict[str, float]:
    """Seconds of the step as it was, and of the same tokens with the drafts of the other ARMS.

    Prompts have to be read in any case. So in a step that reads some, a difference in tokens is priced at the time per
    token of the best step of the same requests without prompts.

    Args:
        truth: [B, k], probability that drafts are accepted.
        given: int32 [B], draft tokens that switch `auto` gave each request.
        contexts: [B], thousands of tokens.
        curve, with_prompts: what steps cost, without and with the prompts of this one.
        likely: numbers of prompt tokens that the oracle expects, each with the same probability.
        running: requests in the step, including those that read prompts.
    """
    lengths = (truth > 0).sum(1).astype(np.int32)
    none = np.zeros_like(lengths)
    sums = np.concatenate([np.zeros((len(contexts), 1)), np.cumsum(truth, 1)], 1)

    def tokens(n: npt.NDArray[np.int32]) -> Float64:
        return len(contexts) + sums[np.arange(len(contexts)), n].sum(-1)

    count = int(lengths.sum())
    drafts = truth, lengths, contexts, curve.by_drafts(contexts, count), curve.draft_context
    of_plain = choose(*drafts).lengths
    best, foresight = of_plain, of_plain
    if any(likely):
        best = choose(*drafts, curve.by_drafts(contexts, count, likely)).lengths
    worth = 0.0
    if with_prompts.prompt_rows:
        worth = curve.step(of_plain, contexts) / float(tokens(of_plain))
        foresight = choose(*drafts, with_prompts.by_drafts(contexts, count)).lengths
    every = np.array([given, best, foresight, none, lengths if running <= THRESHOLD else none])
    made = tokens(every)
    cost = with_prompts.rows_cost(len(contexts) + every.sum(1)) + with_prompts.draft_context * (every @ contexts)
    cost += with_prompts.context * (contexts.sum() + with_prompts.read) + with_prompts.verify * every.any(1)
    cost = cost + (made[0] - made) * worth if with_prompts.prompt_rows else cost * made[0] / made
    return dict(zip(ARMS, cost.tolist(), strict=True))
