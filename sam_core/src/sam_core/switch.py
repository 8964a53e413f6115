# SPDX-License-Identifier: Apache-2.0
"""When to draft."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core.budget import Calibration, choose
from sam_core.cost import NEW, Expected, PromptCost, StepCost

Int32 = npt.NDArray[np.int32]


class BatchSwitch:
    """On while at most `threshold` requests run in a step.

    At larger batches verifying drafts costs more than accepted tokens gain (article, section 3.1.1). The decision falls
    when drafts are proposed, so it acts on the next step and nothing that is scheduled has to be taken back.
    """

    def __init__(self, threshold: int, logger: logging.Logger) -> None:
        self.threshold = threshold
        self.logger = logger
        self.on: bool | None = None
        self.steps = self.steps_on = self.transitions = 0

    def may_be_on(self, running: int) -> bool:
        """Whether a step in which `running` requests took part may draft: any process with these options answers alike."""
        return running <= self.threshold

    def step(self, running: int) -> bool:
        """Decide for a step in which `running` requests took part; count, and log a change once."""
        on = self.may_be_on(running)
        if on != self.on:
            if self.on is not None:
                self.transitions += 1
                self.logger.info(
                    "drafting %s: %d requests running, threshold %d", "on" if on else "off", running, self.threshold
                )
            self.on = on
        self.steps += 1
        self.steps_on += on
        return on


class AutoSwitch:
    """Gives each request of a step its own number of draft tokens, by what steps cost and drafts are worth.

    Learns both while it runs: `observe` is called at the start of each proposal, so the time since the last one is that
    of a whole engine step with the tokens it then chose. Steps that read prompts have costs of their own: engines run them
    in other ways, and drafts beside a prompt are worth what they save in steps without. What the next step will read is
    taken to be what the latest steps have read. A wall clock decides, so two processes do not decide alike: it belongs to
    the one rank whose drafts are used. It does not work under pipeline parallelism, where the steps of micro-batches
    overlap.

    Requests are known by their slots, small numbers that are used again: whoever closes a slot calls `forget`.

    Args:
        k: most draft tokens of a request.
        clock: seconds, monotonic.
    """

    MARGIN = (1.02, 1.005)  # a predicted gain turns drafting on from the first, off below the second
    MEMORY = 300.0  # steps after which a step's time counts 1/e
    REACH = 2.0  # times the largest size that is known: what is tried next
    EXPLORE = 0.005  # of the time, at most,
    START, SAVED = 2.0, 6.0  # and so many plain steps at the start, and as many as can be saved up
    TRIAL = 8  # steps that show whether costs that were taken over are those of this engine
    IDLE = 4  # steps without a look at drafts, at most, while they are not worth it
    LATEST = 16  # steps that tell how much is read

    def __init__(
        self,
        k: int,
        logger: logging.Logger,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.k = k
        self.logger = logger
        self.clock = clock
        self.cost = StepCost(self.MEMORY)
        self.prompt_cost = PromptCost(self.MEMORY)
        self.calibration = Calibration()
        self.on: bool | None = None
        self.steps = self.steps_on = self.transitions = self.explored = 0
        self._trial: list[float] | None = None
        self._credit = 0.0  # seconds that exploring may lose
        self._probe: tuple[float, float] | None = None  # seconds that the step may take without loss, loss allowed for
        self._idle = self._skip = 0
        self._batch = 0
        self._start: float | None = None
        self._read = deque([0], maxlen=self.LATEST)  # tokens of prompts in the latest steps
        self._partial = False  # a prompt is still being read
        # by slot: the call of `choose` that saw it last, and what that gave
        self._call = 0
        self._drafting = False
        self._seen = np.full(0, -1, np.int64)
        self._given = np.zeros(0, np.int32)
        self._held = np.zeros(0)
        self._scores = np.zeros((0, k), np.float32)

    def _make_room(self, slots: Int32) -> None:
        more = int(slots.max(initial=-1)) + 1 - len(self._seen)
        if more > 0:
            more = max(more, len(self._seen), 64)
            self._seen = np.concatenate([self._seen, np.full(more, -1, np.int64)])
            self._given = np.concatenate([self._given, np.zeros(more, np.int32)])
            self._held = np.concatenate([self._held, np.zeros(more)])
            self._scores = np.concatenate([self._scores, np.zeros((more, self.k), np.float32)])

    def forget(self, slot: int) -> None:
        """The slot is closed: the next request in it was given nothing."""
        if slot < len(self._seen):
            self._seen[slot] = -1

    def observe(self, slots: Int32, gained: npt.NDArray[np.integer], num_tokens: int) -> None:
        """A step has ended.

        Args:
            slots: int32 [B], those of its B requests.
            gained: [B], tokens that each has got in it; 0 if it is still reading its prompt.
            num_tokens: all that the step computed: of prompts, the last token of each request that decoded, drafts.
        """
        now = self.clock()
        seconds = now - self._start if self._start is not None else 0.0
        self._start = now
        self._make_room(slots)
        old = self._seen[slots] == self._call
        self._partial = bool((gained == 0).any())
        given = np.where(old, self._given[slots], 0)
        read = max(0, num_tokens - len(slots) - int(given.sum()))
        self._read.append(read)
        if seconds <= 0 or not old.any():
            return
        held = np.where(old, self._held[slots], 0.0)
        context, draft_context = float(held.sum()), float(given @ held)
        if self._drafting:
            verified = (np.arange(self.k) < given[:, None]) & (gained > 0)[:, None]
            accepted = np.arange(self.k) < (gained - 1)[:, None]
            self.calibration.observe(self._scores[slots][verified], accepted[verified])
        else:
            self.calibration.fade()
        self._credit = min(self._credit + self.EXPLORE * seconds, self.SAVED * seconds)
        if read or not old.all():
            self._probe = None
            self.prompt_cost.learn(num_tokens, context, draft_context, seconds)
            return
        if self._trial is not None and self.cost.covers(num_tokens):
            self._try(seconds / self.cost.seconds(num_tokens, context, draft_context))
            return
        if self._probe:
            allowed, loss = self._probe
            self._credit += max(0.0, loss - max(0.0, seconds - allowed))
            self._probe = None
        fitted = self.cost.fitted
        self.cost.learn(num_tokens, context, draft_context, seconds)
        if self.cost.fitted and not fitted:
            self._credit = self.START * seconds

    def may_be_on(self, running: int) -> bool:
        """As BatchSwitch's: always, as this process's clock decides."""
        return True

    def wanted(self, batch: int) -> bool:
        """Whether to look at drafts in this step at all."""
        if batch < self._batch:
            self._idle = self._skip = 0
        self._batch = batch
        if not self.cost.fitted and not self.prompt_cost.fitted:
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
    ) -> Int32:
        """How many tokens of each draft to verify in the next step.

        Args:
            slots: int32 [B], those of the B requests.
            contexts: [B], tokens each holds.
            lengths: int32 [B], tokens of each draft; all 0 if `wanted` said no.
            scores: [B, k], see `Pool.step`; 0 behind a draft.
            uniform: all requests get k tokens or none does, for engines with captured graphs.
        """
        held = np.asarray(contexts, float)[: len(slots)] / 1000
        chosen = np.zeros(len(slots), np.int32)
        if lengths.any():
            chosen = self._choose(held, lengths, scores, uniform)
            if uniform and chosen.any():
                chosen[:] = self.k
            self._idle = 0 if chosen.any() else min(2 * self._idle + 1, self.IDLE)
            self._skip = self._idle
        self._make_room(slots)
        self._call += 1
        self._drafting = bool(chosen.any())
        self._seen[slots] = self._call
        self._held[slots] = held
        if self._drafting:
            self._scores[slots] = scores
        self._given[slots] = chosen
        self.steps += 1
        self.steps_on += self._drafting
        return chosen

    def _choose(
        self, held: npt.NDArray[np.float64], lengths: Int32, scores: npt.NDArray[np.floating], uniform: bool
    ) -> Int32:
        worth = self.calibration.correct(scores)
        cost = self.cost if self.cost.fitted else self.prompt_cost
        beside = self._beside()
        choice = choose(worth, lengths, held, cost, self.k if uniform else 0, beside)
        paying = choice.gain >= self.MARGIN[bool(self.on)]
        self._turn(paying, len(held))
        chosen = choice.lengths if paying else np.zeros(len(held), np.int32)
        return self._explore(chosen, worth, lengths, held, choice.rate, beside, uniform)

    def _beside(self) -> Expected | None:
        """What the next step costs beside the prompts that it is expected to read; None: it reads none."""
        read = [more for more in self._read if more or not self._partial]
        if not any(read) or not self.prompt_cost.fitted:
            return None
        return Expected(self.cost if self.cost.fitted else self.prompt_cost, self.prompt_cost, read)

    def _explore(
        self,
        chosen: Int32,
        worth: npt.NDArray[np.floating],
        lengths: Int32,
        held: npt.NDArray[np.float64],
        rate: float,
        beside: Expected | None,
        uniform: bool,
    ) -> Int32:
        """Now and then a step of a size that is not known, or not any more.

        It may lose what is put aside for exploring, against the step that was chosen. rate: tokens a second, what those of
        a draft are worth. beside: see `choose`.
        """
        read = self._read[-1]
        cost = self.prompt_cost if self._partial or read else self.cost
        if not cost.fitted:
            return chosen
        batch, of_step = len(held), beside or cost
        live = np.arange(self.k) < lengths[:, None]

        def seconds(given: Int32) -> float:
            of_rows = float(of_step.rows_cost(batch + int(given.sum())))
            return of_rows + of_step.context * float(held.sum()) + of_step.draft_context * float(given @ held)

        def net(given: Int32) -> float:
            return seconds(given) - float(worth[live & (np.arange(self.k) < given[:, None])].sum()) / rate

        for tried in self._others(chosen, worth, live, cost, batch + read, uniform):
            more = net(tried) - net(chosen)
            if max(0.0, more) <= self._credit:
                self._credit -= max(0.0, more)
                self._probe = seconds(tried) - more, max(0.0, more)
                self.explored += 1
                return tried
        return chosen

    def _others(
        self,
        chosen: Int32,
        worth: npt.NDArray[np.floating],
        live: npt.NDArray[np.bool_],
        cost: StepCost,
        base: int,
        uniform: bool,
    ) -> Iterator[Int32]:
        """Drafts of sizes that are not settled, the least known first; in each the best drafts."""
        batch = len(chosen)
        if uniform:
            other = np.full(batch, 0 if chosen.any() else self.k, np.int32)
            if cost.unsettled(base + int(other.sum())):
                yield other
            return
        reach = max(int(self.REACH * cost.most_rows), int(cost.most_rows) + 2)
        most = min(int(live.sum()), max(1, reach - base))
        usual = int(chosen.sum())
        sizes = {min(most, cost.next_size(base + n) - base) for n in (usual, most - 1, most // 2, most // 4)}
        sizes = {n for n in (sizes | {0}) - {usual} if cost.unsettled(base + n)}
        if not sizes:
            return
        drafts = np.flatnonzero(live)
        best = drafts[np.argsort(-worth.ravel()[drafts], kind="stable")]
        gains = np.concatenate([[0.0], np.cumsum(worth.ravel()[best])])
        for total in sorted(sizes, key=lambda n: (cost.known(base + n), n)):
            # some are not worth it even if they cost nothing
            if not total or gains[total] >= (self.MARGIN[0] - 1) * batch:
                yield np.bincount(best[:total] // self.k, minlength=batch).astype(np.int32)

    def _turn(self, on: bool, running: int) -> None:
        if on != self.on:
            if self.on is not None:
                self.transitions += 1
                self.logger.debug("drafting %s: %d requests running", "on" if on else "off", running)
            self.on = on

    def take_over(self, state: dict[str, Any]) -> None:
        """Begin with what another process learned; ValueError if `state` is no record of a switch.

        It may have run on another machine. Costs that the first steps show to be wrong are forgotten.
        """
        self.restore(state)
        self._trial = []

    def _try(self, ratio: float) -> None:
        assert self._trial is not None
        self._trial.append(ratio)
        if len(self._trial) == self.TRIAL:
            usual = sorted(self._trial)[self.TRIAL // 2]
            self._trial = None
            if not 1 / NEW < usual < NEW:
                self.logger.info("steps take %.2f times what was saved: learning their costs anew", usual)
                self.cost = StepCost(self.MEMORY)

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON can hold it."""
        return {"cost": self.cost.state(), "calibration": self.calibration.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave; ValueError if it is none."""
        try:
            self.cost.restore(state["cost"])
            self.calibration.restore(state["calibration"])
        except (KeyError, TypeError, OverflowError):
            raise ValueError("this is no record of a switch") from None
