# SPDX-License-Identifier: Apache-2.0
"""The cost of an engine step, learned from the steps themselves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core._sam import learn_step, rows_seconds, step_seconds

Float64 = npt.NDArray[np.float64]

NUM_FEATURES = 19
_ONE, _DRAFTS, _, _CONTEXT, _DRAFT_CONTEXT = range(5)  # the first features
FIRST_STEPS = 3
"""Minimum steps before predictions are used; bounds the influence of a single step."""
MAX_RESIDUAL = 0.2
"""Limit of one residual, as a logarithm. A slower step is ignored unless the previous one of its kind, with or without
drafts, was slow, too. Only larger changes of speed are followed at once. Bounds what a stall and noise do."""
TRACKING = 0.03
"""Share of each residual by which costs are scaled, and by which the limit of large residuals is adjusted; bounds how
fast a slow drift is followed."""
SPEED_WINDOW = 5
"""Number of latest residuals. If all but one are large, costs are scaled by their median; bounds how late a sudden
change is noticed, and how many randomly slow steps look like one."""
LARGE = 3
"""A residual is large if it exceeds this multiple of their median size; bounds how often noise looks like a change."""
KEPT_AFTER_CHANGE = 0.3
"""Weight of earlier steps after such a change, which may also have changed the cost of larger steps."""
MAX_PLAUSIBLE = 1e30
"""Limit of restored numbers."""


class StepCost:
    """Seconds of a step, by a nonnegative linear regression that is updated after each step.

    t = f(rows) + a * context + b * draft context, plus a constant if the step has drafts, and another if it reads
    prompts. rows are the computed tokens, padded to the next captured graph. f is piecewise linear: each octave of rows
    (2, 3-4, 5-8, ...) has its own slope, and neighbouring slopes are regularized towards each other. Contexts are in
    thousands of tokens: the sum over all requests, and the sum over the requests of all draft tokens. The fit minimizes
    relative errors.

    With a finite `memory` it follows a machine that changes: the weight of a step falls by a factor of e in `memory`
    steps, and all costs are scaled by a share of each residual, or at once if the latest residuals agree on a large
    change.

    Args:
        memory: in steps; by default nothing is forgotten.
        graph_sizes: rows of the captured graphs; the engine pads a step to the next larger one.

    steps, with_drafts, without_prompts: number of steps so far, of those with drafts, and of those that read no prompt.
    max_rows: rows of the largest step that read no prompt and was not ignored.
    """

    def __init__(self, memory: float = math.inf, graph_sizes: Iterable[int] = ()) -> None:
        self._keep = math.exp(-1 / memory)
        sizes = np.array(sorted(graph_sizes) or [1], np.int32)
        self._padded = sizes[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]
        self._model = np.zeros((NUM_FEATURES + 3, NUM_FEATURES))  # see step_seconds in _sam.pyi
        self._weights = self._model[-1]
        self.steps = self.with_drafts = self.without_prompts = 0
        self.max_rows = 1
        self._residuals: deque[float] = deque(maxlen=SPEED_WINDOW)
        self._large = MAX_RESIDUAL  # a larger residual is large
        self._was_slow = [False, False]  # whether the previous step without and with drafts was slow

    @property
    def fitted(self) -> bool:
        return self.steps >= FIRST_STEPS

    @property
    def verify(self) -> float:
        """Seconds that a step with drafts takes more."""
        return float(self._weights[_DRAFTS])

    @property
    def context(self) -> float:
        """Seconds per thousand tokens of context."""
        return float(self._weights[_CONTEXT])

    @property
    def draft_context(self) -> float:
        """Seconds per thousand tokens of draft context."""
        return float(self._weights[_DRAFT_CONTEXT])

    def learn(
        self, rows: int, drafts: bool, prompts: bool, context: float, draft_context: float, seconds: float
    ) -> float:
        """Learn from a step of `rows` >= 1; returns the logarithm of its seconds over the predicted ones."""
        padded = int(self._padded[rows]) if rows < len(self._padded) else rows
        step = padded, drafts, prompts, context, draft_context
        self.steps += 1
        self.with_drafts += drafts
        self.without_prompts += not prompts
        if self.steps == 1:
            self._weights[_ONE] = seconds
        residual = math.log(seconds / max(step_seconds(self._model, *step), 1e-12))
        follows = self._keep < 1 and self.steps > FIRST_STEPS
        factor, keep = self._follow(residual) if follows else (1.0, self._keep)
        slow = residual > MAX_RESIDUAL
        leave_out = slow and not self._was_slow[int(drafts)]
        self._was_slow[int(drafts)] = slow
        learn_step(self._model, *step, seconds, factor, keep, leave_out)
        if not (prompts or leave_out):
            self.max_rows = max(self.max_rows, rows)
        return residual

    def _follow(self, residual: float) -> tuple[float, float]:
        """Factors of all costs and of the weight of earlier steps.

        Costs are scaled by a share of the residual, or by the median of the latest residuals if all but one of them are
        large. Large means larger than this machine's noise; otherwise noise would scale the costs of steps that do not
        occur any more.
        """
        large = self._large
        self._large *= math.exp(math.copysign(TRACKING, LARGE * abs(residual) - large))
        self._large = max(MAX_RESIDUAL, self._large)
        self._residuals.append(residual)
        ordered = sorted(self._residuals)
        if len(ordered) == SPEED_WINDOW and (ordered[1] > large or ordered[-2] < -large):
            self._residuals.clear()
            return math.exp(ordered[SPEED_WINDOW // 2]), self._keep * KEPT_AFTER_CHANGE
        return math.exp(TRACKING * min(max(residual, -MAX_RESIDUAL), MAX_RESIDUAL)), self._keep

    def rows_cost(self, rows: npt.ArrayLike, prompt_tokens: Sequence[int] = (0,)) -> Float64:
        """Mean of f(rows + n) over the n in `prompt_tokens`, in seconds; rows: integers of any shape."""
        rows = np.atleast_1d(np.asarray(rows, np.int64))
        seconds = np.empty(rows.shape)
        rows_seconds(self._weights, rows, np.array(prompt_tokens, np.int32), self._padded, seconds)
        return seconds

    def by_drafts(
        self,
        batch: int,
        count: int,
        context: float,
        limit: float = math.inf,
        prompt_tokens: Sequence[int] = (0,),
    ) -> Float64:
        """Seconds of the next step by its number of draft tokens, [count + 1], without that for the drafts' contexts.

        Args:
            batch: rows of the step without drafts and prompts.
            count: maximum number of draft tokens.
            context: thousands of tokens of all requests.
            limit: rows, without prompts, beyond which the cost is unknown and assumed to be infinite.
            prompt_tokens: numbers of prompt tokens that the step may read, each with the same probability.
        """
        rows = np.arange(batch, batch + count + 1)
        seconds = self.rows_cost(rows, prompt_tokens) + self.context * context
        seconds[1:] += self.verify
        seconds[rows > max(limit, batch)] = math.inf
        return seconds

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON can hold it."""
        counts = [self.steps, self.with_drafts, self.without_prompts, self.max_rows]
        return {"model": self._model.tolist(), "counts": counts}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; raises ValueError for anything else."""
        try:
            model, counts = np.asarray(state["model"], float), np.asarray(state["counts"], float)
            numbers = np.concatenate([model.ravel(), counts])
            plausible = ((numbers >= 0) & (numbers < MAX_PLAUSIBLE)).all() and (counts < 2**53).all() and counts[3] > 0
        except (IndexError, KeyError, TypeError, ValueError):
            plausible = False
        if not plausible or model.shape != self._model.shape or counts[0] and not model[-1].any():
            raise ValueError("this is not a record of step costs")
        self._model[:] = model
        self.steps, self.with_drafts, self.without_prompts, self.max_rows = counts.astype(int).tolist()
