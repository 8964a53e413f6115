# SPDX-License-Identifier: Apache-2.0
"""When to draft, and how much."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sam_core._sam import lowest_score, observe_drafts
from sam_core.budget import Calibration, choose
from sam_core.cost import Expected, PromptCost, StepCost
from sam_core.proof import PlainSteps, Proof

Float64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating]
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

    def should_draft(self, running: int, planned: bool = True) -> bool:
        """Whether to look for drafts after a step of `running` requests; `planned`: as for `choose`."""
        raise NotImplementedError

    def plans_drafts(self, running: int) -> bool:
        """Whether steps are to be planned with drafts; asked by engines that plan ahead, after `choose` or `skip`."""
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
        scores: Floats,
        uniform: bool = False,
        planned: bool = True,
    ) -> Int32:
        """How many tokens of each draft to verify in the next step: int32 [B].

        Args:
            slots: int32 [B], those of the B requests.
            contexts: [B], tokens that each holds.
            lengths: int32 [B], tokens of each draft.
            scores: [B, k], see `Pool.step`; 0 behind a draft.
            uniform: all requests get k tokens or none does, for engines with captured graphs.
            planned: False: the next step has no drafts, so this only decides what `plans_drafts` returns.
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

    def should_draft(self, running: int, planned: bool = True) -> bool:
        on = self.may_be_on(running)
        if self.count(on):
            self.logger.info(
                "drafting %s: %d requests running, threshold %d", "on" if on else "off", running, self.threshold
            )
        return on and planned


class _Step(NamedTuple):
    """A step that has ended, of `batch` requests.

    reads: whether it read prompts. rows: tokens that it computed. drafted: draft tokens, of which `accepted` were
    expected to be accepted. context, draft_context: thousands of tokens, see `StepCost`. seconds: how long it took.
    counts: see `Calibration.observe`. probe: see `AutoSwitch._probe`.
    """

    batch: int
    reads: bool
    rows: int
    drafted: int
    accepted: float
    context: float
    draft_context: float
    seconds: float
    counts: Float64
    probe: tuple[int, float, float] | None

    def expected(self, cost: StepCost) -> float:
        """Its seconds by `cost`."""
        return cost.seconds(self.rows, self.context, self.draft_context)


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

    MIN_GAIN = 1.01
    """Least predicted gain with which there are drafts: it bounds what slightly wrong predictions lose."""
    MEMORY = 300
    """Steps after which a step's weight has fallen to 1/e, and the longest wait for steps without prompts."""
    EXPLORATION_SHARE = 0.005
    """Share of the time that exploration may lose."""
    INITIAL_CREDIT = 2.0
    """Plain steps whose time exploration may lose at the start."""
    MAX_CREDIT = 6.0
    """Plain steps whose time exploration may save up, and the most that one step is charged."""
    MAX_IDLE_STEPS = 4
    """Consecutive steps without a look at drafts while they are not worth it: it bounds how late they begin again."""
    TRIAL_STEPS = 8
    """Steps that costs of another process are compared with before they are kept or dropped."""
    MAX_TRIAL_RATIO = 1.5
    """Costs of another process are dropped if the median step took this many times longer or shorter."""
    MAX_SLOWDOWN = 8.0
    """A step that took this many times longer than expected spans a pause of the engine, unless the step before took so
    long too: its time is not learned."""
    PROMPT_WINDOW = 16
    """Latest steps from which the prompt tokens of the next step are predicted."""
    LARGE_BATCH = 256
    """Requests from which on the time to draft counts more than drafts that are seldom chosen, see MIN_SCORE."""
    MIN_SCORE = 0.5
    """Share of the lowest chosen score below which the next drafts of a large batch end."""

    def __init__(
        self,
        k: int,
        logger: logging.Logger,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(logger)
        self.k = k
        self.clock = clock
        self.cost = StepCost(self.MEMORY)
        self.prompt_cost = PromptCost(self.MEMORY)
        self.calibration = Calibration()
        self.explored = 0
        self._proof = Proof()
        self._plain_steps = PlainSteps(), PlainSteps()  # without prompts, with prompts
        self._accepted = 0.0  # tokens of the chosen drafts that are expected to be accepted
        self._rate = 0.0  # of the latest choice
        self._trial: list[float] | None = None
        self._credit = 0.0  # seconds that exploration may lose; less than 0 if it lost more
        # of the explored step: its draft tokens and their thousands of context tokens beyond the chosen ones, and what
        # the tokens that these gain are worth in seconds
        self._probe: tuple[int, float, float] | None = None
        self._ended: _Step | None = None
        self._idle = self._skip = 0
        self._plans = False
        self._batch = 0
        self._start: float | None = None
        self._longest = 0.0  # seconds of a step that was learned
        self._after_long = False  # whether the latest step took MAX_SLOWDOWN times what was expected
        self._prompt_tokens = deque([0], maxlen=self.PROMPT_WINDOW)
        self._reading = False  # a prompt is still being read
        self._num_steps = 0
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
        known, drafted, context, draft_context = observe_drafts(
            slots, num_gained, self._slots, self._drafted, self._contexts, counts, self._scores
        )
        probe, self._probe = self._probe, None
        run = min(drafted, max(0, num_tokens - len(slots)))
        if run < int(self._drafted.sum()):  # a request is gone, or an engine that plans ahead has left drafts out
            draft_context, drafted, probe = draft_context * run / max(drafted, 1), run, None
        prompt_tokens = max(0, num_tokens - len(slots) - drafted)
        self._prompt_tokens.append(prompt_tokens)
        if seconds <= 0 or not known:
            return
        reads = prompt_tokens > 0 or known < len(slots)
        measured = self._accepted, context, draft_context, seconds, counts, probe
        step = _Step(len(slots), reads, num_tokens, drafted, *measured)
        cost = self._cost_of(step)
        expected = step.expected(cost) if cost.fitted else self._longest
        after_long, self._after_long = self._after_long, 0 < expected * self.MAX_SLOWDOWN < seconds
        if self._after_long and not after_long:
            self.calibration.observe(counts)
            return
        self._ended, self._longest = step, max(seconds, self._longest)

    def learn(self) -> None:
        step, self._ended = self._ended, None
        if step is None:
            return
        self.calibration.observe(step.counts)
        plain = min(step.seconds, self._plain_seconds(step.batch, step.context))
        self._credit = min(self._credit + self.EXPLORATION_SHARE * plain, self.MAX_CREDIT * plain)
        self._prove(step)
        self._settle_probe(step)
        cost = self._cost_of(step)
        if cost is self.cost and self._trial is not None and cost.covers(step.rows):
            self._try(step.seconds / step.expected(cost))
            return
        fitted = self.cost.fitted
        cost.learn(step.rows, step.context, step.draft_context, step.seconds)
        if self.cost.fitted and not fitted:
            self._credit = self.INITIAL_CREDIT * min(step.seconds, self._plain_seconds(step.batch, step.context))

    def _plain_seconds(self, batch: int, context: float) -> float:
        """What a step of these requests takes that has no drafts and reads no prompt; infinite while that is
        unknown."""
        cost = self._cost_without_prompts()
        return cost.seconds(batch, context, 0.0) if cost.fitted else math.inf

    def _cost_of(self, step: _Step) -> StepCost:
        return self.prompt_cost if step.reads else self.cost

    def _cost_without_prompts(self) -> StepCost:
        return self.cost if self.cost.fitted else self.prompt_cost

    def _next_cost(self) -> StepCost:
        """The cost of the next step, which is expected to read prompts if the latest did."""
        return self.prompt_cost if self._reading or self._prompt_tokens[-1] else self.cost

    def _prove(self, step: _Step) -> None:
        """Compare a step that had drafts with plain steps, and keep one that had none for that.

        Accepted tokens count as often as is expected of them, since few requests gain now many, now none.
        """
        cost, plain_steps = self._cost_of(step), self._plain_steps[step.reads]
        if not step.drafted:
            plain_steps.add(cost, step.rows, step.context, step.seconds)
            return
        plain = plain_steps.seconds(cost, step.rows - step.drafted, step.context, self._proof.proven)
        if plain:
            # in a step that reads prompts a token is worth what it takes in a step without
            price = (min(plain, self._plain_seconds(step.batch, step.context)) if step.reads else plain) / step.batch
            self._proof.add((plain + step.accepted * price - step.seconds) / plain, self._num_steps)

    def _settle_probe(self, step: _Step) -> None:
        """If the step explored, take what it lost from the credit."""
        cost = self._cost_of(step)
        if step.probe is None or not cost.fitted:
            return
        more, more_context, worth = step.probe
        chosen = cost.seconds(step.rows - more, step.context, step.draft_context - more_context)
        self._credit -= min(max(0.0, step.seconds - chosen - worth), self.MAX_CREDIT * chosen)  # not what a pause takes

    def may_be_on(self, running: int) -> bool:
        """Always: the decision depends on this process's clock."""
        return True

    def plans_drafts(self, running: int) -> bool:
        return self._plans

    def should_draft(self, running: int, planned: bool = True) -> bool:
        if running < self._batch:
            self._idle = self._skip = 0
        self._batch = running
        waits = not self.cost.fitted and self._num_steps < self.MEMORY
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
        scores: Floats,
        uniform: bool = False,
        planned: bool = True,
    ) -> Int32:
        thousands = np.asarray(contexts)[: len(slots)] / 1000
        chosen = np.zeros(len(slots), np.int32)
        if lengths.any():
            chosen = self._choose(thousands, lengths, scores, uniform)
            pays = bool(chosen.any())
            self._idle = 0 if pays else min(2 * self._idle + 1, self.MAX_IDLE_STEPS)
            self._skip = self._idle
            self._plans = pays or self._plans and self._idle == 1
            if not planned:
                self._probe = None
                chosen[:] = 0
        self._record(slots, thousands, chosen)
        self.min_score = 0.0
        if chosen.any():
            self._scores = np.array(scores, np.float32, order="C")
            if len(slots) >= self.LARGE_BATCH:
                self.min_score = self.MIN_SCORE * lowest_score(self._scores, chosen)
        return chosen

    def skip(self, slots: Int32, contexts: npt.NDArray[Any]) -> None:
        self._record(slots, np.asarray(contexts)[: len(slots)] / 1000, np.zeros(len(slots), np.int32))

    def _record(self, slots: Int32, contexts: Float64, drafted: Int32) -> None:
        self._num_steps += 1
        self._slots, self._drafted, self._contexts, self._scores = slots.copy(), drafted.copy(), contexts, None
        self.steps += 1
        self.steps_on += bool(drafted.any())

    def _choose(self, contexts: Float64, lengths: Int32, scores: Floats, uniform: bool) -> Int32:
        """Draft lengths int32 [B], those that pay or those that explore; the arguments are those of `choose`."""
        worth = self.calibration.correct(scores)
        with_prompts = self._cost_with_prompts()
        width = self.k if uniform else 0
        cost = self._cost_without_prompts()
        choice = choose(worth, lengths, contexts, cost, width, with_prompts, self._rate, self._num_steps)
        self._rate = choice.rate
        pays = choice.gain >= self.MIN_GAIN and not self._proof.pauses(self._num_steps)
        if self._set(bool(pays)):
            self.logger.debug("drafting %s: %d requests running", "on" if pays else "off", len(contexts))
        chosen = choice.lengths if pays else np.zeros(len(contexts), np.int32)
        self._accepted = choice.accepted if pays else 0.0
        if self._credit < 0:
            return chosen
        return self._explore(chosen, worth, lengths, contexts, with_prompts or cost, uniform)

    def _cost_with_prompts(self) -> Expected | None:
        """What the next step costs with the prompts that it is expected to read; None: it is expected to read none."""
        if not any(self._prompt_tokens) or not self.prompt_cost.fitted:
            return None
        prompt_tokens = [n for n in self._prompt_tokens if n or not self._reading]
        return Expected(self._cost_without_prompts(), self.prompt_cost, prompt_tokens)

    def _explore(
        self,
        chosen: Int32,
        worth: Float64,
        lengths: Int32,
        contexts: Float64,
        step_cost: StepCost | Expected,
        uniform: bool,
    ) -> Int32:
        """Drafts of a size whose cost is unknown or outdated, int32 [B], if that loses no more than the credit in
        comparison with the chosen drafts; otherwise these.

        Args:
            worth: [B, k], corrected scores.
            step_cost: expected cost of the step.
        """
        batch, total = len(contexts), int(chosen.sum())
        sizes = self._unsettled(total, lengths, batch, uniform)
        if not sizes:
            return chosen

        def seconds(drafts: Int32) -> float:
            """What the step costs with these drafts, but for the contexts that it reads in any case."""
            rows = batch + int(drafts.sum())
            draft_seconds = step_cost.draft_context * float(drafts @ contexts) + step_cost.verify * (rows > batch)
            return step_cost.size_cost(rows) + draft_seconds

        live = np.arange(self.k) < lengths[:, None]
        owner, worth = np.nonzero(live)[0], worth[live]
        best = np.argsort(-worth, kind="stable")
        accepted = np.concatenate([[0.0], np.cumsum(worth[best])])  # by the best drafts of each size
        chosen_seconds = seconds(chosen)
        for size in sizes:
            if uniform:
                drafts = np.full(batch, size // batch, np.int32)
            else:
                drafts = np.bincount(owner[best[:size]], minlength=batch).astype(np.int32)
                if 0 < accepted[size] < (self.MIN_GAIN - 1) * batch:
                    continue  # it would not pay even if it cost nothing
            tokens = float(accepted[min(size, len(worth))])
            gained = (tokens - self._accepted) / self._rate
            if seconds(drafts) - chosen_seconds - gained <= self._credit:
                more = drafts - chosen
                self._probe = int(more.sum()), float(more @ contexts), gained
                self._accepted = tokens
                self.explored += 1
                return drafts
        return chosen

    def _unsettled(self, total: int, lengths: Int32, batch: int, uniform: bool) -> list[int]:
        """Numbers of drafts other than `total` whose cost is not settled, the least known one first."""
        cost = self._next_cost()
        base = batch
        if cost is self.prompt_cost:
            base += next((n for n in reversed(self._prompt_tokens) if n), 0)
        if uniform:
            sizes = {0, batch * self.k}
        else:
            most = int(lengths.sum())
            larger = total
            while larger < most and not cost.unsettled(base + larger, larger > 0):
                larger = cost.next_size(base + larger) - base
            sizes = {min(most, cost.next_size(base + n) - base) for n in (most - 1, most // 2, most // 4)}
            sizes |= {0, min(most, larger)}
        found = [n for n in sizes if n >= 0 and n != total and cost.unsettled(base + n, n > 0)]
        return sorted(found, key=lambda n: (cost.known(base + n, n > 0), n))

    def take_over(self, state: dict[str, Any]) -> None:
        """Begin with what another process learned, perhaps on another machine.

        Costs that the first steps contradict are dropped. Raises ValueError if `state` is no record.
        """
        self.restore(state)
        self._trial = []

    def _try(self, ratio: float) -> None:
        """Compare a step with the costs of another process, which are kept or dropped in the end."""
        assert self._trial is not None
        self._trial.append(ratio)
        if len(self._trial) == self.TRIAL_STEPS:
            median = sorted(self._trial)[self.TRIAL_STEPS // 2]
            self._trial = None
            if not 1 / self.MAX_TRIAL_RATIO < median < self.MAX_TRIAL_RATIO:
                self.logger.info("steps take %.2f times what was saved: learning their costs anew", median)
                self.cost = StepCost(self.MEMORY)

    def state(self) -> dict[str, Any]:
        return {"cost": self.cost.state(), "calibration": self.calibration.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; raises ValueError for anything else."""
        try:
            self.cost.restore(state["cost"])
            self.calibration.restore(state["calibration"])
        except (KeyError, TypeError, OverflowError):
            raise ValueError("this is no record of a switch") from None
