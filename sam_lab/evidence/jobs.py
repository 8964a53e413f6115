# SPDX-License-Identifier: Apache-2.0
"""Rollouts of all batches of a set by one arm."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from sam_lab.evidence import arms, data
from sam_lab.evidence.devices import Device, devices
from sam_lab.evidence.drafters import Sam
from sam_lab.evidence.model import KINDS, ModelDrafter, found_by_texts
from sam_lab.evidence.rollout import EngineStep, Timeline, roll_out
from sam_lab.workers import finished

NOISE = 0.03
"""Noise of the step times that `auto` measures: standard deviation of the logarithm. Reported times have no noise."""
PLAIN = "plain"


class Settings(NamedTuple):
    """tokens: maximum per answer. num_batches: maximum per set. verify: see `devices`.

    drafter: the model's own drafter, a key of KINDS. correlation: see ModelDrafter.
    """

    tokens: int
    num_batches: int | None
    verify: float
    drafter: str | None = None
    correlation: float = 0.0

    def devices(self, names: Iterable[str]) -> list[Device]:
        return devices(names, self.verify, KINDS[self.drafter].share if self.drafter else 0.0)


class Job(NamedTuple):
    """An arm on the batches of a part of a set.

    running: maximum concurrent requests. device: whose clock CLOCKED methods read; empty for other arms, whose drafts
    do not depend on a clock. saved: whether `auto` begins with what it learned on the dev prompts, and with the answers
    of an earlier epoch if the set has them.
    """

    of: str
    part: str
    running: int
    arm: str
    device: str = ""
    saved: bool = False


def job(of: str, part: str, running: int, arm: str, device: str) -> Job:
    """A job; without the device if the arm does not read its clock, so that the arm runs once for all devices."""
    clocked = arm != PLAIN and arms.parse(arm).method in arms.CLOCKED
    return Job(of, part, running, arm, device if clocked else "")


@functools.lru_cache(8)
def batches_of(of: str, part: str, running: int, settings: Settings) -> list[data.Batch]:
    return data.batches(data.SETS[of], part, settings.tokens, running, settings.num_batches)


@functools.lru_cache(4)
def found_in(of: str, part: str, running: int, settings: Settings, number: int) -> Any:
    """`found_by_texts` of a batch, for drafts as long as the model's; None without correlation."""
    if not settings.drafter or not settings.correlation:
        return None
    longest = len(KINDS[settings.drafter].accepted)
    return found_by_texts(batches_of(of, part, running, settings)[number].answers, running, longest)


def run(job: Job, settings: Settings) -> list[Timeline]:
    """Roll out one batch after another with the same drafter, as an engine does."""
    now = 0.0
    rng = np.random.default_rng(20)
    model = ModelDrafter(KINDS[settings.drafter], settings.correlation) if settings.drafter else None
    clock: Device | None = settings.devices([job.device])[0] if job.device else None
    drafter = None if job.arm == PLAIN else arms.make(job.arm, lambda: now, model, clock)
    if clock and clock.padded and isinstance(drafter, Sam):
        drafter.proposer.make_uniform()

    def advance_clock(step: EngineStep) -> None:
        nonlocal now
        if clock:
            now += float(clock.seconds(np.array([step]))[0] * np.exp(NOISE * rng.standard_normal()))

    def all_of(part: str) -> list[Timeline]:
        rollouts = []
        for number, batch in enumerate(batches_of(job.of, part, job.running, settings)):
            if job.saved and batch.earlier and drafter:
                drafter.remember(batch.earlier)
            if model and job.arm.startswith("model"):
                model.begin(batch.answers, found_in(job.of, part, job.running, settings, number))
            rollouts.append(roll_out(batch.answers, drafter, job.running, advance_clock))
        return rollouts

    if job.saved:
        all_of("dev")
    return all_of(job.part)


def run_all(
    jobs: Iterable[Job], settings: Settings, processes: int, progress: Callable[[int, int], None]
) -> dict[Job, list[Timeline]]:
    """The rollouts of all jobs, each in one of these processes."""
    wanted = [(job, settings) for job in dict.fromkeys(jobs)]
    done = {}
    for (job, _), future in finished(run, wanted, processes):
        done[job] = future.result()
        progress(len(done), len(wanted))
    return done
