# SPDX-License-Identifier: Apache-2.0
"""When to draft."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core.budget import Calibration, choose
from sam_core.cost import NEW, StepCost

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

    def step(self, running: int) -> bool:
        """Decide for a step in which `running` requests took part; count, and log a change once."""
        on = running <= self.threshold
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
    of a whole engine step with the tokens it then chose. Steps that read prompts are left out, of which nobody says how
    many tokens they read; drafts beside a prompt are chosen as if it were not there, since it has to be read anyway. A wall
    clock decides, so two processes do not decide alike: it belongs to the one rank whose drafts are used. It does not work
    under pipeline parallelism, where the steps of micro-batches overlap.

    Requests are known by their slots, small numbers that are used again: whoever closes a slot calls `forget`.

    Args:
        k: most draft tokens of a request.
        threshold: most requests in a step to draft for as long as no step without a prompt shows what steps cost.
        clock: seconds, monotonic.
    """

    FIRST_FIT, FIT = 4, 32  # steps to the first fit, and at most between two
    MARGIN = (1.02, 1.005)  # a predicted gain turns drafting on from the first, off below the second
    MEMORY = 300.0  # steps after which a step's time counts 1/e
    REACH = 2.0  # times the largest size that is known: what is tried next
    EXPLORE = 0.005  # of the time, at most,
    START, SAVED = 2.0, 6.0  # and so many plain steps at the start, and as many as can be saved up
    TRIAL = 8  # steps that show whether costs that were taken over are those of this engine
    IDLE = 4  # steps without a look at drafts, at most, while they are not worth it
    PATIENCE = 32  # steps that read prompts, without one that does not, until `threshold` decides

    def __init__(
        self,
        k: int,
        logger: logging.Logger,
        threshold: int = 8,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.k = k
        self.logger = logger
        self.threshold = threshold
        self.clock = clock
        self.cost = StepCost(self.MEMORY)
        self.calibration = Calibration()
        self.on: bool | None = None
        self.steps = self.steps_on = self.transitions = self.explored = 0
        self._since_fit, self._interval = 0, self.FIRST_FIT
        self._trial: list[float] | None = None
        self._credit = 0.0  # seconds that exploring may lose
        self._probe: tuple[float, float] | None = None  # seconds that the step may take without loss, loss allowed for
        self._idle = self._skip = 0
        self._batch = 0
        self._start: float | None = None
        self._blind = 0  # steps with prompts since one without, while costs are unknown
        self._told = False
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

    def observe(self, slots: Int32, gained: npt.NDArray[np.integer], decoding: bool) -> None:
        """A step has ended.

        Args:
            slots: int32 [B], those of its B requests.
            gained: [B], tokens that each has got in it; 0 if it is still reading its prompt.
            decoding: every request of it has got a token that may be drafted behind.
        """
        now = self.clock()
        seconds = now - self._start if self._start is not None else 0.0
        self._start = now
        self._make_room(slots)
        old = self._seen[slots] == self._call
        # a request whose prompt was still being read read its last part in this step
        before, self._partial = self._partial, not decoding and bool((gained == 0).any())
        if seconds <= 0 or not old.any():
            return
        everyone = bool(old.all())
        rows, context, draft_context = len(slots), float(self._held[slots].sum()), 0.0
        if self._drafting:
            given = self._given[slots] if everyone else np.where(old, self._given[slots], 0)
            rows += int(given.sum())
            draft_context = float(given @ self._held[slots])
            verified = (np.arange(self.k) < given[:, None]) & (gained > 0)[:, None]
            accepted = np.arange(self.k) < (gained - 1)[:, None]
            self.calibration.observe(self._scores[slots][verified], accepted[verified])
        else:
            self.calibration.fade()
        if before or self._partial or not everyone:
            self._probe = None
            self._blind += 1
            if self._blind == self.PATIENCE and not self.cost.fitted and not self._told:
                self._told = True
                self.logger.info(
                    "every step reads a prompt, so none shows what decoding costs: drafting at up to %d requests "
                    "(threshold) until one does",
                    self.threshold,
                )
            return
        self._blind = 0
        if self._trial is not None and self.cost.covers(rows):
            self._try(seconds / self.cost.seconds(rows, context, draft_context))
            return
        if self._probe:
            allowed, loss = self._probe
            self._credit += max(0.0, loss - max(0.0, seconds - allowed))
            self._probe = None
        jumps = self.cost.jumps
        self.cost.observe(rows, context, draft_context, seconds)
        self._credit = min(self._credit + self.EXPLORE * seconds, self.SAVED * seconds)
        self._since_fit += 1
        if self._since_fit >= self._interval or self.cost.jumps > jumps:
            if not self.cost.fitted:
                self._credit = self.START * seconds
            self.cost.fit()
            self._interval = min(2 * self._interval, self.FIT)
            self._since_fit = 0

    def wanted(self, batch: int) -> bool:
        """Whether to look at drafts in this step at all."""
        if batch < self._batch:
            self._idle = self._skip = 0
        self._batch = batch
        if not self.cost.fitted:
            return self._blind >= self.PATIENCE and batch <= self.threshold
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
            chosen = self._choose(held, lengths, scores, uniform) if self.cost.fitted else lengths.copy()
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
        chosen, gain = choose(worth, lengths, held, self.cost, self.k if uniform else 0)
        paying = gain >= self.MARGIN[bool(self.on)]
        self._turn(paying, len(held))
        if not paying:
            chosen[:] = 0
            gain = 1.0
        if self._partial:
            return chosen  # the next step shows nothing of what decoding costs
        return (self._explore_all if uniform else self._explore)(chosen, worth, lengths, held, gain)

    def _explore(
        self,
        chosen: Int32,
        worth: npt.NDArray[np.floating],
        lengths: Int32,
        held: npt.NDArray[np.float64],
        gain: float,
    ) -> Int32:
        """Now and then a step of a size that is not known, or not any more, the best drafts first."""
        batch = len(held)
        reach = max(int(self.REACH * self.cost.most_rows), int(self.cost.most_rows) + 2)
        most = min(int(lengths.sum()), max(1, reach - batch))
        usual = int(chosen.sum())
        sizes = {min(most, self.cost.next_size(batch + n) - batch) for n in (usual, most - 1, most // 2, most // 4)}
        sizes = {n for n in (sizes | {0}) - {usual} if self.cost.unsettled(batch + n)}
        if not sizes:
            return chosen
        live = np.flatnonzero(np.arange(worth.shape[1]) < lengths[:, None])
        best = live[np.argsort(-worth.ravel()[live], kind="stable")]
        gains = np.concatenate([[0.0], np.cumsum(worth.ravel()[best])])
        # some are not worth it even if they cost nothing
        worthy = [n for n in sizes if not n or gains[n] >= (self.MARGIN[0] - 1) * batch]
        for total in sorted(worthy, key=lambda n: (self.cost.known(batch + n), n)):
            tried = np.bincount(best[:total] // worth.shape[1], minlength=batch).astype(np.int32)
            if self._pays(batch + total, held, float(tried @ held), float(gains[total]), gain):
                self.explored += 1
                return tried
        return chosen

    def _explore_all(
        self,
        chosen: Int32,
        worth: npt.NDArray[np.floating],
        lengths: Int32,
        held: npt.NDArray[np.float64],
        gain: float,
    ) -> Int32:
        """The same for an engine with captured graphs: now and then the other of its two sizes."""
        batch, other = len(held), 0 if chosen.any() else self.k
        if not self.cost.unsettled(batch * (1 + other)):
            return chosen
        accepted = float(worth[np.arange(self.k) < lengths[:, None]].sum()) if other else 0.0
        if not self._pays(batch * (1 + other), held, other * float(held.sum()), accepted, gain):
            return chosen
        self.explored += 1
        return np.full(batch, other, np.int32)

    def _pays(
        self, rows: int, held: npt.NDArray[np.float64], draft_context: float, accepted: float, gain: float
    ) -> bool:
        """Whether what is put aside for exploring covers a step of this size; takes it then.

        gain: tokens a second of what would be drafted otherwise, against a plain step.
        """
        batch = len(held)
        context = float(held.sum())
        plain = self.cost.seconds(batch, context, 0.0)
        seconds = self.cost.seconds(rows, context, draft_context)
        allowed = plain * (batch + accepted) / batch / gain
        loss = max(0.0, seconds - allowed)
        if loss > self._credit:
            return False
        self._credit -= loss
        self._probe = allowed, loss
        return True

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
                self._since_fit, self._interval = 0, self.FIRST_FIT

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
