# SPDX-License-Identifier: Apache-2.0
"""The best fixed parameters of every method, and the best k for each range of running requests, chosen on dev prompts.

Each method runs on the dev prompts with each of its parameters and each k, the same k in every step. In a range of
running requests a schedule takes as long as the run with its k, so the steps of these runs price every schedule.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sam_lab.arms import RANGES
from sam_lab.evidence import data
from sam_lab.evidence.arms import CLOCKED
from sam_lab.evidence.devices import Device
from sam_lab.evidence.jobs import PLAIN, Job, Settings, batches_of, job
from sam_lab.evidence.rollout import FIELDS, Timeline, column, roll_out
from sam_lab.suffix_device import NAME

RUNNING = 128
"""Concurrent requests on dev prompts, if the set has that many."""
GRID: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "ngram": [(f"[min={a},max={b}]", (3, 8, 15)) for a, b in ((2, 5), (3, 5), (5, 5), (2, 3))],
    "suffix": [
        (f"[depth={depth},factor={factor},min_prob={prob}]", (3, 8, 15, 24))
        for depth in (24, 64)
        for factor in (1, 4)
        for prob in (0.1, 0.02)
    ],
    NAME: [(f"[depth={depth}]", (8, 15, 24)) for depth in (24, 64)],
    "batch": [(f"[min_prob={prob}]", (1, 2, 3, 5, 8, 15)) for prob in (0.1, 0.02)],
    "model": [("", (1, 2, 3, 7))],
    "model+ngram": [("[min=3,max=5]", (3, 8)), ("[min=5,max=5]", (8, 15))],
    "model+length": [(f"[threshold={n}]", (3, 8, 15)) for n in (4, 8, 16)],
    "model+suffix": [(f"[threshold={score}]", (8, 15)) for score in (1, 2, 3)],
}
"""Parameters and k of each method that is tuned."""
SCALED = [FIELDS.index(name) for name in ("running", "rows", "drafted", "emitted", "context", "draft_context")]

Steps = npt.NDArray[np.int64]


def jobs(of: str, methods: Sequence[str], devices: Sequence[str]) -> list[Job]:
    """Runs on the dev prompts: every method with each of its parameters and each k."""
    named = [f"{method}{given}:{k}" for method in methods for given, lengths in GRID[method] for k in lengths]
    runs = [job(of, "dev", RUNNING, arm, device) for arm in (PLAIN, *named) for device in devices]
    return list(dict.fromkeys(runs))


def best(
    of: str,
    method: str,
    done: Mapping[Job, Sequence[Timeline]],
    device: Device,
    running: int,
    settings: Settings,
) -> str | None:
    """The fastest arm of a method on the dev prompts, on this device with at most `running` concurrent requests; None
    if decoding without drafts is fastest.

    A CLOCKED method chooses for itself how many tokens it drafts: it has one k, that of the fastest run.
    """
    if method in CLOCKED:
        runs = [f"{method}{given}:{k}" for given, lengths in GRID[method] for k in lengths]
        return min(runs, key=lambda arm: _seconds(done[job(of, "dev", RUNNING, arm, device.name)], device))
    shares = _shares(of, running, settings)

    def costs(arm: str) -> npt.NDArray[np.float64]:
        """Seconds per token in each range."""
        rollouts = done[job(of, "dev", RUNNING, arm, device.name)]
        steps = np.concatenate([rollout.steps for rollout in rollouts])
        return np.array([_seconds_per_token(steps, typical, device) for typical, _ in shares])

    weights = np.array([weight for _, weight in shares])
    plain = costs(PLAIN)
    found: list[tuple[float, str]] = []
    for given, lengths in GRID[method]:
        table = np.array([plain, *(costs(f"{method}{given}:{k}") for k in lengths)])
        choice = table.argmin(0)
        if choice[weights > 0].any():
            schedule = "/".join(str((0, *lengths)[at]) for at in choice)
            found.append((float(weights @ table.min(0)), f"{method}{given}:{schedule}"))
    return min(found)[1] if found else None


def _seconds(rollouts: Sequence[Timeline], device: Device) -> float:
    return float(sum(device.seconds(rollout.steps).sum() for rollout in rollouts))


@functools.lru_cache(64)
def _shares(of: str, running: int, settings: Settings) -> list[tuple[float, float]]:
    """(mean number of requests, share of the tokens) of each range of running requests, in plain decoding of a whole
    batch whose answers have the lengths of the dev prompts' answers."""
    answers = [answer for batch in batches_of(of, "dev", RUNNING, settings) for answer in batch.answers]
    answers *= -(-data.WAVES * running // len(answers))
    steps = roll_out(answers, None, running).steps
    place = np.searchsorted(RANGES, column(steps, "running"))
    tokens = np.bincount(place, column(steps, "emitted"), len(RANGES) + 1)
    requests = np.bincount(place, column(steps, "emitted") * column(steps, "running"), len(RANGES) + 1)
    typical = np.where(tokens > 0, requests / np.maximum(tokens, 1), (1, *(last + 1 for last in RANGES)))
    return list(zip(typical.tolist(), (tokens / tokens.sum()).tolist(), strict=True))


def _seconds_per_token(steps: Steps, typical: float, device: Device) -> float:
    """Seconds per token in steps with about `typical` requests, scaled to exactly that many."""
    decoding = steps[column(steps, "prompt") == 0]
    place = np.searchsorted(RANGES, column(decoding, "running"))
    wanted = int(np.searchsorted(RANGES, typical))
    nearest = min(np.unique(place), key=lambda at: abs(int(at) - wanted))
    chosen = decoding[place == nearest].astype(float)
    chosen[:, SCALED] *= typical / column(chosen, "running").mean()
    return float(device.seconds(chosen).sum() / column(chosen, "emitted").sum())
