# SPDX-License-Identifier: Apache-2.0
"""Engines of a rollout, simulated from event to event: a request starts, ends, is preempted or enters the next bin of
positions.

Between two events every step has the same requests with the same expected gains, so a stretch of steps is one
calculation. A request advances by 1 + gain tokens per step, where gain is the expected number of accepted draft tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sam_lab.cost import Cost

Float64 = npt.NDArray[np.float64]

EDGES = np.array([128, 256, 512, 1024, 2048, 4096, 8192, 16384, 26000])
"""Positions in the answer at which acceptance may change: powers of two, and 26,000, where the article's curve
rises."""
BINS = len(EDGES) + 1
BLOCK = 16
"""Tokens per block of keys and values. Before an engine starts a request, it keeps one block free for each."""
DONE = 1e-6


@dataclass(frozen=True)
class Policy:
    """Expected accepted and drafted tokens per request and step.

    gain, drafted: [S + 1, BINS], by the number of running requests (0 .. S) and the position in the answer.
    share: [S + 1, BINS], the share of the steps that have drafts; None: all have.
    """

    gain: Float64
    drafted: Float64
    share: Float64 | None = None

    @staticmethod
    def off(slots: int) -> Policy:
        return Policy(np.zeros((slots + 1, BINS)), np.zeros((slots + 1, BINS)))


@dataclass
class Trace:
    """Stretches of equal steps.

    start, seconds, steps: of each stretch. running: [stretch, ranks], running requests.
    emitted: tokens of each stretch.
    """

    start: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    running: list[npt.NDArray[np.int64]] = field(default_factory=list)
    emitted: list[float] = field(default_factory=list)
    preempted: int = 0

    @property
    def total(self) -> float:
        return self.start[-1] + self.seconds[-1] if self.start else 0.0

    def max_running(self) -> npt.NDArray[np.int64]:
        """[stretch], running requests of the fullest rank."""
        return np.array([running.max() for running in self.running])

    def tail(self, threshold: int) -> float:
        """Seconds in which at most `threshold` requests ran on every rank."""
        return float(np.array(self.seconds)[self.max_running() <= threshold].sum())


@dataclass
class Engines:
    """Ranks that share a clock: one engine, or data-parallel ranks that meet in every step (experts spread over them).

    Args:
        prompts, answers: for each rank, tokens of its requests in order of arrival.
        slots: requests that a rank runs at once.
        capacity: tokens of keys and values that a rank holds.
        states: memory of a running request's states, in tokens.
    """

    prompts: Sequence[npt.NDArray[np.int64]]
    answers: Sequence[npt.NDArray[np.int64]]
    slots: int
    capacity: float = np.inf
    states: float = 0.0

    def __post_init__(self) -> None:
        ranks = len(self.answers)
        for p, a in zip(self.prompts, self.answers, strict=True):
            if len(a) and (p + a).max() + BLOCK + self.states > self.capacity:
                raise ValueError(
                    f"the longest request has {(p + a).max():,} tokens, and {self.capacity - self.states:,.0f} fit: "
                    "choose a larger tensor parallel size or shorter answers"
                )
        self.queue = [list(range(len(a)))[::-1] for a in self.answers]  # the next one last
        self.number = np.full((ranks, self.slots), -1)
        self.position = np.zeros((ranks, self.slots))
        self.length = np.zeros((ranks, self.slots))
        self.prompt = np.zeros((ranks, self.slots))
        self.arrival = np.zeros((ranks, self.slots), np.int64)
        self.saved: dict[tuple[int, int], float] = {}
        self.clock, self.arrived = 0.0, 0
        self.reading = 0.0  # seconds in which the next step reads prompts
        self.trace = Trace()

    def copy(self) -> Engines:
        """A copy of the state, to continue with another policy."""
        twin = copy.copy(self)
        for name in ("number", "position", "length", "prompt", "arrival", "saved"):
            setattr(twin, name, getattr(self, name).copy())
        twin.queue = [list(queue) for queue in self.queue]
        twin.trace = Trace(**{name: copy.copy(value) for name, value in vars(self.trace).items()})
        return twin

    def run(self, cost: Cost, policy: Policy, until: int = 0) -> Trace:
        """Continue until every request has ended, or until at most `until` requests run on each rank."""
        moving = policy.gain.max(axis=1) > 0  # whether there are drafts, by the number of running requests
        while True:
            self.reading += self._start(cost)
            busy = self.number >= 0
            running = busy.sum(axis=1)
            if running.max() <= until:
                return self.trace
            rate = busy.astype(float)
            context = ((self.prompt + self.position) * busy).sum(axis=1)
            at = drafted = None
            share = 1.0
            if moving[running].any():
                at = np.searchsorted(EDGES, self.position, side="right")
                drafted = policy.drafted[running[:, None], at] * busy
                rate += policy.gain[running[:, None], at] * busy
                if policy.share is not None:
                    of_requests = policy.share[running[:, None], at] * busy
                    share = float((of_requests.sum(axis=1) / np.maximum(running, 1)).max())
            steps = self._steps(running, rate, context + self.states * running, at, moving)
            self._advance(steps, cost, running, rate, context, drafted, share)

    def _start(self, cost: Cost) -> float:
        """Give free slots to waiting requests; returns the seconds in which their prompts are read."""
        longest = 0.0
        for rank, queue in enumerate(self.queue):
            if not queue:
                continue
            free = np.flatnonzero(self.number[rank] < 0)
            if not len(free):
                continue
            running = self.slots - len(free)
            stored = (self.prompt[rank] + self.position[rank])[self.number[rank] >= 0].sum()
            tokens = 0.0
            for slot in free:
                if not queue:
                    break
                request = queue[-1]
                position = self.saved.get((rank, request), 0.0)
                prompt = float(self.prompts[rank][request])
                if stored + prompt + position + (BLOCK + self.states) * (running + 1) > self.capacity and running:
                    break
                queue.pop()
                self.number[rank, slot], self.arrival[rank, slot] = request, self.arrived
                self.position[rank, slot], self.prompt[rank, slot] = position, prompt
                self.length[rank, slot] = self.answers[rank][request]
                self.arrived += 1
                running += 1
                stored += prompt + position
                tokens += prompt + position
            longest = max(longest, tokens)
        return cost.prefill * longest

    def _steps(
        self,
        running: npt.NDArray[np.int64],
        rate: Float64,
        held: Float64,
        at: npt.NDArray[np.int64] | None,
        moving: npt.NDArray[np.bool_],
    ) -> int:
        """Steps until the next event: an answer ends or enters the next bin, or memory runs out on a rank.

        held: [ranks], tokens including states. at: [ranks, slots], the bin of each position; None if positions do not
        matter.
        """
        busy = rate > 0
        steps = ((self.length - self.position)[busy] / rate[busy]).min()
        if at is not None:
            drafting = busy & moving[running][:, None] & (at < len(EDGES))
            if drafting.any():
                edge = EDGES[at[drafting]]
                steps = min(steps, ((edge - self.position[drafting]) / rate[drafting]).min())
        steps = max(1, int(np.ceil(steps - DONE)))
        if self.capacity < np.inf:
            for free, growth, n in zip(self.capacity - held, rate.sum(axis=1), running, strict=True):
                if n > 1 and growth * steps > free:
                    steps = max(1, int(free // growth))
        return steps

    def _advance(
        self,
        steps: int,
        cost: Cost,
        running: npt.NDArray[np.int64],
        rate: Float64,
        context: Float64,
        drafted: Float64 | None,
        share: float,
    ) -> None:
        growth, nothing = rate.sum(axis=1), np.zeros(len(running))
        if drafted is None:
            seconds = cost.stretch(steps, running, context, growth, nothing, nothing)
        else:
            rows = running + drafted.sum(axis=1)
            draft_context = (drafted * (self.prompt + self.position)).sum(axis=1)
            draft_growth = (drafted * rate).sum(axis=1)
            seconds = cost.stretch(steps, rows, context, growth, draft_context, draft_growth, share)
        seconds, self.reading = self.reading + seconds, 0.0
        before, self.position = self.position, np.minimum(self.position + rate * steps, self.length)
        trace = self.trace
        trace.start.append(self.clock)
        trace.seconds.append(seconds)
        trace.steps.append(steps)
        trace.running.append(running)
        trace.emitted.append(float((self.position - before).sum()))
        self.clock += seconds
        over = (rate > 0) & (self.length - self.position <= DONE)
        self.number[over] = -1
        if (context + growth * steps + (2 + self.states) * running > self.capacity).any():
            self._preempt()

    def _preempt(self) -> None:
        """Preempt the latest requests of each rank until its next step fits into memory; they are prefilled again."""
        for rank in range(len(self.queue)):
            busy = self.number[rank] >= 0
            stored = (self.prompt[rank] + self.position[rank])[busy].sum()
            while stored + (2 + self.states) * busy.sum() > self.capacity and busy.sum() > 1:
                slot = int(np.where(busy, self.arrival[rank], -1).argmax())
                request = int(self.number[rank, slot])
                stored -= self.prompt[rank, slot] + self.position[rank, slot]
                self.saved[rank, request] = float(self.position[rank, slot])
                self.queue[rank].append(request)
                self.number[rank, slot] = -1
                busy[slot] = False
                self.trace.preempted += 1
