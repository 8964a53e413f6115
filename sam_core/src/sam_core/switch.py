# SPDX-License-Identifier: Apache-2.0
"""When to draft."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core.budget import Calibration, choose
from sam_core.cost import NEW, StepCost

_NONE = np.empty(0)


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
    of a whole engine step with the tokens it then chose. Steps that prefill are left out. A wall clock decides, so two
    processes do not decide alike: it belongs to the one rank whose drafts are used. It does not work under pipeline
    parallelism, where the steps of micro-batches overlap.

    Args:
        k: most draft tokens of a request.
        clock: seconds, monotonic.
    """

    FIRST_FIT = 4
    MARGIN = (1.02, 1.0)  # a predicted gain turns drafting on from the first, off below the second
    EXPLORE = 0.0025  # of the time, at most
    ENOUGH = 2  # steps of a size to know what it costs
    TRIAL = 8  # steps that show whether costs that were taken over are those of this engine
    IDLE = 4  # steps without a look at drafts, at most, while they are not worth it

    def __init__(self, k: int, logger: logging.Logger, clock: Callable[[], float] = time.perf_counter) -> None:
        self.k = k
        self.logger = logger
        self.clock = clock
        self.cost = StepCost()
        self.calibration = Calibration()
        self.on: bool | None = None
        self.steps = self.steps_on = self.transitions = self.explored = 0
        self._since_fit = 0
        self._fits = 0
        self._trial: list[float] | None = None
        self._credit = 0.0  # seconds that exploring may lose
        self._idle = self._skip = 0
        self._batch = 0
        self._decoding = False
        self._start: float | None = None
        self._given: dict[Hashable, tuple[int, float, npt.NDArray[np.floating]]] = {}

    def forget(self, slot: Hashable) -> None:
        """A request has ended."""
        self._given.pop(slot, None)

    def observe(self, req_ids: npt.ArrayLike, gained: npt.NDArray[np.integer], decoding: bool) -> None:
        """A step has ended.

        Args:
            req_ids: its B requests.
            gained: [B], tokens that each has got in it.
            decoding: no request of it was still reading its prompt.
        """
        now = self.clock()
        req_ids = np.asarray(req_ids).tolist()
        seconds = now - self._start if self._start is not None else 0.0
        self._start = now
        given = self._given
        # a prompt's last chunk looks like a decode, but for the step before
        before, self._decoding = self._decoding, decoding
        if not (decoding and before and len(req_ids)) or seconds <= 0 or any(req_id not in given for req_id in req_ids):
            return
        rows, context, draft_context = 0, 0.0, 0.0
        offered, accepted = [], []
        for req_id, gain in zip(req_ids, gained.tolist(), strict=True):
            n, held, scores = given[req_id]
            rows += 1 + n
            context += held
            draft_context += n * held
            if n and gain:
                offered.append(scores)
                accepted.append(np.arange(n) < gain - 1)
        self.calibration.observe(np.concatenate(offered or [_NONE]), np.concatenate(accepted or [_NONE]))
        if self._trial is not None and self.cost.covers(rows):
            self._try(seconds / self.cost.seconds(rows, context, draft_context))
            return
        self.cost.observe(rows, context, draft_context, seconds)
        self._credit += self.EXPLORE * seconds
        self._since_fit += 1
        if self._since_fit >= min(self.FIRST_FIT << self._fits, 64):
            self.cost.fit()
            self._fits += 1
            self._since_fit = 0

    def wanted(self, batch: int) -> bool:
        """Whether to look at drafts in this step at all."""
        if batch < self._batch:
            self._idle = self._skip = 0
        self._batch = batch
        if not self.cost.fitted:
            return False
        if self._skip:
            self._skip -= 1
            return False
        return True

    def choose(
        self,
        req_ids: npt.ArrayLike,
        contexts: Sequence[int] | npt.NDArray[Any],
        lengths: npt.NDArray[np.int32],
        scores: npt.NDArray[np.floating],
        uniform: bool = False,
    ) -> npt.NDArray[np.int32]:
        """How many tokens of each draft to verify in the next step.

        Args:
            req_ids: B requests.
            contexts: [B], tokens each holds.
            lengths: int32 [B], tokens of each draft; all 0 if `wanted` said no.
            scores: [B, k], see `Pool.step`; 0 behind a draft.
            uniform: all requests get k tokens or none does, for engines with captured graphs.
        """
        req_ids = np.asarray(req_ids).tolist()
        held = np.asarray(contexts, float)[: len(req_ids)] / 1000
        chosen = np.zeros(len(req_ids), np.int32)
        if lengths.any():
            worth = self.calibration.correct(scores)
            chosen, gain = choose(worth, lengths, held, self.cost, self.k if uniform else 0)
            paying = gain >= self.MARGIN[bool(self.on)]
            self._turn(paying, len(req_ids))
            if not paying:
                chosen[:] = 0
            if uniform:
                chosen = self._explore_all(chosen, held, float((worth * (np.arange(self.k) < lengths[:, None])).sum()))
            else:
                chosen = self._explore(chosen, worth, lengths, held)
            self._idle = 0 if chosen.any() else min(2 * self._idle + 1, self.IDLE)
            self._skip = self._idle
        self._given = {
            req_id: (n, context, row)
            for req_id, n, context, row in zip(
                req_ids,
                chosen.tolist(),
                held.tolist(),
                (row[:n] for row, n in zip(scores, chosen.tolist(), strict=True)),
                strict=True,
            )
        }
        self.steps += 1
        self.steps_on += bool(chosen.any())
        return chosen

    def _explore(
        self,
        chosen: npt.NDArray[np.int32],
        worth: npt.NDArray[np.floating],
        lengths: npt.NDArray[np.int32],
        held: npt.NDArray[np.floating],
    ) -> npt.NDArray[np.int32]:
        """Now and then a step of a size that was seldom seen, the best drafts first."""
        batch = len(held)
        reach = max(int(1.25 * self.cost.most_rows), int(self.cost.most_rows) + 2)
        most = min(int(lengths.sum()), max(1, reach - batch))
        live = np.arange(worth.shape[1]) < lengths[:, None]
        owner, position = np.nonzero(live)
        best = np.argsort(-worth[owner, position], kind="stable")[:most]
        gains = np.concatenate([[0.0], np.cumsum(worth[owner[best], position[best]])])
        # some are not worth it even if they cost nothing
        sizes = [n for n in {most, most // 2, most // 4} if gains[n] >= (self.MARGIN[0] - 1) * batch]
        total = min([0, *sizes], key=lambda n: (self.cost.seen(batch + n), n))
        if total == chosen.sum() or self.cost.seen(batch + total) >= self.ENOUGH:
            return chosen
        tried = np.bincount(owner[best[:total]], minlength=batch).astype(np.int32)
        expected = float(gains[total])
        if not self._pays(batch + total, held, float((tried * held).sum()), expected):
            return chosen
        self.explored += 1
        return tried

    def _explore_all(
        self, chosen: npt.NDArray[np.int32], held: npt.NDArray[np.floating], accepted: float
    ) -> npt.NDArray[np.int32]:
        """The same for an engine with captured graphs: now and then the other of its two sizes."""
        batch, other = len(held), 0 if chosen.any() else self.k
        if self.cost.seen(batch * (1 + other)) >= self.ENOUGH:
            return chosen
        if not self._pays(batch * (1 + other), held, other * float(held.sum()), accepted if other else 0.0):
            return chosen
        self.explored += 1
        return np.full(batch, other, np.int32)

    def _pays(self, rows: int, held: npt.NDArray[np.floating], draft_context: float, accepted: float) -> bool:
        """Whether what is put aside for exploring covers a step of this size; takes it then."""
        batch = len(held)
        context = float(held.sum())
        plain = self.cost.seconds(batch, context, 0.0)
        seconds = self.cost.seconds(rows, context, draft_context)
        loss = max(0.0, seconds - plain * (batch + accepted) / batch)
        if loss > self._credit:
            return False
        self._credit -= loss
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
                self.cost = StepCost()
                self._since_fit = self._fits = 0

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
