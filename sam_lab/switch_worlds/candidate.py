# SPDX-License-Identifier: Apache-2.0
"""Switch `auto` with one regression of step times in place of tables, and plain steps in place of probes."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core._sam import learn_step, lowest_score, observe_drafts, rows_seconds, step_seconds
from sam_core.budget import Calibration, choose
from sam_core.switch import Float64, Floats, Int32, Switch

NUM_FEATURES = 19
NO_ROWS = np.zeros(1, np.int32)


class StepCost:
    MAX_RESIDUAL = 0.12
    """Most that one residual counts, and the least change of speed that is followed at once, as logarithms."""
    SPEED_TRACKING = 0.03
    """Share of each residual by which costs are scaled: it bounds how soon a slow drift is followed."""
    SPEED_WINDOW = 5
    """Latest residuals, by whose median costs are scaled if it is large: it bounds how late a sudden change is noticed."""
    CHANGE = 0.1
    """Weight that steps keep after such a change: it bounds how long a wrong shape of the costs is kept."""
    SLOW = 0.3
    """Residual beyond which a step is left out unless the one before of its kind was as slow."""
    MEAN_SHARE = 0.02
    """Share of each step in the mean seconds of a step."""
    SWEEPS = 30, 4
    """Of the fit, in the first 20 steps and later."""

    def __init__(self, memory: float = math.inf, graph_sizes: Iterable[int] = ()) -> None:
        self.keep = math.exp(-1 / memory)
        sizes = np.array(sorted({1, *graph_sizes}), np.int32)
        self._padded = sizes[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]
        self.steps, self.max_rows, self.speed, self._mean = 0, 0, 1.0, 0.0
        self._model = np.zeros((NUM_FEATURES + 3, NUM_FEATURES))
        self._weights = self._model[-1]
        self._residuals: deque[float] = deque(maxlen=self.SPEED_WINDOW)
        self._slow = [False] * 4
        self.changed = False

    def _pad(self, rows: int) -> int:
        return int(self._padded[rows]) if rows < len(self._padded) else rows

    def seconds(self, rows: int, drafts: bool, prompts: bool, context: float, draft_context: float) -> float:
        return self.speed * step_seconds(self._model, self._pad(rows), drafts, prompts, context, draft_context)

    def learn(
        self, rows: int, drafts: bool, prompts: bool, context: float, draft_context: float, seconds: float
    ) -> float:
        """Learn from a step; the logarithm of its seconds over those expected."""
        step = self._pad(rows), drafts, prompts, context, draft_context
        self.steps += 1
        self.changed = False
        if self.steps == 1:
            self._weights[0] = self._mean = seconds
        residual = math.log(seconds / self.speed / max(step_seconds(self._model, *step), 1e-12))
        if self.steps > 3 and self.keep < 1:
            self._follow(residual)
        took = seconds / self.speed
        kind = 2 * prompts + drafts
        slow = residual > self.SLOW
        leave_out = self.steps > 3 and slow and not self._slow[kind]
        self._slow[kind] = slow
        self._mean += self.MEAN_SHARE * (min(took, 3 * self._mean) - self._mean)
        sweeps = self.SWEEPS[self.steps >= 20]
        learn_step(self._model, *step, took, self.keep, leave_out, self._mean, sweeps)
        self.max_rows = max(self.max_rows, rows)
        return residual

    def _follow(self, residual: float) -> None:
        self._residuals.append(residual)
        median = sorted(self._residuals)[len(self._residuals) // 2]
        if len(self._residuals) == self.SPEED_WINDOW and abs(median) > self.MAX_RESIDUAL:
            self._residuals.clear()
            self.speed *= math.exp(median)
            self._model[:-1] *= self.CHANGE
            self.changed = True
        else:
            self.speed *= math.exp(self.SPEED_TRACKING * min(max(residual, -self.MAX_RESIDUAL), self.MAX_RESIDUAL))

    def rows_cost(self, first: int, count: int, more: Int32 = NO_ROWS) -> Float64:
        seconds = np.empty(count)
        rows_seconds(self._weights, first, more, self._padded, seconds)
        return seconds * self.speed


class _Next:
    """Cost of the next step, in the form that `choose` takes."""

    def __init__(self, cost: StepCost, more: Int32, limit: int) -> None:
        self.cost, self.more, self.limit = cost, more, limit
        _, self.verify, _, self.context, self.draft_context = (cost.speed * cost._weights[:5]).tolist()

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        rows = np.asarray(rows)
        if len(rows) == 2 and rows[1] - rows[0] > 1:
            seconds = np.concatenate([self.cost.rows_cost(int(n), 1, self.more) for n in rows])
        else:
            seconds = self.cost.rows_cost(int(rows[0]), len(rows), self.more)
        seconds[1:][rows[1:] > self.limit] = math.inf
        return seconds


class Candidate(Switch):
    MIN_GAIN = 1.01
    MEMORY = 300
    FIRST_STEPS = 3
    WAIT = 8
    CHECKS = 4, 64
    MAX_GROWTH = 2
    COLD_INTERVAL = 4
    MAX_IDLE_STEPS = 4
    PROMPT_WINDOW = 16
    LARGE_BATCH = 256
    MIN_SCORE = 0.5

    def __init__(
        self,
        k: int,
        logger: logging.Logger,
        clock: Callable[[], float] = time.perf_counter,
        graph_sizes: Iterable[int] = (),
    ) -> None:
        super().__init__(logger)
        self.k, self.clock = k, clock
        self.cost = StepCost(self.MEMORY, graph_sizes)
        self.calibration = Calibration()
        self.explored = 0
        self._start: float | None = None
        self._rate = 0.0
        self._gain = 1.0
        self._turn = 0
        self._idle = self._skip = self._batch = 0
        self._plans = False
        self._reading = False
        self._prompts = deque([0], maxlen=self.PROMPT_WINDOW)
        self._largest = 1  # rows of a step that read no prompt
        self._seen = self._proved = 0  # such steps, and those that had drafts
        self._every = self.CHECKS[0]
        self._since_plain = self._since_drafts = 0
        self._check = False
        self._residual = 0.0
        self._slots, self._drafted, self._contexts = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0)
        self._live = np.zeros(0, bool)
        self._gained = np.zeros(0, np.int32)
        self._scores: npt.NDArray[np.float32] | None = None

    def forget(self, slot: int) -> None:
        self._slots[self._slots == slot] = -1

    def may_be_on(self, running: int) -> bool:
        return True

    def plans_drafts(self, running: int) -> bool:
        return self._plans

    def observe(self, slots: Int32, gained: npt.NDArray[np.integer], num_tokens: int) -> None:
        now = self.clock()
        seconds = now - self._start if self._start is not None else 0.0
        self._start = now
        self._gained = np.ascontiguousarray(gained, np.int32)
        self._reading = not self._gained.all()
        counts = np.zeros((2, Calibration.NUM_BINS))
        known, drafted, context, draft_context = observe_drafts(
            slots, self._gained, self._slots, self._drafted, self._contexts, counts, self._scores
        )
        self.calibration.observe(counts)
        decoding = int(np.count_nonzero(self._live & (self._slots >= 0)))
        run = min(drafted, max(0, num_tokens - decoding))
        if run < int(self._drafted.sum()):  # a request is gone, or an engine that plans ahead has left drafts out
            draft_context, drafted = draft_context * run / max(drafted, 1), run
        prompts = max(0, num_tokens - decoding - drafted)
        self._prompts.append(prompts)
        if seconds <= 0 or not known:
            return
        drafts, reads = drafted > 0, prompts > 0
        residual = self.cost.learn(num_tokens, drafts, reads, context, draft_context, seconds)
        if not reads:
            self._seen += 1
            self._proved += drafts
            self._largest = max(self._largest, num_tokens)
        self._judge(drafts, residual)

    def _judge(self, drafts: bool, residual: float) -> None:
        if drafts:
            self._residual += 0.25 * (min(max(residual, -0.3), 0.3) - self._residual)
        elif self._check:
            faster = self._residual - residual > 0.5 * math.log(self._gain)
            self._every = self.CHECKS[0] if faster else min(2 * self._every, self.CHECKS[1])
            self._check = False
        if self.cost.changed:
            self._every = self.CHECKS[0]
        self._since_plain = self._since_plain + 1 if drafts else 0
        self._since_drafts = 0 if drafts else self._since_drafts + 1

    def should_draft(self, running: int, planned: bool = True) -> bool:
        if running < self._batch:
            self._idle = self._skip = 0
        self._batch = running
        if self.cost.steps < self.FIRST_STEPS or self._seen < self.FIRST_STEPS and self.cost.steps < self.WAIT:
            return False
        if self._since_plain >= self._every:
            self._check = True
            self.explored += 1
            return False
        if self._skip:
            self._skip -= 1
            return False
        return True

    def choose(
        self,
        slots: Int32,
        contexts: npt.NDArray[Any],
        lengths: Int32,
        scores: Floats,
        uniform: bool = False,
        planned: bool = True,
    ) -> Int32:
        thousands = np.asarray(contexts)[: len(slots)] / 1000
        chosen = np.zeros(len(slots), np.int32)
        if lengths.any():
            live = self._gained > 0 if len(self._gained) == len(slots) else np.ones(len(slots), bool)
            chosen[live] = self._choose(thousands[live], lengths[live], scores[live], uniform)
            pays = bool(chosen.any())
            self._idle = 0 if pays else min(2 * self._idle + 1, self.MAX_IDLE_STEPS)
            self._skip = self._idle
            self._plans = pays or self._plans and self._idle == 1
            if not planned:
                chosen[:] = 0
        self._record(slots, thousands, chosen)
        self.min_score = 0.0
        if chosen.any():
            self._scores = np.array(scores, np.float32, order="C")
            if len(slots) >= self.LARGE_BATCH:
                self.min_score = self.MIN_SCORE * lowest_score(self._scores, chosen)
        return chosen

    def _choose(self, contexts: Float64, lengths: Int32, scores: Floats, uniform: bool) -> Int32:
        batch = len(contexts)
        if not lengths.any():
            return lengths
        worth = self.calibration.correct(scores)
        limit = self.MAX_GROWTH * max(self._largest, batch)
        plain = _Next(self.cost, NO_ROWS, limit)
        reads = any(self._prompts)
        likely = [n for n in self._prompts if n or not self._reading]
        with_prompts = _Next(self.cost, np.array(likely, np.int32), limit) if reads and likely else None
        self._turn += 1
        width = self.k if uniform else 0
        choice = choose(worth, lengths, contexts, plain, width, with_prompts, self._rate, self._turn)
        self._rate = choice.rate
        pays = choice.gain >= self.MIN_GAIN
        if pays:
            self._gain = choice.gain
        if pays and reads and self._proved < self.FIRST_STEPS and self.cost.steps < self.MEMORY:
            pays = self._since_drafts >= self.COLD_INTERVAL - 1
        self._set(pays)
        return choice.lengths if pays else np.zeros(batch, np.int32)

    def skip(self, slots: Int32, contexts: npt.NDArray[Any]) -> None:
        self._record(slots, np.asarray(contexts)[: len(slots)] / 1000, np.zeros(len(slots), np.int32))

    def _record(self, slots: Int32, contexts: Float64, drafted: Int32) -> None:
        self._slots, self._drafted, self._contexts, self._scores = slots.copy(), drafted.copy(), contexts, None
        self._live = self._gained > 0 if len(self._gained) == len(slots) else np.ones(len(slots), bool)
        self.steps += 1
        self.steps_on += bool(drafted.any())
