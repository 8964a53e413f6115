# SPDX-License-Identifier: Apache-2.0
"""When the second runner's drafter pauses: by what its steps take and yield, heard of once they are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from sam_core.cost import StepCost
from sam_core.engines.vllm.texts import Sampled
from sam_core.proof import PlainSteps, Proof

MEMORY = 4096
"""Steps in which the weight of a step's cost falls by a factor of e."""
PLAIN_STEPS = 6
"""Steps without drafts in a row, of which those count that were launched, run and followed without drafts."""
FIRST_PLAIN, PLAIN_INTERVAL = 16, 512
"""Steps before the first such row, or after one that showed nothing because requests came, and between two others."""


class _Step:
    """A step that was launched: its start on the device, rows and contexts, and what it verified once that is known.

    paused: nothing was drafted while it ran.
    continued: the next step had no new requests, so the device went on at once.
    """

    __slots__ = ("start", "rows", "requests", "context", "prompts", "paused", "continued", "sampled")

    def __init__(self, start: Any, input_batch: Any, paused: bool) -> None:
        self.start, self.paused, self.continued = start, paused, False
        self.rows, self.requests, self.prompts = input_batch.num_tokens, input_batch.num_reqs, input_batch.has_prefill
        self.context = float(input_batch.seq_lens_cpu_upper_bound[: self.requests].sum()) / 1000
        self.sampled: Sampled | None = None


class Pauses:
    """Learns what steps cost, and lets drafting pause when steps with drafts yield less than plain ones would.

    A step's time is that from its start on the device to the next one's, as two events show it once both have happened;
    nobody waits for them. It counts if the step read no prompt and the next one had no new requests.

    pause: whether nothing is drafted now.
    cost: of steps, in seconds.
    """

    def __init__(self, new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)) -> None:
        self.pause = False
        self.cost = StepCost(MEMORY)
        self._new_event = new_event
        self._events: list[Any] = []  # to use again
        self._plain, self._proof = PlainSteps(), Proof()
        self._steps: deque[_Step] = deque()
        self._unread: deque[_Step] = deque()
        self._number, self._next_plain = 0, FIRST_PLAIN
        self._is_real = self._saw_plain = False

    def begin(self, joined: bool, launches: bool = True) -> None:
        """A step begins that is not one of the engine's trials.

        Args:
            joined: it has new requests.
            launches: it runs the model.
        """
        self._is_real = launches
        if self._steps:
            self._steps[-1].continued = not joined
        self._number += 1
        self._learn()
        if self._number >= self._next_plain + PLAIN_STEPS:
            self._next_plain = self._number + (PLAIN_INTERVAL if self._saw_plain else FIRST_PLAIN)
            self._saw_plain = False
        self.pause = self._number >= self._next_plain or self._proof.pauses(self._number)

    def launched(self, input_batch: Any) -> None:
        """The model of a step is about to be launched."""
        if not self._is_real:
            return
        self._is_real = False
        start = self._events.pop() if self._events else self._new_event()
        start.record()
        step = _Step(start, input_batch, self.pause)
        self._steps.append(step)
        self._unread.append(step)

    def ended(self, sampled: Sampled) -> None:
        """What a step sampled is on the host; steps end in the order in which they were launched."""
        if self._unread:
            self._unread.popleft().sampled = sampled

    def _learn(self) -> None:
        """Learn from the steps that are over."""
        while len(self._steps) > 1 and self._steps[0].sampled and self._steps[1].start.query():
            step = self._steps.popleft()
            seconds = step.start.elapsed_time(self._steps[0].start) / 1000
            self._events.append(step.start)
            if step.continued and not step.prompts and seconds > 0:
                self._judge(step, self._steps[0], seconds)

    def _judge(self, step: _Step, following: _Step, seconds: float) -> None:
        assert step.sampled is not None
        verified, gained = sum(step.sampled.verified), sum(map(len, step.sampled.tokens))
        drafts = 0.0 if step.paused else max(verified, 1e-3) * step.context / step.requests
        self.cost.learn(step.rows, step.context, drafts, seconds)
        if step.paused:
            if following.paused and not verified:
                self._plain.add(self.cost, step.rows, step.context, seconds)
                self._saw_plain = True
        elif plain := self._plain.seconds(self.cost, step.requests, step.context, follow=True):
            self._proof.add(gained / step.requests - seconds / plain, self._number)

    def curve(self, sizes: list[int]) -> list[tuple[int, float]] | None:
        """What steps with drafts of the requests that run cost, as vLLM's verification takes it: rows and milliseconds.

        None: that is unknown.

        Args:
            sizes: rows, increasing.
        """
        cost = self.cost
        if not cost.fitted or not self._steps:
            return None
        requests, context = self._steps[-1].requests, self._steps[-1].context
        seconds = cost.rows_cost(sizes) + cost.context * context
        drafts = [max(size - requests, 0) for size in sizes]
        return [
            (size, 1000 * (float(f) + cost.draft_context * n * context / requests + cost.verify))
            for size, f, n in zip(sizes, seconds, drafts, strict=True)
        ]
