# SPDX-License-Identifier: Apache-2.0
"""What an engine step costs, learned from the steps themselves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

EXACT = 32
"""Up to this many rows a step has a bin of its own; beyond it bins are about a tenth of their rows wide. Up to 512 they
end where engines capture graphs."""
KEPT = 24
"""Steps that a bin keeps, the latest."""
GAP = 4
"""Steps between two that a full bin keeps, where old steps are forgotten: so they span contexts that grow."""
LAST = 1 << 16
SANE = 1e9
"""Rows, thousands of tokens and seconds are below this."""
SPREAD = 0.03
"""Relative spread of contexts below which their slopes shrink to nothing."""
FEW = 2.0
"""Steps of which slopes of contexts shrink to a half and less."""
GRAPHS = 512
"""Rows up to which engines capture graphs."""
NARROW = 0.15
"""Relative spread of rows below which their slope is that of a step whose cost is all in its rows."""
NEW = 1.5
"""A size's first step is left out if it takes this many times what others make one expect."""
EVERY = 6
"""Up to this many rows each number is timed alone; a CPU takes longer for 2 rows than for 3."""
SMOOTH, ROUGH = 30.0, 0.5
"""Most and least trust in the neighbours, in steps: the less the more bins differ from them than steps of a bin differ."""
WIDTH = 0.2
"""Of the neighbourhood, in log rows (standard deviation)."""
OUTLIER = 4.0
"""A bin's slowest step is left out if it takes this many times the usual noise longer."""
OLD = 1 / 12
"""Least weight of a kept step, however old: a size that was not met for long is better known than not at all."""
FIRST_FIT, FIT = 4, 32
"""Steps to the first fit, and at most between two, of a cost that learns."""
RECENT = 5
"""Steps whose median tells that the machine's speed has changed."""
JUMP = 0.12
"""Least change of speed that is noticed, in the logarithm; and three times the usual residual."""
AGED = 0.5
"""Of `memory`, by which all that is kept ages when the speed changes."""
FOLLOW = 0.1
"""Share of a known size's residual by which all that is kept follows the machine's speed; of a residual up to JUMP."""
SETTLED = 3.0
"""Steps, by weight, from which on a size is known,"""
APART = 16
"""if as many steps lie between them."""
_EDGES = np.concatenate(
    [
        np.arange(1, EXACT + 1),
        *(1 + np.arange(low, 2 * low, max(8, low // 8)) for low in (32, 64, 128, 256)),
        np.geomspace(513, LAST, int(np.log(LAST / 512) / 0.1)).astype(int),
    ]
)


def _bin(rows: float) -> int:
    return int(np.searchsorted(_EDGES, min(rows, LAST), side="right")) - 1


class StepCost:
    """Seconds of a step as t = f(rows) + a * context + b * draft context.

    rows: tokens that the step computes, one for each request and one for each draft token. f has no fixed form: engines
    pad to captured sizes, and a CPU is flat up to its cache's width. Contexts are in thousands of tokens: of all
    requests, and of each draft token's request, which attention reads once more for it.

    Robust: least absolute deviations (iterated weights), over the latest steps of each bin of rows but the slowest if it
    stands out. The budget picks the size that looks cheapest, so a bin that was lucky would be picked for its luck: bins
    are drawn towards a smooth and nondecreasing curve through their neighbours, the less the more steps they have and the
    more bins differ from such a curve. Within bins f rises by as much of the curve's slope as steps show, in padded sizes by
    none. Memory is bounded by the bins. A fit takes about a millisecond; the caller chooses when.

    A machine changes. With a finite `memory` a step's weight falls by e in as many steps, and all that is kept is scaled
    by what known sizes take longer or shorter than expected: slowly, or at once where the latest steps agree that it is
    much; then it is trusted less, too. Contexts that grow together are followed in the same way as far as their slope cannot
    be told from within bins.

    Args:
        memory: steps; by default nothing is forgotten.
    """

    def __init__(self, memory: float = math.inf) -> None:
        self.memory = memory
        self._jumped = False
        self._since_fit, self._interval = 0, FIRST_FIT
        self._samples = np.zeros((len(_EDGES), KEPT, 5))  # rows, context, draft context, seconds, when
        self._count = np.zeros(len(_EDGES), np.int64)
        self._met = np.zeros(len(_EDGES), bool)
        self._level = np.full(len(_EDGES), math.nan)  # f of the bins whose steps the fit tells
        self._weight = np.zeros(len(_EDGES))  # at the time `_since`
        self._since = np.zeros(len(_EDGES))
        self._now = 0.0
        self._recent: deque[tuple[int, int, float]] = deque(maxlen=RECENT)  # bin, index in it or -1, log residual
        self._usual = 0.02  # absolute log residual
        self.context = self.draft_context = 0.0
        self._rows: Float64 = np.empty(0)
        self._seconds: Float64 = np.empty(0)

    @property
    def fitted(self) -> bool:
        return len(self._rows) > 0

    @property
    def most_rows(self) -> float:
        """Rows of the largest step that was fitted."""
        return float(self._rows[-1])

    def covers(self, rows: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether rows lie between what was fitted; beyond it, costs are estimates from above."""
        rows = np.asarray(rows)
        return (rows >= self._rows[0]) & (rows <= self._rows[-1]) if self.fitted else np.zeros(rows.shape, bool)

    def learn(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        """`observe`, and `fit` where it is time for it."""
        self.observe(rows, context, draft_context, seconds)
        self._since_fit += 1
        if self._since_fit >= self._interval or self._jumped:
            self.fit()
            self._interval = min(2 * self._interval, FIT)
            self._since_fit, self._jumped = 0, False

    def observe(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        """Record a step; `rows` at least 1. The first of a bin is left out if it is slow: engines compile for new sizes."""
        self._now += 1
        i = _bin(rows)
        new, self._met[i] = not self._met[i], True
        if not self.fitted:
            self._keep(i, rows, context, draft_context, seconds)
            return
        of_rows = float(self.rows_cost(rows))
        ratio = seconds / (of_rows + self.context * context + self.draft_context * draft_context)
        if new and ratio > NEW:
            return
        index = -1
        settled = self.memory < math.inf and abs(of_rows - self._level[i]) < JUMP / 2 * of_rows
        if settled:
            self._scale(math.exp(FOLLOW * min(max(math.log(ratio), -JUMP), JUMP)))
        if self.memory == math.inf or self._count[i] < KEPT or self._now - self._since[i] >= GAP:
            index = self._keep(i, rows, context, draft_context, seconds)
        if self.memory < math.inf:
            self._recent.append((i, index, math.log(ratio) if settled else math.nan))
            self._notice()

    def _keep(self, i: int, rows: float, context: float, draft_context: float, seconds: float) -> int:
        index = int(self._count[i] % KEPT)
        self._samples[i, index] = rows, context, draft_context, seconds, self._now
        self._count[i] += 1
        gap = (self._now - self._since[i]) / APART if self._count[i] > 1 else 1.0
        self._weight[i] = min(1.0, gap) + self._weight[i] * self._faded(self._since[i])
        self._since[i] = self._now
        return index

    def _faded(self, since: float) -> float:
        return math.exp((since - self._now) / self.memory)

    def _notice(self) -> None:
        """Whether the latest steps of known sizes tell of another speed."""
        latest = self._recent[-1][2]
        residuals = sorted(x for _, _, x in self._recent if x == x)
        if latest != latest or len(residuals) < RECENT - 1:
            return
        change = residuals[(len(residuals) - 1) // 2] if latest > 0 else residuals[len(residuals) // 2]
        if change * latest > 0 and abs(change) > max(JUMP, 3 * self._usual):
            self._jump(change)
        else:
            self._usual += 0.03 * (min(abs(latest), 0.3) - self._usual)

    def _scale(self, factor: float) -> None:
        self._samples[:, :, 3] *= factor
        self._seconds = self._seconds * factor
        self._level *= factor
        self.context *= factor
        self.draft_context *= factor

    def _jump(self, change: float) -> None:
        factor = math.exp(change)
        after = [x / change > 0.5 for _, _, x in self._recent]
        since = [(i, index) for i, index, _ in list(self._recent)[after.index(True) :] if index >= 0]
        self._scale(factor)
        for i, index in since:
            self._samples[i, index, 3] /= factor
        self._now += AGED * self.memory
        for i, index in since:
            self._samples[i, index, 4] = self._now
        self._recent.clear()
        self._jumped = True

    def known(self, rows: int) -> float:
        """Steps recorded of about so many rows, less what was forgotten of them; those close together are as one."""
        i = _bin(rows)
        return float(self._weight[i]) * self._faded(self._since[i])

    def unsettled(self, rows: int) -> bool:
        """Whether another step of so many rows would tell something new."""
        known = self.known(rows)
        return known < SETTLED and (known < 1 or self._now - self._since[_bin(rows)] >= APART)

    @staticmethod
    def next_size(rows: int) -> int:
        """The next larger size for which an engine may capture graphs, or the end of the next bin."""
        if rows < EXACT:
            return 1 << rows.bit_length() if rows < 8 else rows // 8 * 8 + 8
        return int(_EDGES[min(_bin(rows + 1) + 1, len(_EDGES) - 1)]) - 1

    def fit(self) -> None:
        """Fit all that is kept."""
        kept = np.minimum(self._count, KEPT)
        used = np.flatnonzero(kept)
        if not len(used):
            return
        kept = kept[used]
        bins = np.repeat(np.arange(len(used)), kept)
        rows, context, draft, seconds, when = self._samples[used][np.arange(KEPT) < kept[:, None]].T
        fresh = np.maximum(np.exp((when - self._now) / self.memory), OLD)
        weights = fresh / seconds
        shrink = SPREAD**2 + (FEW / np.maximum(1, [(x > 0).sum() for x in (context, draft)])) ** 2
        a = b = 0.0
        for _ in range(6):
            total = np.bincount(bins, weights)
            c, d, t = (x - (np.bincount(bins, weights * x) / total)[bins] for x in (context, draft, seconds))
            # contexts that hardly vary among steps of as many rows, or of few steps, say nothing about their slope
            ridge = shrink * np.array([(weights * x * x).sum() for x in (context, draft)])
            a, b = _slopes(weights, c, d, t, ridge)
            residual = t - a * c - b * d
            weights = fresh / np.maximum(np.abs(residual), 0.002 * seconds + 1e-9)
        noise = 1.5 * float(np.median(np.abs(residual / seconds)[kept[bins] > 2])) if (kept > 2).any() else 0.0
        slowest = np.lexsort((residual, bins))[np.cumsum(kept) - 1]
        slow = residual[slowest] > OUTLIER * max(noise, 0.005) * seconds[slowest]
        weights[slowest[(kept > 1) & slow]] = 0.0
        seconds = seconds - a * context - b * draft
        total = np.bincount(bins, weights)
        level = np.bincount(bins, weights * seconds) / total
        centre = np.bincount(bins, weights * rows) / total
        self.context, self.draft_context = a, b
        self._rows = centre
        level = np.maximum(level, 1e-9)
        size = np.bincount(bins, fresh)
        self._seconds = _drawn_together(centre, level, size, max(noise, 0.005))
        self._level[:] = math.nan
        settled = (size >= SETTLED) & (np.abs(self._seconds / level - 1) < JUMP / 2)
        self._level[used[settled]] = level[settled]
        if centre[-1] > EXACT:
            self._spread(used, np.sqrt(weights), bins, rows - centre[bins], seconds - level[bins])

    def _spread(self, used: npt.NDArray[np.int64], w: Float64, bins: Any, rows: Float64, seconds: Float64) -> None:
        """Wide bins end in steps where sizes are padded: by how much of the curve's slope there is within bins."""
        slope = np.gradient(self._seconds, self._rows) if len(used) > 1 else np.zeros(1)
        expected = slope[bins] * rows
        square = (w * w * expected * expected).sum()
        prior = 0.1 * square + 1e-30
        share = ((w * w * expected * seconds).sum() + prior) / (square + prior)
        slope *= min(max(share, 0.0), 1.0)
        first, last = _EDGES[used], np.append(_EDGES, LAST + 1)[used + 1] - 1
        ends = np.stack([first, last], 1)
        level = self._seconds[:, None] + slope[:, None] * (ends - self._rows[:, None])
        single = np.stack([first > 0, last > first], 1)
        self._rows, self._seconds = ends[single].astype(float), np.maximum(level[single], 1e-9)

    def seconds(self, rows: int, context: float, draft_context: float) -> float:
        """What a step is expected to take."""
        return float(self.rows_cost(rows)) + self.context * context + self.draft_context * draft_context

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """f(rows), seconds, for an array of rows.

        Between what was seen it is interpolated; below, it is that of the fewest rows seen. Beyond, each row is taken to
        cost as much as a row did on average, which no step exceeds whose fixed cost is positive.
        """
        rows = np.asarray(rows, float)
        inside = np.interp(rows, self._rows, self._seconds)
        return np.where(rows > self._rows[-1], self._seconds[-1] * rows / self._rows[-1], inside)

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON can hold it."""
        used = np.flatnonzero(self._count)
        return {"samples": [self._oldest_first(i)[:, :4].tolist() for i in used]}

    def _oldest_first(self, i: int) -> Float64:
        count = int(self._count[i])
        return self._samples[i, :count] if count <= KEPT else np.roll(self._samples[i], -count, axis=0)

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave; ValueError if it is none. What this process has not met may still be slow at first."""
        try:
            for samples in state["samples"]:
                values = np.asarray(samples, float).reshape(-1, 4)[:KEPT]
                if not ((values >= 0) & (values < SANE)).all() or (values[:, 0] < 1).any() or (values[:, 3] <= 0).any():
                    raise ValueError
                i = _bin(values[0, 0])
                for row in values:
                    self._keep(i, *row)
        except (KeyError, TypeError, ValueError, IndexError):
            raise ValueError("this is no record of step costs") from None
        self.fit()


class PromptCost(StepCost):
    """The same of steps that read prompts; rows: those tokens, too.

    Their rows are many and seldom as many as before, and few of them are drafts: a bin that is a tenth wide would hide
    what those cost. So beyond GRAPHS rows, and outside of what was met, a straight line tells. It takes no more for a row
    than its share of the step, and as much where sizes differ too little to tell.
    """

    def fit(self) -> None:
        super().fit()
        beyond = self._rows > GRAPHS
        rows, seconds = (x[beyond] if beyond.any() else x for x in (self._rows, self._seconds))
        self._centre, self._mean = float(rows.mean()), float(seconds.mean())
        away, share = rows - self._centre, self._mean / self._centre
        prior = len(rows) * (NARROW * self._centre) ** 2
        slope = (float(away @ seconds) + prior * share) / (float(away @ away) + prior)
        self._slope = min(max(0.0, slope), share)

    def _scale(self, factor: float) -> None:
        super()._scale(factor)
        self._mean *= factor
        self._slope *= factor

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """f(rows), seconds, for an array of rows."""
        rows = np.asarray(rows, float)
        first, last = self._rows[0], self._rows[-1]
        inside = np.interp(rows, self._rows, self._seconds)
        near = inside + self._slope * (np.maximum(rows - last, 0.0) + np.minimum(rows - first, 0.0))
        near = np.maximum(near, self._seconds[0] * np.minimum(rows / first, 1.0))
        line = self._mean + self._slope * (rows - self._centre)
        return np.where((rows > GRAPHS) & (last > GRAPHS), line, near)


class Expected:
    """What the next step is expected to cost by its rows without prompts: the mean over what it may read beside them.

    Sizes that only steps without prompts had are taken to cost as much beside prompts.

    Args:
        plain: of steps that read no prompt.
        prompt: of those that do.
        read: for each case, tokens of prompts in it.
    """

    def __init__(self, plain: StepCost, prompt: PromptCost, read: Sequence[int]) -> None:
        self._plain, self._prompt, self._read = plain, prompt, read
        self.context, self.draft_context = plain.context, plain.draft_context

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        rows = np.asarray(rows, float)
        return sum((self._seconds(rows, more) for more in self._read), start=np.zeros(rows.shape)) / len(self._read)

    def _seconds(self, rows: Float64, read: int) -> Float64:
        if not read:
            return self._plain.rows_cost(rows)
        rows = rows + read
        of_plain = self._plain.covers(rows) & ~self._prompt.covers(rows)
        return np.where(of_plain, self._plain.rows_cost(rows), self._prompt.rows_cost(rows))


def _slopes(w: Float64, c: Float64, d: Float64, t: Float64, ridge: Float64) -> tuple[float, float]:
    """Weighted ridge regression of t on c and d, neither slope negative."""
    cc, dd, cd = (w * c * c).sum() + ridge[0], (w * d * d).sum() + ridge[1], (w * c * d).sum()
    ct, dt = (w * c * t).sum(), (w * d * t).sum()
    determinant = cc * dd - cd * cd
    if determinant > 1e-9 * cc * dd:
        a, b = (dd * ct - cd * dt) / determinant, (cc * dt - cd * ct) / determinant
        if a >= 0 and b >= 0:
            return float(a), float(b)
    a = max(0.0, ct / cc) if cc > 0 else 0.0
    b = max(0.0, dt / dd) if dd > 0 else 0.0
    # of the two models with one slope, the one that explains more
    return (float(a), 0.0) if a * ct >= b * dt else (0.0, float(b))


def _drawn_together(rows: Float64, y: Float64, weight: Float64, noise: float) -> Float64:
    """y of each bin, drawn towards local lines through its neighbours.

    weight: steps of a bin. noise: relative, of a step.
    """
    near = np.log(rows)[None, :] - np.log(rows)[:, None]
    kernel = weight * np.exp(-0.5 * (near / WIDTH) ** 2)
    s0, s1, s2 = kernel.sum(1), (kernel * near).sum(1), (kernel * near * near).sum(1)
    t0, t1 = kernel @ y, (kernel * near) @ y
    determinant = s0 * s2 - s1 * s1
    line = determinant > 1e-9 * s0 * s2
    smooth = np.where(line, (s2 * t0 - s1 * t1) / np.where(line, determinant, 1.0), t0 / s0)
    smooth = _nondecreasing(np.maximum(smooth, 1e-9), weight)
    differ = 1.5 * float(np.median(np.abs(y / smooth - 1)))
    rough = differ**2 - noise**2 / float(np.median(weight))
    trust = min(max(noise**2 / rough, ROUGH), SMOOTH) if rough > 0 else SMOOTH
    trusts = np.where(rows <= EVERY, min(trust, ROUGH), trust)
    weight = weight * np.maximum(0.0, weight - 1) / (weight + 1)  # a single step may be anything
    return (weight * y + trusts * smooth) / (weight + trusts)


def _nondecreasing(y: Float64, weight: Float64) -> Float64:
    """The nearest nondecreasing sequence in weighted least squares (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value, w in zip(y, weight, strict=True):
        blocks.append([value, w, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            v, x, n = blocks.pop()
            blocks[-1] = [
                (blocks[-1][0] * blocks[-1][1] + v * x) / (blocks[-1][1] + x),
                blocks[-1][1] + x,
                blocks[-1][2] + n,
            ]
    return np.concatenate([np.full(int(n), v) for v, _, n in blocks])
