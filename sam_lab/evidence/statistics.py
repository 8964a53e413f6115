# SPDX-License-Identifier: Apache-2.0
"""Gains of an arm on all answers of a set, with intervals by bootstrap over tasks.

A step's time is shared equally by the requests that run in it. So each answer has a time, and so has each task; the
sum is the time of the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_lab.engine_replay.report import BINS
from sam_lab.evidence.devices import Device
from sam_lab.evidence.rollout import Timeline, column

Float64 = npt.NDArray[np.float64]
Interval = list[float]
"""Value, lower and upper end of the 95 % interval; for a single task only the value."""

RESAMPLES = 4000
TAIL = 8
"""Maximum requests that run in the tail: the article's threshold."""


def seconds(rollouts: Sequence[Timeline], device: Device) -> Float64:
    """Seconds of each answer: the sum of its shares of the steps in which it ran."""
    found = []
    for steps, spans in rollouts:
        share = device.seconds(steps) / column(steps, "running")
        until = np.concatenate([[0.0], np.cumsum(share)])
        found.append(until[spans[:, 1] + 1] - until[spans[:, 0]])
    return np.concatenate(found)


def by_task(of_answers: Float64, tasks: Sequence[str]) -> Float64:
    """The sum over each task's answers, in the order of the tasks' names."""
    names, index = np.unique(np.array(tasks), return_inverse=True)
    return np.bincount(index, of_answers, len(names)).astype(np.float64)


def pooled(base: Float64, other: Float64) -> Interval:
    """Total time of `base` over that of `other`; both hold the seconds of each task."""
    drawn = np.random.default_rng(20).integers(len(base), size=(RESAMPLES, len(base)))
    ends = np.quantile(base[drawn].sum(1) / other[drawn].sum(1), (0.025, 0.975)) if len(base) > 1 else ()
    return [round(float(x), 4) for x in (base.sum() / other.sum(), *ends)]


def summary(plain: Sequence[Timeline], arm: Sequence[Timeline], device: Device, tasks: Sequence[str]) -> dict[str, Any]:
    """Gains of an arm against plain decoding of the same answers.

    pooled: time of the rollouts, plain over arm. worst: the same ratio for the batch where it is least. tail: tokens
    per second while at most TAIL requests run, over plain's. accepted: share of the tokens drafted for steps that
    only decode; None without any.
    """
    base, own = (by_task(seconds(rollouts, device), tasks) for rollouts in (plain, arm))
    batches = [device.seconds(a.steps).sum() / device.seconds(b.steps).sum() for a, b in zip(plain, arm, strict=True)]
    steps = np.concatenate([rollout.steps for rollout in arm])
    decoding = steps[column(steps, "prompt") == 0]
    drafted = column(decoding, "drafted").sum()
    accepted = (column(decoding, "emitted") - column(decoding, "running")).sum()
    return {
        "pooled": pooled(base, own),
        "worst": round(float(min(batches)), 4),
        "batches": len(arm),
        "tail": rate_ratio(plain, arm, device, 1, TAIL),
        "steps": len(steps),
        "tokens_per_step": round(float(column(decoding, "emitted").sum() / column(decoding, "running").sum()), 3),
        "accepted": round(float(accepted / drafted), 3) if drafted else None,
        "tokens": int(column(steps, "emitted").sum()),
    }


def by_running(plain: Sequence[Timeline], arm: Sequence[Timeline], device: Device) -> dict[str, float]:
    """Tokens per second over plain's, by requests running."""
    found = {name: rate_ratio(plain, arm, device, *limits) for name, limits in BINS.items()}
    return {name: ratio for name, ratio in found.items() if ratio}


def rate_ratio(
    plain: Sequence[Timeline], arm: Sequence[Timeline], device: Device, first: float, last: float
) -> float | None:
    """Tokens per second while `first` to `last` requests run, arm over plain; None where one has no such step."""
    rates = []
    for rollouts in (arm, plain):
        steps = np.concatenate([rollout.steps for rollout in rollouts])
        running = column(steps, "running")
        steps = steps[(running >= first) & (running <= last) & (column(steps, "prompt") == 0)]
        if not len(steps):
            return None
        rates.append(column(steps, "emitted").sum() / device.seconds(steps).sum())
    return round(float(rates[0] / rates[1]), 4)
