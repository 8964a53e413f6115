# SPDX-License-Identifier: Apache-2.0
"""Rollouts of all batches of a set by one arm, in processes of their own; finished ones are kept in files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sam_core.files import replacing

from sam_lab.evidence import arms, data
from sam_lab.evidence.rollout import FIELDS, Step, roll_out
from sam_lab.evidence.worlds import World, worlds
from sam_lab.workers import finished

Steps = list[npt.NDArray[np.int64]]
"""Of each batch, as `roll_out` returns them."""
NOISE = 0.03
"""Standard deviation of the logarithm of a step's time as `auto` measures it. What a step counts is without noise."""
PLAIN = "plain"


class Settings(NamedTuple):
    """tokens: of an answer at most. max_running: requests. num_batches: of a set at most. verify: see `worlds`."""

    tokens: int
    max_running: int
    num_batches: int | None
    verify: float


class Job(NamedTuple):
    """An arm on the batches of a part of a set.

    world: its clock, which only `auto` reads; empty for other arms, whose drafts no clock changes. saved: `auto` begins
    with what it learned on the dev prompts, and with the answers of an earlier epoch where the set has them.
    """

    of: str
    part: str
    arm: str
    world: str = ""
    saved: bool = False

    @property
    def name(self) -> str:
        return "-".join(
            [self.of, self.part, self.arm.replace(":", "_"), *filter(None, [self.world]), *["saved"] * self.saved]
        )


@functools.lru_cache(8)
def _batches(of: str, part: str, settings: Settings) -> list[data.Batch]:
    return data.batches(data.SETS[of], part, settings.tokens, settings.num_batches)


def run(job: Job, settings: Settings) -> Steps:
    """Roll out one batch after another, with one drafter, as an engine does."""
    now = 0.0
    rng = np.random.default_rng(20)
    drafter = None if job.arm == PLAIN else arms.make(job.arm, lambda: now)
    clock: World | None = worlds([job.world], settings.verify)[0] if job.world else None

    def advance_clock(step: Step) -> None:
        nonlocal now
        if clock:
            now += clock.step_seconds(step) * float(np.exp(NOISE * rng.standard_normal()))

    def all_of(part: str) -> Steps:
        steps = []
        for batch in _batches(job.of, part, settings):
            if job.saved and batch.earlier and drafter:
                drafter.remember(batch.earlier)
            steps.append(roll_out(batch.answers, drafter, settings.max_running, advance_clock))
        return steps

    if job.saved:
        all_of("dev")
    return all_of(job.part)


def run_all(
    jobs: Iterable[Job], settings: Settings, folder: Path, processes: int, progress: Callable[[int, int], None]
) -> dict[Job, Steps]:
    """The steps of all jobs; those that `folder` holds are read from there."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(dict.fromkeys(jobs))
    done = {job: _load(folder / f"{job.name}.npz") for job in wanted if (folder / f"{job.name}.npz").exists()}
    missing = [job for job in wanted if job not in done]
    progress(len(done), len(wanted))
    if processes == 1 or len(missing) < 2:
        for job in missing:
            done[job] = _run_and_save(job, settings, folder)
            progress(len(done), len(wanted))
        return done
    for (job, *_), future in finished(_run_and_save, [(job, settings, folder) for job in missing], processes):
        done[job] = future.result()
        progress(len(done), len(wanted))
    return done


def _run_and_save(job: Job, settings: Settings, folder: Path) -> Steps:
    steps = run(job, settings)
    ends = np.cumsum([len(of_batch) for of_batch in steps])
    with replacing(folder / f"{job.name}.npz") as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, steps=np.concatenate(steps).astype(np.int32), ends=ends)
    return steps


def _load(path: Path) -> Steps:
    with np.load(path) as saved:
        return np.split(saved["steps"].astype(np.int64).reshape(-1, len(FIELDS)), saved["ends"][:-1])
