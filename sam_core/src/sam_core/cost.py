# SPDX-License-Identifier: Apache-2.0
"""What an engine step costs, learned from the steps themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

EXACT = 32
"""Up to this many rows a step has a bin of its own; beyond it bins are a tenth of their rows wide."""
KEPT = 24
"""Steps that a bin keeps, the latest."""
LAST = 1 << 16
SANE = 1e9
"""Rows, thousands of tokens and seconds are below this."""
SPREAD = 0.03
"""Relative spread of contexts below which their slopes shrink to nothing."""
NEW = 1.5
"""A size's first step is left out if it takes this many times what others make one expect."""
EVERY = 6
"""Up to this many rows each number is timed alone; a CPU takes longer for 2 rows than for 3."""
SMOOTH = 30.0
"""Steps' worth of trust in the neighbours of a larger bin."""
WIDTH = 0.2
"""Of the neighbourhood, in log rows (standard deviation)."""
_EDGES = np.unique(
    np.concatenate(
        [np.arange(1, EXACT + 1), np.geomspace(EXACT + 1, LAST, int(np.log(LAST / EXACT) / 0.1)).astype(int)]
    )
)


def _bin(rows: float) -> int:
    return int(np.searchsorted(_EDGES, min(rows, LAST), side="right")) - 1


class StepCost:
    """Seconds of a step as t = f(rows) + a * context + b * draft context.

    rows: tokens that the step computes, one for each request and one for each draft token. f has no fixed form: engines
    pad to captured sizes, and a CPU is flat up to its cache's width. Contexts are in thousands of tokens: of all
    requests, and of each draft token's request, which attention reads once more for it.

    Robust: least absolute deviations (iterated weights), over the latest steps of each bin of rows but the slowest. The budget picks the
    size that looks cheapest, so a bin that was lucky would be picked for its luck: bins are drawn towards a smooth and
    nondecreasing curve through their neighbours, the less the more steps they have. Memory is bounded by the bins. A fit
    takes about a millisecond; the caller chooses when.
    """

    def __init__(self) -> None:
        self._samples = np.zeros((len(_EDGES), KEPT, 4))  # rows, context, draft context, seconds
        self._count = np.zeros(len(_EDGES), np.int64)
        self._met = np.zeros(len(_EDGES), bool)
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

    def covers(self, rows: int) -> bool:
        """Whether `rows` lies between what was fitted; beyond it, costs are estimates from above."""
        return self.fitted and self._rows[0] <= rows <= self.most_rows

    def observe(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        """Record a step; `rows` at least 1. The first of a bin is left out if it is slow: engines compile for new sizes."""
        i = _bin(rows)
        new, self._met[i] = not self._met[i], True
        if new and self.fitted and seconds > NEW * self.seconds(rows, context, draft_context):
            return
        self._keep(i, rows, context, draft_context, seconds)

    def _keep(self, i: int, rows: float, context: float, draft_context: float, seconds: float) -> None:
        self._samples[i, self._count[i] % KEPT] = rows, context, draft_context, seconds
        self._count[i] += 1

    def seen(self, rows: int) -> int:
        """Steps recorded so far in the bin of this many rows."""
        return int(self._count[_bin(rows)])

    def fit(self) -> None:
        """Fit all that is kept."""
        kept = np.minimum(self._count, KEPT)
        used = np.flatnonzero(kept)
        if not len(used):
            return
        bins = np.repeat(np.arange(len(used)), kept[used])
        rows, context, draft, seconds = np.concatenate([self._samples[i, : kept[i]] for i in used]).T
        weights = np.ones(len(bins))
        a = b = 0.0
        for _ in range(8):
            total = np.bincount(bins, weights)
            means = [np.bincount(bins, weights * x) / total for x in (context, draft, seconds)]
            c, d, t = (x - mean[bins] for x, mean in zip((context, draft, seconds), means, strict=True))
            # a context that hardly varies among steps of as many rows says nothing about its slope
            ridge = (SPREAD**2) * np.array([(weights * x * x).sum() for x in (context, draft)])
            a, b = _slopes(weights, c, d, t, ridge)
            residual = t - a * c - b * d
            weights = 1.0 / np.maximum(np.abs(residual), 0.002 * seconds + 1e-9)
        slowest = np.lexsort((residual, bins))[np.cumsum(kept[used]) - 1]
        weights[slowest[kept[used] > 1]] = 0.0
        level = np.bincount(bins, weights * (seconds - a * context - b * draft)) / np.bincount(bins, weights)
        centre = np.bincount(bins, rows) / np.bincount(bins)
        self.context, self.draft_context = a, b
        self._rows, self._seconds = centre, _drawn_together(centre, np.maximum(level, 1e-9), kept[used].astype(float))

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
        return {"samples": [self._oldest_first(i).tolist() for i in used]}

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


def _drawn_together(rows: Float64, y: Float64, weight: Float64) -> Float64:
    """y of each bin, drawn towards local lines through its neighbours; the smallest bins stay as they are."""
    near = np.log(rows)[None, :] - np.log(rows)[:, None]
    kernel = weight * np.exp(-0.5 * (near / WIDTH) ** 2)
    s0, s1, s2 = kernel.sum(1), (kernel * near).sum(1), (kernel * near * near).sum(1)
    t0, t1 = kernel @ y, (kernel * near) @ y
    determinant = s0 * s2 - s1 * s1
    line = determinant > 1e-9 * s0 * s2
    smooth = np.where(line, (s2 * t0 - s1 * t1) / np.where(line, determinant, 1.0), t0 / s0)
    smooth = _nondecreasing(np.maximum(smooth, 1e-9), weight)
    trust = np.where(rows <= EVERY, 0.0, SMOOTH)
    return (weight * y + trust * smooth) / (weight + trust)


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
