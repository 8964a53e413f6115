# SPDX-License-Identifier: Apache-2.0
"""What an engine step costs, learned from the steps themselves."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

MAX_EXACT_BIN = 32
"""Rows up to which each size has a bin of its own; wider bins span about a tenth of their rows."""
MAX_GRAPH_ROWS = 512
"""Rows up to which engines capture graphs: there bins end where graphs do, and beyond f of prompts is a line."""
MAX_ROWS = 1 << 16
"""Rows of the last bin: it bounds memory."""
STEPS_PER_BIN = 24
"""Latest steps that a bin keeps: it bounds memory and the time of a fit."""
MAX_FIT_INTERVAL = 32
"""Most steps between two fits: it bounds how old the fit is."""
SETTLED_WEIGHT = 3.0
"""Weight of a bin's steps (1 for a new one) from which on its cost is known."""
MIN_SLOPE_STEPS = 2.0
"""Steps by which slopes shrink to a half or less: it bounds what a few steps can claim."""
MIN_VERIFY = 0.2
"""Share of a plain step below which a guess of what verification costs is taken for noise."""
MIN_ROW_SPREAD = 0.15
"""Relative spread of rows below which the slope of prompt steps is nearer to the mean seconds per row."""
MAX_RESIDUAL = 0.12
"""Most that one residual counts, and the least change of speed that is followed at once, as logarithms."""
SPEED_TRACKING = 0.1
"""Share of each residual by which costs are scaled: it bounds how soon a slow drift is followed."""
SPEED_WINDOW = 5
"""Latest residuals, by whose median costs are scaled if it is large: it bounds how late a sudden change is noticed."""
MAX_PLAUSIBLE = 1e9
"""Bound of restored rows, thousands of context tokens, and seconds."""
# the first rows of each bin
_EDGES: list[int] = np.concatenate(
    [
        np.arange(1, MAX_EXACT_BIN + 1),
        *(1 + np.arange(low, 2 * low, max(8, low // 8)) for low in (32, 64, 128, 256)),
        np.geomspace(MAX_GRAPH_ROWS + 1, MAX_ROWS, int(np.log(MAX_ROWS / MAX_GRAPH_ROWS) / 0.1)).astype(int),
    ]
).tolist()
_STARTS = np.array([*_EDGES, MAX_ROWS + 1])


def _bin(rows: float) -> int:
    return bisect_right(_EDGES, min(rows, MAX_ROWS)) - 1


def _kind(rows: float, drafts: bool) -> int:
    """Which steps are kept with this one."""
    return 2 * _bin(rows) + drafts


class StepCost:
    """Seconds of a step: t = f(rows) + a * context + b * draft context, and a constant more if it has drafts.

    rows are the tokens that the step computes: one for each request and one for each draft token. f has no fixed form,
    since engines pad steps to captured sizes. Contexts are in thousands of tokens: those of all requests, and those of
    each draft token's request. The constant is what verification costs whatever its size, as where an engine leaves
    its graphs. It is seen in bins that have steps with drafts and without.

    The fit minimizes absolute deviations (by iterated weights) over the latest steps of each bin of rows. The budget
    picks the size that looks cheapest, which would favour bins with lucky steps. So f is the nearest nondecreasing
    curve.

    With a finite `memory` it follows a machine that changes: the weight of a step falls by a factor of e in as many
    steps, and all costs are scaled by a share of each residual of a known size, or at once by a large change that the
    latest residuals agree on.

    Args:
        memory: steps; by default nothing is forgotten.

    speed: product of the factors by which costs were scaled. context, draft_context: a and b, seconds per thousand
    tokens. verify: the constant, seconds.
    """

    def __init__(self, memory: float = math.inf) -> None:
        self.memory, self.speed = memory, 1.0
        self.context = self.draft_context = self.verify = 0.0
        # rows, context, draft context, seconds at a speed of 1, number of the step
        self._samples = np.zeros((2 * len(_EDGES), STEPS_PER_BIN, 5))  # of each bin, without drafts and with drafts
        self._count = [0] * len(self._samples)
        self._weight = [0.0] * len(self._samples)  # of a bin's steps at the last of them, which was step `_since`
        self._since = [0] * len(self._samples)
        self._now = self._next_fit = 0
        self._first = self._last = 0  # rows of the smallest and the largest fitted step
        self._seconds: Float64 = np.zeros(0)  # f of 0, 1, ... rows
        self._slope = 0.0  # seconds per row beyond these
        self._residuals: deque[float] = deque(maxlen=SPEED_WINDOW)  # of known sizes, as logarithms
        self._level = np.zeros(len(self._samples))  # f by a bin's own steps; 0: these are few

    @property
    def fitted(self) -> bool:
        return len(self._seconds) > 0

    @property
    def max_rows(self) -> int:
        """Rows of the largest fitted step."""
        return self._last

    def covers(self, rows: int) -> bool:
        """Whether `rows` lie between the fitted sizes."""
        return self.fitted and self._first <= rows <= self._last

    def learn(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        """`observe`, and `fit` if it is due: at first after few steps, later seldom."""
        self.observe(rows, context, draft_context, seconds)
        if self._now >= max(self._next_fit, SETTLED_WEIGHT):
            self.fit()
            self._next_fit = self._now + min(self._now, MAX_FIT_INTERVAL)

    def observe(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        """Record a step of `rows` >= 1."""
        self._now += 1
        level = self._level[_kind(rows, draft_context > 0)]
        if level and self.memory < math.inf:
            self._follow(math.log(seconds / (level + self._more_seconds(context, draft_context))))
        self._keep(rows, context, draft_context, seconds)

    def _follow(self, residual: float) -> None:
        """Scale all costs by a share of the residual, or by the median of the latest if that is large."""
        self._residuals.append(residual)
        median = sorted(self._residuals)[len(self._residuals) // 2]
        if len(self._residuals) == SPEED_WINDOW and abs(median) > MAX_RESIDUAL:
            self._residuals.clear()
            self._scale(math.exp(median))
        else:
            self._scale(math.exp(SPEED_TRACKING * min(max(residual, -MAX_RESIDUAL), MAX_RESIDUAL)))

    def _keep(self, rows: float, context: float, draft_context: float, seconds: float) -> None:
        i = _kind(rows, draft_context > 0)
        self._samples[i, self._count[i] % STEPS_PER_BIN] = rows, context, draft_context, seconds / self.speed, self._now
        self._count[i] += 1
        self._weight[i], self._since[i] = self._weight_now(i) + 1, self._now

    def _scale(self, factor: float) -> None:
        self.speed *= factor
        self.context *= factor
        self.draft_context *= factor
        self.verify *= factor
        self._seconds *= factor
        self._slope *= factor
        self._level *= factor

    def known(self, rows: int, drafts: bool) -> float:
        """Weight of the steps of about this many rows that had drafts, or that had none."""
        return self._weight_now(_kind(rows, drafts))

    def _weight_now(self, i: int) -> float:
        return self._weight[i] * math.exp((self._since[i] - self._now) / self.memory)

    def unsettled(self, rows: int, drafts: bool) -> bool:
        """Whether another such step would add information."""
        return self.known(rows, drafts) < SETTLED_WEIGHT

    @staticmethod
    def next_size(rows: int) -> int:
        """The next larger size for which an engine may capture graphs, or the end of the next bin."""
        if rows < MAX_EXACT_BIN:
            return 1 << rows.bit_length() if rows < 8 else rows // 8 * 8 + 8
        return _EDGES[min(_bin(rows + 1) + 1, len(_EDGES) - 1)] - 1

    def fit(self) -> None:
        """Fit the kept steps."""
        used = np.flatnonzero(self._count)
        if not len(used):
            return
        kept = np.minimum(np.array(self._count)[used], STEPS_PER_BIN)
        wide, place = np.unique(used // 2, return_inverse=True)
        bins = np.repeat(place, kept)
        rows, context, draft, seconds, step = self._samples[used][np.arange(STEPS_PER_BIN) < kept[:, None]].T
        seconds = seconds * self.speed
        fresh = np.exp((step - self._now) / self.memory)
        x = np.stack([context, draft, draft > 0])
        # few steps do not show a slope, nor what hardly varies among the steps of a bin
        shrink = (MIN_SLOPE_STEPS / np.maximum(1, np.count_nonzero(x, axis=1))) ** 2
        weights, slopes = fresh / seconds, np.zeros(3)
        for _ in range(6):
            total = np.bincount(bins, weights)
            *centred, deviation = (v - (np.bincount(bins, weights * v) / total)[bins] for v in (*x, seconds))
            ridge = shrink * (weights * x * x).sum(1)
            slopes = _nonnegative(weights * np.stack(centred), np.stack(centred), deviation, ridge, slopes)
            weights = fresh / np.maximum(np.abs(deviation - slopes @ np.stack(centred)), 0.002 * seconds + 1e-9)
        if not centred[2].any():
            slopes[2] = _guess_verify(rows, seconds - slopes[:2] @ x[:2], draft > 0)
        self.context, self.draft_context, self.verify = slopes.tolist()
        total = np.bincount(bins, weights)
        level = np.maximum(np.bincount(bins, weights * (seconds - slopes @ x)) / total, 1e-9)
        weight = np.bincount(bins, fresh).astype(float)
        self._level[:] = 0.0
        self._level[used] = np.where(weight >= SETTLED_WEIGHT, level, 0.0)[place]
        self._first, self._last = int(rows.min()), _EDGES[min(int(wide[-1]) + 1, len(_EDGES) - 1)] - 1
        self._tabulate(wide, np.bincount(bins, weights * rows) / total, level, weight)

    def _tabulate(self, bins: npt.NDArray[np.int64], centres: Float64, seconds: Float64, weight: Float64) -> None:
        """Set f: interpolated between bins, constant below, and proportional above, an upper bound of real costs.

        Args:
            bins: those that have steps, int64 [N].
            centres, seconds: mean rows of each and what it takes, float64 [N].
            weight: of its steps, float64 [N].
        """
        seconds = nondecreasing(seconds, weight)
        ends = np.stack([_STARTS[bins], _STARTS[bins + 1] - 1], 1)
        self._seconds = np.interp(np.arange(self._last + 1), ends.ravel(), np.repeat(seconds, 2))
        self._slope = float(seconds[-1]) / self._last

    def seconds(self, rows: int, context: float, draft_context: float) -> float:
        """Expected seconds of a step."""
        return self.size_cost(rows) + self._more_seconds(context, draft_context)

    def _more_seconds(self, context: float, draft_context: float) -> float:
        """Seconds that contexts and verification add to f."""
        return self.context * context + self.draft_context * draft_context + self.verify * (draft_context > 0)

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """f(rows), seconds, for an array of whole numbers."""
        rows, last = np.asarray(rows).astype(np.int64), len(self._seconds) - 1
        costs: Float64 = self._seconds[np.minimum(rows, last)] + self._slope * np.maximum(rows - last, 0)
        return costs

    def size_cost(self, rows: int) -> float:
        """f(rows) of one size: `rows_cost`, several times as fast."""
        last = len(self._seconds) - 1
        return float(self._seconds[min(rows, last)]) + self._slope * max(rows - last, 0)

    def state(self) -> dict[str, Any]:
        """The kept steps, as JSON can hold them: for each bin a list of rows, contexts and seconds, oldest first."""
        samples = []
        for i in np.flatnonzero(self._count).tolist():
            kept = self._samples[i, : self._count[i]]
            kept = kept[np.argsort(kept[:, 4], kind="stable"), :4] * [1, 1, 1, self.speed]
            samples.append(kept.tolist())
        return {"samples": samples}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; raises ValueError for anything else."""
        try:
            steps = [np.asarray(samples, float).reshape(-1, 4)[:STEPS_PER_BIN] for samples in state["samples"]]
            for values in steps:
                plausible = ((values >= 0) & (values < MAX_PLAUSIBLE)).all() and (values[:, [0, 3]] > 0).all()
                if not len(values) or not plausible:
                    raise ValueError
        except (KeyError, TypeError, ValueError):
            raise ValueError("this is no record of step costs") from None
        for row in np.concatenate(steps) if steps else ():
            self._keep(*row)
        self.fit()


class PromptCost(StepCost):
    """StepCost of steps that read prompts, whose tokens count as rows too.

    Such steps have many rows, seldom equally many, and few of them are drafts, whose cost a bin that is a tenth wide
    would hide. So beyond MAX_GRAPH_ROWS rows, and outside the fitted sizes, f is a straight line. Its slope is at most
    the mean seconds per row, and equal to it if sizes differ too little to show one.
    """

    def _tabulate(self, bins: npt.NDArray[np.int64], centres: Float64, seconds: Float64, weight: Float64) -> None:
        super()._tabulate(bins, centres, seconds, weight)
        beyond = centres > MAX_GRAPH_ROWS
        if beyond.any():
            centres, seconds = centres[beyond], seconds[beyond]
        centre, mean = float(centres.mean()), float(seconds.mean())
        away, per_row = centres - centre, mean / centre
        prior = len(centres) * (MIN_ROW_SPREAD * centre) ** 2
        slope = (float(away @ seconds) + prior * per_row) / (float(away @ away) + prior)
        self._slope = min(max(0.0, slope), per_row)
        f, rows, first = self._seconds, np.arange(self._last + 1), self._first
        f[:first] = np.maximum(f[first] - self._slope * (first - rows[:first]), f[first] * rows[:first] / first)
        if beyond.any():
            f[MAX_GRAPH_ROWS + 1 :] = mean + self._slope * (rows[MAX_GRAPH_ROWS + 1 :] - centre)


class Expected:
    """Expected cost of the next step by its rows without prompts: the mean over the prompt tokens that it may read.

    Args:
        plain: of steps that read no prompt.
        prompt: of steps that read one.
        prompt_tokens: equally probable numbers of prompt tokens.
    """

    def __init__(self, plain: StepCost, prompt: PromptCost, prompt_tokens: Sequence[int]) -> None:
        self._costs = [(n, prompt if n else plain, count) for n, count in Counter(prompt_tokens).items()]
        self._total = len(prompt_tokens)
        self.context, self.draft_context = plain.context, plain.draft_context
        self.verify = sum(cost.verify * count for _, cost, count in self._costs) / self._total

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """Seconds, for an array of whole numbers."""
        rows = np.asarray(rows)
        seconds = (count * cost.rows_cost(rows + n) for n, cost, count in self._costs)
        return sum(seconds, np.zeros(rows.shape)) / self._total

    def size_cost(self, rows: int) -> float:
        """Of one size."""
        return float(self.rows_cost(rows))


def _nonnegative(weighted: Float64, x: Float64, t: Float64, ridge: Float64, slopes: Float64) -> Float64:
    """Weighted ridge regression of t on the rows of x, no slope negative: float64 [3], by coordinate descent.

    Args:
        weighted: x times the weights.
        slopes: to begin with.
    """
    gram = weighted @ x.T + np.diag(ridge)
    moments = weighted @ t
    slopes = slopes.copy()
    for _ in range(5):
        for j in np.flatnonzero(gram.diagonal() > 0).tolist():
            slopes[j] = max(0.0, slopes[j] + (moments[j] - gram[j] @ slopes) / gram[j, j])
    return slopes


def _guess_verify(rows: Float64, seconds: Float64, drafts: npt.NDArray[np.bool_]) -> float:
    """Seconds by which the line through the steps with drafts lies above the plain steps of the nearest size.

    0 if it is too little to tell, or if the steps with drafts have one size only. Arguments: [steps].
    """
    if drafts.all() or not drafts.any():
        return 0.0
    plain = rows[~drafts]
    nearest = plain[np.argmin(np.abs(plain - np.median(rows[drafts])))]
    level = float(np.median(seconds[~drafts & (rows == nearest)]))
    low = drafts & (rows <= 2 * max(nearest, rows[drafts].min()))
    if len(np.unique(rows[low])) < 2:
        return 0.0
    slope = max(0.0, float(np.polyfit(rows[low], seconds[low], 1)[0]))
    more = float(np.median(seconds[low] - slope * (rows[low] - nearest))) - level
    return more if more > MIN_VERIFY * level else 0.0


def nondecreasing(y: Float64, weight: Float64) -> Float64:
    """The nearest nondecreasing sequence in weighted least squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # value, weight, length
    for value, w in zip(y.tolist(), weight.tolist(), strict=True):
        n = 1
        while blocks and blocks[-1][0] > value:
            before, more, length = blocks.pop()
            value, w, n = (before * more + value * w) / (more + w), more + w, n + length
        blocks.append((value, w, n))
    return np.concatenate([np.full(n, value) for value, _, n in blocks])
