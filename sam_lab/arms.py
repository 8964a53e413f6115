# SPDX-License-Identifier: Apache-2.0
"""Names of arms, the ways to decode that a command compares: METHOD[NAME=VALUE,...]:K/K/K/K:THRESHOLD@async.

Each command takes the names that have one of its forms, such as `batch:K:THRESHOLD`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from sam_lab.cli import LabError

PAIR = r"[a-z_]+=[0-9]+(?:\.[0-9]+)?"
NAME = re.compile(
    rf"([a-z_+-]+)(?:\[({PAIR}(?:,{PAIR})*)\])?(?::([1-9][0-9]*|[0-9]+(?:/[0-9]+){{3}}))?(?::([1-9][0-9]*))?(@async)?"
)
RANGES = (8, 32, 128)
"""Last number of running requests of each range that has a k of its own; the last range is open."""


class Arm(NamedTuple):
    """A method, its parameters, k for each of RANGES, the most running requests with drafts, and how it schedules."""

    method: str
    parameters: dict[str, float]
    lengths: list[int]
    threshold: int
    asynchronous: bool

    def k(self, running: int) -> int:
        """vLLM's num_speculative_tokens_per_batch_size."""
        return self.lengths[sum(running > last for last in RANGES)]


def parse(name: str, forms: Collection[str] = ()) -> Arm:
    """The arm of a name; raises LabError unless it has one of the forms, if any are given."""
    found = NAME.fullmatch(name)
    method, given, k, threshold, asynchronous = found.groups("") if found else [""] * 5
    form = (
        method
        + "[NAME=VALUE]" * bool(given)
        + (":K/K/K/K" if "/" in k else ":K" * bool(k))
        + ":THRESHOLD" * bool(threshold)
        + asynchronous
    )
    if not found or (forms and form not in forms):
        raise LabError(f"unknown arm {name!r}: choose from {', '.join(forms)}")
    pairs = (pair.split("=") for pair in given.split(",") if pair)
    lengths = [int(each) for each in k.split("/") if k] * (1 if "/" in k else 4)
    if lengths and not any(lengths):
        raise LabError(f"arm {name!r}: it never drafts")
    return Arm(method, {key: float(value) for key, value in pairs}, lengths, int(threshold or 0), bool(asynchronous))
