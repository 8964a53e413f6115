# SPDX-License-Identifier: Apache-2.0
"""When to draft, and how much."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core._sam import lowest_score, observe_drafts
from sam_core.budget import Calibration, choose
from sam_core.cost import FIRST_STEPS, MAX_RESIDUAL, StepCost

Float64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating]
Int32 = npt.NDArray[np.int32]


class Switch:
    """Decides when to draft, and how many tokens of each request.

    After each step the drafter calls `observe` (not needed if `may_be_on` is false), then `should_draft`, then
    `choose`, or `skip` if it did not look for drafts. Requests are identified by their slots, small numbers that are
    reused.

    steps, steps_on: steps so far, and those with drafts. transitions: number of changes of `on`.
    min_score: the next drafts may end before their score falls below this; tokens below it would not be chosen.
    """

    min_score = 0.0

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.on: bool | None = None
        self.steps = self.steps_on = self.transitions = 0

    def may_be_on(self, running: int) -> bool:
        """Whether drafts may follow a step of `running` requests; the same in all processes with these options."""
        raise NotImplementedError

    def should_draft(self, running: int, planned: bool = True) -> bool:
        """Whether to look for drafts after a step of `running` requests; `planned`: as for `choose`."""
        raise NotImplementedError

    def plans_drafts(self, running: int) -> bool:
        """Whether to plan steps with drafts; engines that plan ahead ask it after `choose` or `skip`."""
        return self.may_be_on(running)

    def observe(self, slots: Int32, gained: npt.NDArray[np.integer], num_tokens: int) -> None:
        """A step has ended.

        Args:
            slots: int32 [B], the slots of its requests.
            gained: [B], tokens that each request got; 0 while its prompt is being read.
            num_tokens: all computed tokens: prompt tokens, one per request that decoded, and draft tokens.
        """

    def choose(
        self,
        slots: Int32,
        contexts: npt.NDArray[Any],
        lengths: Int32,
        scores: Floats,
        uniform: bool = False,
        planned: bool = True,
    ) -> Int32:
        """How many tokens of each draft to verify in the next step: int32 [B].

        Args:
            slots: int32 [B], the slots of the requests.
            contexts: [B], tokens of each request.
            lengths: int32 [B], tokens of each draft.
            scores: [B, k], see `Pool.step`; 0 after the end of a draft.
            uniform: whether all requests get k tokens or none does, as captured graphs need.
            planned: if False, the next step has no drafts, and this only determines what `plans_drafts` returns.
        """
        return lengths

    def skip(self, slots: Int32, contexts: npt.NDArray[Any]) -> None:
        """The next step has no drafts."""

    def forget(self, slot: int) -> None:
        """A slot was closed: forget its request, since the next request in this slot is another one."""

    def state(self) -> dict[str, Any] | None:
        """What was learned, as JSON can hold it; None if this switch does not learn."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Begin with what another process learned; raises ValueError if `state` is not a record of a switch."""

    def count(self, on: bool) -> bool:
        """Count a step, with drafts or without; returns whether the previous step was different."""
        self.steps += 1
        self.steps_on += on
        return self._set(on)

    def _set(self, on: bool) -> bool:
        """Set `on`; returns whether it changed."""
        changed = self.on is not None and on != self.on
        self.on = on
        self.transitions += changed
        return changed


class BatchSwitch(Switch):
    """Drafts while at most `threshold` requests run in a step.

    For larger batches verification costs more than accepted tokens gain (article, section 3.1.1). The switch decides
    when drafts are proposed, so it affects the next step, and nothing that is scheduled has to be withdrawn.
    """

    def __init__(self, threshold: int, logger: logging.Logger) -> None:
        super().__init__(logger)
        self.threshold = threshold

    def may_be_on(self, running: int) -> bool:
        return running <= self.threshold

    def should_draft(self, running: int, planned: bool = True) -> bool:
        on = self.may_be_on(running)
        if self.count(on):
            self.logger.info(
                "drafting %s: %d requests running, threshold %d", "on" if on else "off", running, self.threshold
            )
        return on and planned


class AutoSwitch(Switch):
    """Chooses the number of draft tokens of each request in each step, from the cost of steps and the value of drafts.

    It learns both at run time: the time between two calls of `observe` is that of a whole engine step with the tokens
    chosen before. In steps that read prompts, the value of drafts is the time that they save in steps without prompts.
    The next step is expected to read the same number of prompt tokens as the latest steps.

    Learned costs may be wrong, and steps that are all alike do not show it. So the switch explores: while drafts seem
    to pay, it runs a step without drafts now and then (a check); while they do not, a step with drafts (a trial), the
    most probable ones, as many as requests. The interval grows each time, until such a step is faster than predicted.

    Decisions depend on the clock, so two processes decide differently: use the switch only on the rank whose drafts are
    used. It does not work with pipeline parallelism, where the steps of micro-batches overlap.

    Args:
        k: maximum draft tokens of a request.
        clock: seconds, monotonic.
        graph_sizes: see StepCost.
    """

    MEMORY = 300
    """Steps after which a step's weight has fallen to 1/e; bounds how long costs of a past load count."""
    FEW_STEPS = 64
    """Minimum steps between two trials, where the maximum is MEMORY, and maximum steps between two checks, where the
    minimum is 1; bounds what both cost. Also the number of first steps in which few of those that read prompts have
    drafts, until enough steps with drafts and enough without prompts have been timed."""
    DOUBT = 2
    """Factor by which costs may be wrong where they were not measured. Unless `uniform`, a step has at most this
    multiple of the rows of the largest earlier one. As long as too few steps without prompts were timed, one is assumed
    to take a DOUBT**2-th of a step with prompts."""
    MAX_IDLE_STEPS = 3
    """Maximum consecutive steps in which drafts are not examined while they do not pay, or while few steps are to have
    some (FEW_STEPS); bounds how late drafting begins again."""
    PROMPT_WINDOW = 16
    """Number of latest steps from which the prompt tokens of the next step are predicted."""
    MIN_SCORE = 0.5
    """Drafts end below this share of the lowest chosen score; bounds drafting time."""

    def __init__(
        self,
        k: int,
        logger: logging.Logger,
        clock: Callable[[], float] = time.perf_counter,
        graph_sizes: Iterable[int] = (),
    ) -> None:
        super().__init__(logger)
        self.k = k
        self.clock = clock
        self.cost = StepCost(self.MEMORY, graph_sizes)
        self.calibration = Calibration()
        self._start: float | None = None
        self._rate, self._gain = 0.0, 1.0  # rate of the latest choice, gain of the latest one that paid
        self._intervals = [1, self.FEW_STEPS]  # of checks, of trials
        self._explores: bool | None = None  # False: the next step is a check, True: it is a trial
        self._drafts, self._run = False, 0  # whether the latest step had drafts; number of such steps in a row
        self._idle = self._skip = 0  # steps of the latest pause in examining drafts, those that remain
        self._batch = 0  # running requests
        self._plans = False
        self._prompt_tokens = deque([0], maxlen=self.PROMPT_WINDOW)
        self._reading = False  # a prompt is still being read
        self._decodes = np.zeros(0, np.bool_)  # whether each request of the last step has read its prompt
        # the next step: its slots, -1 for a closed one; whether each decodes; draft tokens; thousands of context
        # tokens; scores, if it has drafts
        self._slots, self._drafted, self._contexts = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0)
        self._decoding = np.zeros(0, np.bool_)
        self._scores: npt.NDArray[np.float32] | None = None

    def forget(self, slot: int) -> None:
        self._slots[self._slots == slot] = -1

    def observe(self, slots: Int32, gained: npt.NDArray[np.integer], num_tokens: int) -> None:
        now = self.clock()
        seconds = now - self._start if self._start is not None else 0.0
        self._start = now
        num_gained = np.ascontiguousarray(gained, np.int32)
        counts = np.zeros((2, Calibration.NUM_BINS))
        known, drafted, context, draft_context = observe_drafts(
            slots, num_gained, self._slots, self._drafted, self._contexts, counts, self._scores
        )
        self.calibration.observe(counts)
        decoding = int(np.count_nonzero(self._decoding & (self._slots >= 0)))
        run = min(drafted, max(0, num_tokens - decoding))
        if run < int(self._drafted.sum()):  # a request is gone, or an engine that plans ahead has left drafts out
            draft_context, drafted = draft_context * run / max(drafted, 1), run
        prompt_tokens = max(0, num_tokens - decoding - drafted)
        self._prompt_tokens.append(prompt_tokens)
        self._decodes = num_gained > 0
        self._reading = not self._decodes.all()
        if seconds > 0 and known:
            residual = self.cost.learn(num_tokens, drafted > 0, prompt_tokens > 0, context, draft_context, seconds)
            self._judge(drafted > 0, residual)

    def _judge(self, drafts: bool, residual: float) -> None:
        """Choose the interval of checks or trials, by whether this one was faster than predicted."""
        if self._explores == drafts:
            shortest, longest = (self.FEW_STEPS, self.MEMORY) if drafts else (1, self.FEW_STEPS)
            faster = residual < (-MAX_RESIDUAL / 2 if drafts else -0.5 * math.log(self._gain))
            self._intervals[drafts] = shortest if faster else min(2 * self._intervals[drafts], longest)
            self._explores = None
        self._run = self._run + 1 if drafts == self._drafts else 1
        self._drafts = drafts

    def _likely(self) -> list[int]:
        """Numbers of prompt tokens that the next step may read, each with the same probability."""
        return [n for n in self._prompt_tokens if n or not self._reading]

    def may_be_on(self, running: int) -> bool:
        """Always: the decision depends on this process's clock."""
        return True

    def plans_drafts(self, running: int) -> bool:
        return self._plans

    def should_draft(self, running: int, planned: bool = True) -> bool:
        if running < self._batch:
            self._idle = self._skip = 0
        self._batch = running
        seen = min(self.cost.with_drafts, self.cost.without_prompts)
        cold = seen < FIRST_STEPS and self.cost.steps < self.FEW_STEPS and any(self._likely())
        since_drafts = 0 if self._drafts else self._run
        if not self.cost.fitted or cold and since_drafts < self.MAX_IDLE_STEPS:
            return False
        if self._drafts and self._run >= self._intervals[False]:
            self._explores = False
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
        live = self._decodes if len(self._decodes) == len(slots) else slots >= 0
        if lengths[live].any():
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
            self.min_score = self.MIN_SCORE * lowest_score(self._scores, chosen)
        return chosen

    def skip(self, slots: Int32, contexts: npt.NDArray[Any]) -> None:
        self._record(slots, np.asarray(contexts)[: len(slots)] / 1000, np.zeros(len(slots), np.int32))

    def _record(self, slots: Int32, contexts: Float64, drafted: Int32) -> None:
        self._slots, self._drafted, self._contexts, self._scores = slots.copy(), drafted.copy(), contexts, None
        self._decoding = self._decodes if len(self._decodes) == len(slots) else slots >= 0
        self.steps += 1
        self.steps_on += bool(drafted.any())

    def _choose(self, contexts: Float64, lengths: Int32, scores: Floats, uniform: bool) -> Int32:
        """Draft lengths int32 [B], those that pay or those of a trial; arguments as for `choose`."""
        batch = len(contexts)
        worth, likely, width = self.calibration.correct(scores), self._likely(), self.k if uniform else 0
        count = batch * width or int(lengths.sum())
        limit = math.inf if uniform else self.DOUBT * max(self.cost.max_rows, batch)
        size = batch, count, contexts.sum(), limit
        with_prompts = self.cost.by_drafts(*size, likely) if any(likely) else None
        if with_prompts is None or self.cost.without_prompts >= FIRST_STEPS:
            cost = self.cost.by_drafts(*size)
        else:
            cost = with_prompts / self.DOUBT**2
        drafts, context = (worth, lengths, contexts), self.cost.draft_context
        choice = choose(*drafts, cost, context, with_prompts, width, self._rate, self.steps)
        self._rate, self._explores = choice.rate, None
        pays = bool(choice.lengths.any())
        if pays:
            self._gain = choice.gain
        elif not self._drafts and self._run >= self._intervals[True] * (1 + width):
            free = np.ones(count + 1)
            if not uniform:
                free[batch + 1 :] = math.inf
            choice = choose(*drafts, free, uniform=width, turn=self.steps)
            self._explores = True
        if self._set(pays):
            self.logger.debug("drafting %s: %d requests running", "on" if pays else "off", batch)
        return choice.lengths

    def state(self) -> dict[str, Any]:
        return {"cost": self.cost.state(), "calibration": self.calibration.state()}

    def restore(self, state: dict[str, Any]) -> None:
        try:
            if "samples" in state["cost"]:
                self.logger.info("what was learned was saved by version 0.2.0 of sam_core: learning it again")
                return
            self.cost.restore(state["cost"])
            self.calibration.restore(state["calibration"])
        except (KeyError, TypeError, OverflowError):
            raise ValueError("this is not a record of a switch") from None
