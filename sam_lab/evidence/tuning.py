# SPDX-License-Identifier: Apache-2.0
"""The best fixed k and threshold of every method in every world, chosen on dev prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_lab.evidence.arms import METHODS
from sam_lab.evidence.jobs import PLAIN, Job, Steps
from sam_lab.evidence.rollout import column
from sam_lab.evidence.statistics import seconds
from sam_lab.evidence.worlds import World

LENGTHS = {"ngram": (3, 8), "suffix": (3, 8, 15), "oldest": (3, 8, 15), "batch": (1, 2, 3, 5, 8, 15), "wide": (15,)}
THRESHOLDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
SHORTLIST = 2
"""Thresholds of a method that are run on dev, of those that its runs in every step predict to be best."""


def always(of: str) -> list[Job]:
    """Runs of every method and k in every step of the dev prompts."""
    found = [Job(of, "dev", f"{method}:{k}") for method in METHODS for k in LENGTHS[method]]
    return [Job(of, "dev", PLAIN), *found]


def shortlist(of: str, done: Mapping[Job, Steps], world: World) -> list[Job]:
    """Runs with a threshold that may be the best of their method in this world."""
    plain = _by_running(done[Job(of, "dev", PLAIN)], world)
    jobs = []
    for method in METHODS:
        predicted = {}
        for k in LENGTHS[method]:
            on = _by_running(done[Job(of, "dev", f"{method}:{k}")], world)
            for threshold in THRESHOLDS:
                # at so many requests a run with a threshold takes what the run in every step takes, beyond it what
                # plain takes
                predicted[f"{method}:{k}:{threshold}"] = on[: threshold + 1].sum() + plain[threshold + 1 :].sum()
        jobs += [Job(of, "dev", arm) for arm in sorted(predicted, key=predicted.__getitem__)[:SHORTLIST]]
    return jobs


def best(of: str, done: Mapping[Job, Steps], world: World) -> dict[str, str]:
    """The fastest arm of each method on the dev prompts, and under `all` the fastest of these."""
    total_seconds = {
        job.arm: seconds(steps, world).sum() for job, steps in done.items() if (job.of, job.part) == (of, "dev")
    }
    arms = {
        method: min((arm for arm in total_seconds if arm.startswith(f"{method}:")), key=total_seconds.__getitem__)
        for method in METHODS
        if LENGTHS[method]
    }
    return arms | {"all": min(arms.values(), key=total_seconds.__getitem__)}


def _by_running(steps: Steps, world: World) -> npt.NDArray[Any]:
    """Seconds by requests running: [more than any]."""
    every = np.concatenate(steps)
    return np.bincount(column(every, "running"), world.seconds(every), minlength=1024)
