# SPDX-License-Identifier: Apache-2.0
"""When to draft, and how much."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core._sam import lowest_score, observe_drafts
from sam_core.budget import Calibration, choose
from sam_core.cost import Expected, PromptCost, StepCost
from sam_core.proof import PlainSteps, Proof

Int32 = npt.NDArray[np.int32]


class Switch:
    """Decides when to draft, and how many tokens of each request.

    After each step the drafter calls `observe` (not needed if `may_be_on` is false), then `should_draft`, then
    `choose`, or `skip` if it has looked for no drafts, and `learn` when nobody waits for it. Requests are known by
    their slots, small numbers that are used again.

    steps, steps_on: steps so far, and those with drafts. transitions: times that `on` changed.
    min_score: the next drafts may end before their score falls below this: less would not be chosen.
    """

    min_score = 0.0

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.on: bool | None = None
        self.steps = self.steps_on = self.transitions = 0

    def may_be_on(self, running: int) -> bool:
        """Whether there may be drafts after a step of `running` requests; every process with these options agrees."""
        raise NotImplementedError

    def should_draft(self, running: int, room: bool = True) -> bool:
        """Whether to look for drafts after a step of `running` requests; `room`: as for `choose`."""
        raise NotImplementedError

    def wants_room(self, running: int) -> bool:
        """Whether steps are to have room for drafts; asked by engines that plan them ahead, after `choose` or
        `skip`."""
        return self.may_be_on(running)

    def observe(self, slots: Int32, gained: npt.NDArray[np.integer], num_tokens: int) -> None:
        """A step has ended.

        Args:
            slots: int32 [B], those of its B requests.
            gained: [B], tokens that each gained in it; 0 while its prompt is being read.
            num_tokens: all that the step computed: of prompts, the last token of each request that decoded, drafts.
        """

    def learn(self) -> None:
        """Learn from the step that ended last; without this call the next `observe` does."""

    def choose(
        self,
        slots: Int32,
        contexts: npt.NDArray[Any],
        lengths: Int32,
        scores: npt.NDArray[np.floating],
        uniform: bool = False,
        room: bool = True,
    ) -> Int32:
        """How many tokens of each draft to verify in the next step: int32 [B].

        Args:
            slots: int32 [B], those of the B requests.
            contexts: [B], tokens that each holds.
            lengths: int32 [B], tokens of each draft.
            scores: [B, k], see `Pool.step`; 0 behind a draft.
            uniform: all requests get k tokens or none does, for engines with captured graphs.
            room: False: the next step was planned without drafts, so this only decides what `wants_room` says.
        """
        return lengths

    def skip(self, slots: Int32, contexts: npt.NDArray[Any]) -> None:
        """The next step has no drafts."""

    def forget(self, slot: int) -> None:
        """The slot was closed: what is known of its request does not hold for the next one."""

    def state(self) -> dict[str, Any] | None:
        """What was learned, as JSON can hold it; None if this switch does not learn."""
        return None

    def take_over(self, state: dict[str, Any]) -> None:
        """Begin with what another process learned; raises ValueError if `state` is no record of a switch."""

    def count(self, on: bool) -> bool:
        """Count a step, with drafts or without; whether that is different from the one before."""
        self.steps += 1
        self.steps_on += on
        return self._set(on)

    def _set(self, on: bool) -> bool:
        """Set `on`; whether it was different before."""
        changed = self.on is not None and on != self.on
        self.on = on
        self.transitions += changed
        return changed


class BatchSwitch(Switch):
    """On while at most `threshold` requests run in a step.

    At larger batches verifying drafts costs more than accepted tokens gain (article, section 3.1.1). It decides when
    drafts are proposed, so it acts on the next step, and nothing that is scheduled has to be taken back.
    """

    def __init__(self, threshold: int, logger: logging.Logger) -> None:
        super().__init__(logger)
        self.threshold = threshold

    def may_be_on(self, running: int) -> bool:
        return running <= self.threshold

    def should_draft(self, running: int, room: bool = True) -> bool:
        on = self.may_be_on(running)
        if self.count(on):
            self.logger.info(
                "drafting %s: %d requests running, threshold %d", "on" if on else "off", running, self.threshold
            )
        return on and room


@dataclass
class _Ended:
    """A step that has ended, of `batch` requests.

    read: whether it read prompts. num_tokens: all that it computed. drafted, accepted: draft tokens, and how many were
    expected to be accepted. context, draft_context: thousands of tokens (see `StepCost`). seconds: how long it took.
    counts: see `Calibration.observe`. probe: see `AutoSwitch._probe`.
    """

    batch: int
    read: bool
    num_tokens: int
    drafted: int
    accepted: float
    context: float
    draft_context: float
    seconds: float
    counts: npt.NDArray[np.float64]
    probe: tuple[int, float, float, float] | None


class AutoSwitch(Switch):
    """Gives each request of a step its own number of draft tokens, by what steps cost and what drafts are worth.

    Learns both while it runs: the time between two calls of `observe` is that of a whole engine step with the tokens
    chosen before. Steps that read prompts have costs of their own, since engines run them in other ways; there drafts
    are worth what they save in steps without prompts, so they begin when those are known. The next step is expected to
    read what the latest steps have read. What is learned may be wrong, so drafting pauses where its steps are seen to
    lose, see `Proof`.

    A wall clock decides, so two processes do not decide alike: it belongs to the one rank whose drafts are used. It
    does not work under pipeline parallelism, where the steps of micro-batches overlap.

    Args:
        k: maximum draft tokens of a request.
        clock: seconds, monotonic.
    """

    MIN_GAIN_ON = 1.005
    """Least predicted gain with which drafting goes on."""
    MIN_GAIN_OFF = 1.02
    """Least predicted gain with which drafting begins."""
    DECAY_STEPS = 300.0
    """Steps after which the weight of a step's time has fallen to 1/e."""
    MAX_GROWTH = 2.0
    """The largest size to explore, as a multiple of the largest known size."""
    EXPLORATION_SHARE = 0.005
    """Share of the time that exploration may lose."""
    INITIAL_CREDIT = 2.0
    """Plain steps whose time exploration may lose at the start."""
    MAX_CREDIT = 6.0
    """Most plain steps whose time exploration may save up."""
    TRIAL_STEPS = 8
    """Steps that costs of another process are compared with before they are kept or dropped."""
    MAX_TRIAL_RATIO = 1.5
    """They are dropped if the median step took this many times longer or shorter."""
    MAX_IDLE_STEPS = 4
    """Consecutive steps without a look at drafts, while they are not worth it."""
    MAX_WAIT = 250
    """Steps after which drafts begin even if all have read prompts, so that what a token is worth is a guess."""
    LARGE_BATCH = 256
    """Requests for which the time to choose counts more than what is learned, as MIN_SCORE and LOOK_INTERVAL do."""
    MIN_SCORE = 0.5
    """Share of the lowest chosen score below which the next drafts of a large batch end: what a token costs does not
    double from step to step."""
    LOOK_INTERVAL = 4
    """Steps of a large batch from one in which nothing was explored to the next in which something may be."""
    MAX_ORDINARY = 1.1
    """A step that took this many times longer or shorter than expected is learned from before the next drafts are
    chosen."""
    MAX_SLOWDOWN = 8.0
    """A step that took this many times longer than expected spans a pause of the engine: its time is not learned."""
    PAUSE_INTERVAL = 64
    """Steps after a pause in which a long step is no other pause, but a slower machine."""
    PROMPT_WINDOW = 16
    """Latest steps from which the prompt tokens of the next step are predicted."""

    def __init__(
        self,
        k: int,
        logger: logging.Logger,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(logger)
        self.k = k
        self.clock = clock
        self.cost = StepCost(self.DECAY_STEPS)
        self.prompt_cost = PromptCost(self.DECAY_STEPS)
        self.calibration = Calibration()
        self._proof = Proof()
        self._plain, self._plain_reading = PlainSteps(), PlainSteps()
        self._accepted = 0.0  # tokens of the chosen drafts that are expected to be accepted
        self._rate = 0.0  # of the latest choice
        self.explored = 0
        self._next_look = 0  # step from which on something may be explored
        self._trial: list[float] | None = None
        self._credit = 0.0  # seconds that exploration may lose; less than 0 if it lost more
        # of the explored step: its draft tokens and their thousands of context tokens beyond the chosen ones, what the
        # tokens that these gain are worth in seconds, and the credit that is reserved
        self._probe: tuple[int, float, float, float] | None = None
        self._ended: _Ended | None = None
        self._idle = self._skip = 0
        self._wants_room = False
        self._batch = 0
        self._start: float | None = None
        self._longest = 0.0  # step that was learned
        self._last_pause = -self.PAUSE_INTERVAL  # step
        self._prompt_tokens = deque([0], maxlen=self.PROMPT_WINDOW)
        self._reading = False  # a prompt is still being read
        self._read = False  # the latest step read prompts
        self._reads_after = [False, True]  # whether the step after one that read none did, and after one that read some
        self._step = 0
        self._drafting = False
        # the next step: its slots, -1 for a closed one; draft tokens; thousands of context tokens; scores, if it has
        # drafts
        self._slots, self._drafted, self._contexts = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0)
        self._scores: npt.NDArray[np.float32] | None = None

    def forget(self, slot: int) -> None:
        self._slots[self._slots == slot] = -1

    def observe(self, slots: Int32, gained: npt.NDArray[np.integer], num_tokens: int) -> None:
        self.learn()
        now = self.clock()
        seconds = now - self._start if self._start is not None else 0.0
        self._start = now
        num_gained = np.ascontiguousarray(gained, np.int32)
        self._reading = not num_gained.all()
        counts = np.zeros((2, Calibration.NUM_BINS))
        known, total, context, draft_context = observe_drafts(
            slots, num_gained, self._slots, self._drafted, self._contexts, counts, self._scores
        )
        prompt_tokens = max(0, num_tokens - len(slots) - total)
        self._prompt_tokens.append(prompt_tokens)
        if seconds <= 0 or not known:
            self._return_credit()
            return
        read = prompt_tokens > 0 or known < len(slots)
        self._reads_after[self._read], self._read = read, read
        fields = total, self._accepted, context, draft_context, seconds, counts, self._probe
        step = _Ended(len(slots), read, num_tokens, *fields)
        if self._spans_a_pause(step):
            self.calibration.observe(counts)
            self._return_credit()
            return
        self._ended, self._probe, self._longest = step, None, max(seconds, self._longest)
        if not self._is_ordinary(step):
            self.learn()

    def _spans_a_pause(self, step: _Ended) -> bool:
        cost = self._cost_of(step)
        measured = step.num_tokens, step.context, step.draft_context
        expected = cost.seconds(*measured) if cost.fitted else self._longest
        is_long = 0 < expected * self.MAX_SLOWDOWN < step.seconds
        if not is_long or self._step - self._last_pause < self.PAUSE_INTERVAL:
            return False
        self._last_pause = self._step
        return True

    def _return_credit(self) -> None:
        """Nothing is known of what the explored step lost."""
        if self._probe:
            self._credit += self._probe[-1]
            self._probe = None

    def _is_ordinary(self, step: _Ended) -> bool:
        """Whether a step took about what is expected, so that the next choice may do without it."""
        cost = self._cost_of(step)
        if step.probe or self._trial is not None or not cost.fitted or cost.unsettled(step.num_tokens):
            return False
        ratio = step.seconds / cost.seconds(step.num_tokens, step.context, step.draft_context)
        return 1 / self.MAX_ORDINARY < ratio < self.MAX_ORDINARY

    def learn(self) -> None:
        step, self._ended = self._ended, None
        if step is None:
            return
        self._learn(step)
        if self.on:
            self._cost_without_prompts().refresh()

    def _learn(self, step: _Ended) -> None:
        self.calibration.observe(step.counts)
        plain = min(step.seconds, self._plain_seconds(step.batch, step.context))
        self._credit = min(self._credit + self.EXPLORATION_SHARE * plain, self.MAX_CREDIT * plain)
        self._prove(step)
        self._settle_probe(step)
        measured = step.num_tokens, step.context, step.draft_context
        if step.read:
            self.prompt_cost.learn(*measured, step.seconds)
            return
        if self._trial is not None and self.cost.covers(step.num_tokens):
            self._try(step.seconds / self.cost.seconds(*measured))
            return
        fitted = self.cost.fitted
        self.cost.learn(*measured, step.seconds)
        if self.cost.fitted and not fitted:
            plain = min(step.seconds, self._plain_seconds(step.batch, step.context))
            self._credit = self.INITIAL_CREDIT * plain

    def _plain_seconds(self, batch: int, context: float) -> float:
        """What a step of these requests takes that has no drafts and reads no prompt; infinite while that is
        unknown."""
        cost = self._cost_without_prompts()
        return cost.seconds(batch, context, 0.0) if cost.fitted else math.inf

    def _cost_of(self, step: _Ended) -> StepCost:
        return self.prompt_cost if step.read else self.cost

    def _cost_without_prompts(self) -> StepCost:
        return self.cost if self.cost.fitted else self.prompt_cost

    def _prove(self, step: _Ended) -> None:
        """Compare a step that had drafts with plain steps, and keep one that had none for that.

        Accepted tokens count as often as is expected of them, since few requests gain now many, now none.
        """
        cost, plain_steps = self._cost_of(step), self._plain_reading if step.read else self._plain
        if not step.drafted:
            plain_steps.add(cost, step.num_tokens, step.context, step.seconds)
            return
        plain = plain_steps.seconds(cost, step.num_tokens - step.drafted, step.context, self._proof.proven)
        if plain:
            # in a step that reads prompts a token is worth what it takes in a step without
            price = (min(plain, self._plain_seconds(step.batch, step.context)) if step.read else plain) / step.batch
            self._proof.add((plain + step.accepted * price - step.seconds) / plain, self._step)

    def _settle_probe(self, step: _Ended) -> None:
        """If the step explored, replace the credit that was reserved for it by what it lost."""
        cost = self._cost_of(step)
        if step.probe is None or not cost.fitted:
            return
        more, more_context, worth, reserved = step.probe
        chosen = cost.seconds(step.num_tokens - more, step.context, step.draft_context - more_context)
        lost = min(max(0.0, step.seconds - chosen - worth), self.MAX_CREDIT * chosen)  # not what a pause takes
        self._credit += reserved - lost

    def may_be_on(self, running: int) -> bool:
        """Always: the decision depends on this process's clock."""
        return True

    def wants_room(self, running: int) -> bool:
        return self._wants_room

    def should_draft(self, running: int, room: bool = True) -> bool:
        if running < self._batch:
            self._idle = self._skip = 0
        self._batch = running
        waits = not self.cost.fitted and self._step < self.MAX_WAIT
        if waits or not self._next_cost().fitted:
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
        scores: npt.NDArray[np.floating],
        uniform: bool = False,
        room: bool = True,
    ) -> Int32:
        thousands = np.asarray(contexts)[: len(slots)] / 1000
        chosen = np.zeros(len(slots), np.int32)
        if lengths.any():
            before = self._credit, self._probe, self.explored
            chosen = self._choose(thousands, lengths, scores, uniform)
            pays = bool(chosen.any())
            if uniform and pays:
                chosen[:] = self.k
            self._idle = 0 if pays else min(2 * self._idle + 1, self.MAX_IDLE_STEPS)
            self._skip = self._idle
            self._wants_room = pays or self._wants_room and self._idle == 1
            if not room:
                self._credit, self._probe, self.explored = before
                chosen[:] = 0
        self._record(slots, thousands, chosen)
        self.min_score = 0.0
        if self._drafting:
            self._scores = np.array(scores, np.float32, order="C")
            if len(slots) >= self.LARGE_BATCH:
                self.min_score = self.MIN_SCORE * lowest_score(self._scores, chosen)
        return chosen

    def skip(self, slots: Int32, contexts: npt.NDArray[Any]) -> None:
        self._record(slots, np.asarray(contexts)[: len(slots)] / 1000, np.zeros(len(slots), np.int32))

    def _record(self, slots: Int32, contexts: npt.NDArray[np.float64], drafted: Int32) -> None:
        self._step += 1
        self._drafting = bool(drafted.any())
        self._slots, self._drafted, self._contexts, self._scores = slots.copy(), drafted.copy(), contexts, None
        self.steps += 1
        self.steps_on += self._drafting

    def _choose(
        self, contexts: npt.NDArray[np.float64], lengths: Int32, scores: npt.NDArray[np.floating], uniform: bool
    ) -> Int32:
        worth = self.calibration.correct(scores)
        cost = self._cost_without_prompts()
        with_prompts = self._cost_with_prompts()
        batch, width = len(lengths), self.k if uniform else 0
        costs = None if uniform else cost.consecutive_costs(batch, (self.k + 1) * batch + 1)
        choice = choose(worth, lengths, contexts, cost, width, with_prompts, self._rate, self._step, costs)
        self._rate = choice.rate
        pays = bool(choice.gain >= (self.MIN_GAIN_ON if self.on else self.MIN_GAIN_OFF))
        pays = pays and not self._proof.pauses(self._step)
        if self._set(pays):
            self.logger.debug("drafting %s: %d requests running", "on" if pays else "off", len(contexts))
        chosen = choice.lengths if pays else np.zeros(len(contexts), np.int32)
        self._accepted = choice.accepted if pays else 0.0
        if self._step < self._next_look and batch >= self.LARGE_BATCH:
            return chosen
        explored = self._explore(chosen, worth, lengths, contexts, choice.rate, with_prompts, uniform)
        self._next_look = self._step + (self.LOOK_INTERVAL if explored is chosen else 1)
        return explored

    def _cost_with_prompts(self) -> Expected | None:
        """What the next step costs with the prompts that it is expected to read; None: it is expected to read none."""
        if not any(self._prompt_tokens) or not self.prompt_cost.fitted:
            return None
        prompt_tokens = [n for n in self._prompt_tokens if n or not self._reading]
        return Expected(self._cost_without_prompts(), self.prompt_cost, prompt_tokens)

    def _next_cost(self) -> StepCost:
        """The cost of the next step: whether it reads prompts is guessed from what followed the last step of this
        kind."""
        return self.prompt_cost if self._reading or self._reads_after[self._read] else self.cost

    def _explore(
        self,
        chosen: Int32,
        worth: npt.NDArray[np.floating],
        lengths: Int32,
        contexts: npt.NDArray[np.float64],
        rate: float,
        with_prompts: Expected | None,
        uniform: bool,
    ) -> Int32:
        """Drafts of a size whose cost is unknown or outdated, if the credit for exploration allows it, or `chosen`.

        Exploration may lose the saved credit in comparison with the chosen drafts.

        Args:
            rate: tokens a second, the price at which seconds and draft tokens are compared.
            with_prompts: see `budget.choose`.
        """
        cost = self._next_cost()
        prompt_tokens = next((n for n in reversed(self._prompt_tokens) if n), 0) if cost is self.prompt_cost else 0
        batch, step_cost = len(contexts), with_prompts or cost
        total = int(chosen.sum())
        sizes = self._unsettled(total, lengths, cost, batch + prompt_tokens, uniform) if self._credit >= 0 else []
        if not sizes:
            return chosen

        def seconds(total: int, draft_context: float) -> float:
            """What the step costs with these drafts, but for the contexts that it reads in any case."""
            draft_seconds = step_cost.draft_context * draft_context + step_cost.verify * (total > 0)
            return step_cost.size_cost(batch + total) + draft_seconds

        chosen_seconds = seconds(total, float(chosen @ contexts))
        sample = np.sort(worth.ravel()[:: 4 * self.k + 1])
        least_context = float(contexts.min()) * (1 - 1e-9)
        for size in sizes:
            # most sizes are too dear whatever their best drafts are: no `size` tokens are worth more than `size` times
            # any mark, and all that is above it
            mark = sample[max(0, len(sample) - 1 - size * len(sample) // worth.size)]
            accepted = float(size * mark + np.maximum(worth - mark, 0.0).sum()) * (1 + 1e-9) if size else 0.0
            slower, gained = seconds(size, size * least_context) - chosen_seconds, (accepted - self._accepted) / rate
            if slower - gained > self._credit:
                continue
            candidate, accepted = self._best(size, worth, lengths, uniform)
            if size and not uniform and accepted < (self.MIN_GAIN_OFF - 1) * batch:
                continue  # it would not pay even if it cost nothing
            slower = seconds(size, float(candidate @ contexts)) - chosen_seconds
            gained = (accepted - self._accepted) / rate
            loss = max(0.0, slower - gained)
            if loss <= self._credit:
                self._credit -= loss
                drafts = candidate - chosen
                self._probe = int(drafts.sum()), float(drafts @ contexts), gained, loss
                self._accepted = accepted
                self.explored += 1
                return candidate
        return chosen

    def _unsettled(self, total: int, lengths: Int32, cost: StepCost, base: int, uniform: bool) -> list[int]:
        """Numbers of drafts other than `total` whose cost is not settled, the least known one first."""
        if uniform:
            other = 0 if total else len(lengths) * self.k
            return [other] if cost.unsettled(base + other) else []
        max_rows = max(int(self.MAX_GROWTH * cost.max_rows), int(cost.max_rows) + 2)
        max_total = min(int(lengths.sum()), max(1, max_rows - base))
        sizes = {
            min(max_total, max(0, cost.next_size(base + n) - base))  # none is larger than MAX_ROWS
            for n in (total, max_total - 1, max_total // 2, max_total // 4)
        }
        sizes = {n for n in (sizes | {0}) - {total} if cost.unsettled(base + n) or not n and cost.plain_unsettled()}
        return sorted(sizes, key=lambda n: (cost.known(base + n), n))

    def _best(self, size: int, worth: npt.NDArray[np.floating], lengths: Int32, uniform: bool) -> tuple[Int32, float]:
        """The best drafts of `size` tokens in all, and how many of these are expected to be accepted."""
        batch = len(lengths)
        if not size:
            return np.zeros(batch, np.int32), 0.0
        owner, depth = np.nonzero(np.arange(self.k) < lengths[:, None])
        worth = worth[owner, depth]
        if uniform:
            return np.full(batch, self.k, np.int32), float(worth.sum())
        falling = np.sort(worth)[::-1]  # quicker than argsort
        best = worth > falling[size - 1]
        best[np.flatnonzero(worth == falling[size - 1])[: size - np.count_nonzero(best)]] = True
        drafts = np.bincount(owner[best], minlength=batch).astype(np.int32)
        return drafts, float(np.cumsum(falling)[size - 1])

    def take_over(self, state: dict[str, Any]) -> None:
        """Begin with what another process learned, perhaps on another machine; ValueError if `state` is no record.

        Costs that the first steps contradict are dropped.
        """
        self.restore(state)
        self._trial = []

    def _try(self, ratio: float) -> None:
        assert self._trial is not None
        self._trial.append(ratio)
        if len(self._trial) == self.TRIAL_STEPS:
            median = sorted(self._trial)[self.TRIAL_STEPS // 2]
            self._trial = None
            if not 1 / self.MAX_TRIAL_RATIO < median < self.MAX_TRIAL_RATIO:
                self.logger.info("steps take %.2f times what was saved: learning their costs anew", median)
                self.cost = StepCost(self.DECAY_STEPS)

    def state(self) -> dict[str, Any]:
        return {"cost": self.cost.state(), "calibration": self.calibration.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; raises ValueError for anything else."""
        try:
            self.cost.restore(state["cost"])
            self.calibration.restore(state["calibration"])
        except (KeyError, TypeError, OverflowError):
            raise ValueError("this is no record of a switch") from None
