# SPDX-License-Identifier: Apache-2.0
"""Gains of an arm over all batches, with intervals by bootstrap over batches, which share no prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_lab.engine_replay.report import BINS
from sam_lab.evidence.jobs import Steps
from sam_lab.evidence.rollout import FIELDS, column
from sam_lab.evidence.worlds import World

Float64 = npt.NDArray[np.float64]
Interval = list[float]
"""Value, lower and upper end of the interval of 95 %; of one batch, the value alone."""

RESAMPLES = 4000
TAIL = 8
"""Most requests that run in the tail: the article's threshold."""


def resamples(batches: int) -> npt.NDArray[np.int64]:
    """int64 [RESAMPLES + 1, batches]: batches drawn with replacement; first all of them, the only row of one batch."""
    drawn = np.random.default_rng(20).integers(batches, size=(RESAMPLES if batches > 1 else 0, batches))
    return np.concatenate([np.arange(batches)[None], drawn])


def interval(values: Float64) -> Interval:
    """Of a statistic by row of `resamples`."""
    ends = np.nanquantile(values[1:], (0.025, 0.975)) if len(values) > 1 else ()
    return [round(float(x), 4) for x in (values[0], *ends)]


def seconds(steps: Steps, world: World) -> Float64:
    """Of each batch."""
    return np.array([world.seconds(of_batch).sum() for of_batch in steps])


def pooled(base: Float64, other: Float64) -> Interval:
    """Time of all batches by `base` over that by `other`, seconds of each batch."""
    drawn = resamples(len(base))
    return interval(base[drawn].sum(1) / other[drawn].sum(1))


def summary(plain: Steps, arm: Steps, world: World) -> dict[str, Any]:
    """Gains of an arm against plain decoding of the same batches.

    pooled, median, worst: time of the rollout, plain over arm: of all batches together, and of single ones; worst has
    no interval. tail: tokens a second while at most TAIL requests run, over plain's. accepted: of the tokens drafted
    for steps that only decode; None without any.
    """
    base, own = seconds(plain, world), seconds(arm, world)
    gains = base / own
    steps = np.concatenate(arm)
    decoding = steps[column(steps, "prompt") == 0]
    drafted = column(decoding, "drafted").sum()
    return {
        "pooled": pooled(base, own),
        "median": interval(np.median(gains[resamples(len(base))], 1)),
        "worst": round(float(gains.min()), 4),
        "tail": rate_ratio(plain, arm, world, 1, TAIL),
        "steps": len(steps),
        "tokens_per_step": round(float(column(decoding, "emitted").sum() / column(decoding, "running").sum()), 3),
        "accepted": round(float((column(decoding, "emitted") - column(decoding, "running")).sum() / drafted), 3)
        if drafted
        else None,
        "tokens": int(column(steps, "emitted").sum()),
    }


def by_running(plain: Steps, arm: Steps, world: World) -> dict[str, Interval]:
    """Tokens a second over plain's, by requests running."""
    found = {name: rate_ratio(plain, arm, world, *limits) for name, limits in BINS.items()}
    return {name: ratio for name, ratio in found.items() if ratio}


def foreseen(steps: Steps) -> Steps:
    """The same steps, had only those draft tokens been verified that were accepted; in steps that read prompts, none.

    Where an arm drafts in every step, no choice of how much to verify of its drafts takes less time.
    """
    found = []
    for of_batch in steps:
        own = of_batch.copy()
        drafted = column(own, "drafted")
        accepted = np.where(column(own, "prompt") == 0, column(own, "emitted") - column(own, "running"), 0)
        own[:, FIELDS.index("rows")] += accepted - drafted
        own[:, FIELDS.index("draft_context")] = column(own, "draft_context") * accepted // np.maximum(drafted, 1)
        own[:, FIELDS.index("drafted")] = accepted
        found.append(own)
    return found


def rate_ratio(plain: Steps, arm: Steps, world: World, first: float, last: float) -> Interval | None:
    """Tokens a second while `first` to `last` requests run, arm over plain; None where one has no such step."""
    drawn = resamples(len(plain))

    def rates(steps: Steps) -> Float64:
        tokens, time = (_inside(steps, first, last, of) for of in (lambda s: column(s, "emitted"), world.seconds))
        with np.errstate(invalid="ignore", divide="ignore"):
            return tokens[drawn].sum(1) / time[drawn].sum(1)

    ratios = rates(arm) / rates(plain)
    return interval(ratios) if np.isfinite(ratios[0]) else None


def _inside(steps: Steps, first: float, last: float, of: Callable[[Any], Any]) -> Float64:
    """Sum over the decoding steps of each batch with so many requests."""
    sums = []
    for of_batch in steps:
        running = column(of_batch, "running")
        inside = (running >= first) & (running <= last) & (column(of_batch, "prompt") == 0)
        sums.append(float(np.sum(of(of_batch)[inside])))
    return np.array(sums)
