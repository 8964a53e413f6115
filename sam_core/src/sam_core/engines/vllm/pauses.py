# SPDX-License-Identifier: Apache-2.0
"""Pauses the second runner's drafter, according to the time and tokens of steps that have ended."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from sam_core.cost import StepCost
from sam_core.engines.vllm.passes import Passes
from sam_core.engines.vllm.texts import Sampled

MEMORY = 4096
"""Steps after which the weight of a step's cost has fallen by a factor of e."""
PLAIN_STEPS = 6
"""Length of a run of steps without drafts, in which plain steps are measured."""
LAG = 3
"""Steps that the engine has already planned or launched when a pause begins or ends."""
PLAIN_INTERVALS = 16, 512
"""Minimum and maximum steps between two runs of plain steps."""
PLAIN_SHARE = 0.02
"""Maximum share of tokens that these runs may cost where drafts pay, subject to the minimum interval."""
WINDOW = 5
"""Number of latest plain steps with a similar number of requests whose median is used."""
GAIN_MEMORY = 16
"""Steps with drafts over which the gain is averaged to choose the interval."""
MAX_LOSS, MAX_GAIN = 1.0, 2.0
"""Maximum loss by drafts, in plain steps, before drafting pauses; and the most earlier gain that may be lost first."""
MAX_STEP = 0.5
"""Maximum gain or loss of one step, in plain steps: a device may be slow for a moment."""
PAUSES = 16, 256
"""Steps of the first pause and of the longest."""


class _Step:
    """A launched step: its start on the device, its rows and contexts, and what it sampled once that is known.

    paused: nothing was drafted while it ran.
    plain: the engine had planned no drafts, so it equals a step without speculation.
    counts: whether it counts as a step with drafts: drafting is not paused, and the first drafts of its batch are
        verified by now.
    continued: the next step had no new requests, so the device continued at once.
    passes: passes of the model drafter in it.
    """

    __slots__ = (
        *("start", "rows", "requests", "context", "prompts", "paused", "plain", "counts", "continued", "sampled"),
        "passes",
    )

    def __init__(self, start: Any, input_batch: Any, paused: bool) -> None:
        self.start, self.paused, self.counts, self.continued = start, paused, False, False
        self.rows, self.requests, self.prompts = input_batch.num_tokens, input_batch.num_reqs, input_batch.has_prefill
        self.plain = int(input_batch.num_scheduled_tokens.sum()) == self.requests
        self.context = float(input_batch.seq_lens_cpu_upper_bound[: self.requests].sum()) / 1000
        self.sampled: Sampled | None = None
        self.passes = 0


class PlainTimes:
    """Seconds of plain steps, for each power of two of running requests.

    Steps with drafts are compared with them. The times are used as measured: predicted costs for other rows and
    contexts are too uncertain on an engine that also waits for its host.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def add(self, requests: int, seconds: float) -> None:
        """Add a plain step that has ended."""
        self._seconds.setdefault(requests.bit_length(), deque(maxlen=WINDOW)).append(seconds)

    def knows(self, requests: int) -> bool:
        """Whether steps with about this number of requests were measured."""
        return requests.bit_length() in self._seconds

    def seconds(self, requests: int) -> float:
        """The median for this number of requests, or for the nearest known one; 0 if none is known."""
        size = requests.bit_length()
        nearest = min(self._seconds, key=lambda known: abs(known - size), default=None)
        return statistics.median(self._seconds[nearest]) if nearest is not None else 0.0


class Account:
    """Gain or loss from drafts while about the same number of requests run, and the pauses that a loss causes.

    The unit is the time of a plain step. Each pause is twice as long as the previous one, until the gain reaches
    MAX_GAIN.
    """

    def __init__(self) -> None:
        self._gained, self._pause, self._until = 0.0, PAUSES[0], 0

    def add(self, gain: float, step: int) -> None:
        """Add the gain of a step with drafts, in plain steps; negative for a loss."""
        self._gained = min(self._gained + min(max(gain, -MAX_STEP), MAX_STEP), MAX_GAIN)
        if self._gained == MAX_GAIN:
            self._pause = PAUSES[0]
        elif self._gained <= -MAX_LOSS:
            self._gained, self._until = 0.0, step + self._pause
            self._pause = min(2 * self._pause, PAUSES[1])

    def pauses(self, step: int) -> bool:
        """Whether the step is to have no drafts."""
        return step < self._until


class Pauses:
    """Pauses drafting when steps with drafts yield less than plain ones would, and learns the cost of steps.

    A step's time runs from its start on the device to the start of the next step. It is read from two events once both
    have occurred, without waiting. It counts if the step read no prompt and the next one had no new requests. Gains of
    drafts are counted per power of two of requests, since drafts may pay for few requests and not for many.

    pause: whether nothing is drafted now; the scheduler then plans no drafts either, some steps later.
    cost: the cost of steps, in seconds.
    passes: learns the time of the model drafter's passes.
    trials: increasing rows and seconds of the engine's profiling steps at its start, in which nothing is sampled.
    """

    def __init__(
        self,
        new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True),
        graph_sizes: Iterable[int] = (),
        passes: Passes | None = None,
    ) -> None:
        self.pause = False
        self.passes = passes
        self.cost = StepCost(MEMORY, graph_sizes)
        self.trials: tuple[Sequence[int], Sequence[float]] = [1], [0.0]
        self._new_event = new_event
        self._events: list[Any] = []  # to be reused
        self._plain = PlainTimes()
        self._accounts: dict[int, Account] = {}
        self._gained = self._ratio = 1.0  # tokens per request and step with drafts; their rate relative to plain steps
        self._steps: deque[_Step] = deque()
        self._unread: deque[_Step] = deque()
        self._number, self._next_plain, self._last_plain = 0, PLAIN_INTERVALS[0], 0
        self._is_real = False
        self._age = 0  # steps of this batch without prompts

    def begin(self, requests: int, joined: int, launches: bool = True) -> None:
        """Begin a step that is not one of the engine's profiling steps.

        Args:
            requests: number of running requests.
            joined: number of new ones among them.
            launches: whether the step runs the model.
        """
        self._is_real = launches
        if self._steps:
            self._steps[-1].continued = not joined
        self._number += 1
        self._learn()
        if joined and 2 * joined >= requests:  # a new batch with other texts
            self._accounts.clear()
            self._age = 0
        number, (least, most) = self._number, PLAIN_INTERVALS
        if number >= self._next_plain + PLAIN_STEPS:
            cost = (PLAIN_STEPS + LAG) * max(self._ratio - 1, 0) / self._gained  # of a run of plain steps, in steps
            self._next_plain = number + round(min(max(cost / PLAIN_SHARE, least), most))
        elif not self._plain.knows(requests) and number >= self._last_plain + least:
            self._next_plain = min(self._next_plain, number)
        self.pause = number >= self._next_plain or self._account(requests).pauses(number)
        if self.pause:
            self._last_plain = number

    def _account(self, requests: int) -> Account:
        return self._accounts.setdefault(requests.bit_length(), Account())

    def launched(self, input_batch: Any) -> None:
        """Record that the model of a step is about to be launched."""
        if not self._is_real:
            return
        self._is_real = False
        start = self._events.pop() if self._events else self._new_event()
        start.record()
        step = _Step(start, input_batch, self.pause)
        self._age += not step.prompts
        step.counts = self._age > LAG and not step.paused
        self._steps.append(step)
        self._unread.append(step)

    def drafted(self, passes: int) -> None:
        """Record the number of the model drafter's passes in the latest launched step."""
        if self._steps:
            self._steps[-1].passes = passes

    def ended(self, sampled: Sampled) -> None:
        """Record what a step sampled; steps end in the order in which they were launched."""
        if self._unread:
            self._unread.popleft().sampled = sampled

    def _learn(self) -> None:
        """Learn from the steps that have ended."""
        while len(self._steps) > 1 and self._steps[0].sampled and self._steps[1].start.query():
            step = self._steps.popleft()
            seconds = step.start.elapsed_time(self._steps[0].start) / 1000
            self._events.append(step.start)
            if step.continued and not step.prompts and seconds > 0:
                self._judge(step, self._steps[0], seconds)

    def _judge(self, step: _Step, following: _Step, seconds: float) -> None:
        assert step.sampled is not None
        verified, gained = sum(step.sampled.verified), sum(map(len, step.sampled.tokens))
        drafts = verified > 0, False, step.context, verified * step.context / step.requests
        residual = self.cost.learn(step.rows, *drafts, seconds)
        if self.passes and verified:
            self.passes.learn(step.passes, residual)
        if step.plain:
            if following.plain:  # otherwise drafts were made at its end
                self._plain.add(step.requests, seconds)
        elif step.counts and (plain := self._plain.seconds(step.requests)):
            each = gained / step.requests
            self._account(step.requests).add(each - seconds / plain, self._number)
            self._gained += (each - self._gained) / GAIN_MEMORY
            self._ratio += (each * plain / seconds - self._ratio) / GAIN_MEMORY

    def curve(self, sizes: list[int]) -> list[tuple[int, float]] | None:
        """Milliseconds of steps with drafts for the running requests, by rows, in the form that vLLM's verification
        uses.

        Beyond the rows seen so far, they grow as in the profiling steps. None if the cost is unknown.

        Args:
            sizes: rows, increasing.
        """
        cost = self.cost
        if not cost.fitted or not self._steps:
            return None
        requests, context = self._steps[-1].requests, self._steps[-1].context
        seen = np.minimum(sizes, cost.max_rows)
        more = np.interp(sizes, *self.trials) - np.interp(seen, *self.trials)
        seconds = cost.rows_cost(seen) + more + cost.context * context
        drafts = np.maximum(seen - requests, 0)
        return [
            (size, 1000 * (float(f) + cost.draft_context * n * context / requests + cost.verify))
            for size, f, n in zip(sizes, seconds, drafts, strict=True)
        ]
