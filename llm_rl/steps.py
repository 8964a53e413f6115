# SPDX-License-Identifier: Apache-2.0
"""Metrics of a training step in verl's log, and times in it that mean the same in all pin sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

ROUNDS = "train/num_gen_batches"
"""Rounds of generation of a step; a trainer without rounds does not log them."""
TIMES = "timing_s/step"
"""A step is finished when this is logged; a trainer may log in parts, and before its first step."""


def numbers(data: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line of the log that are finite numbers.

    A trainer may log other values: verl 0.9.1 writes null for NaN and infinity, verl 0.6.1 NaN and Infinity.
    """
    return {
        name: value
        for name, value in data.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def step_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds of a training step without the writing of its checkpoint, which a trainer without rounds counts in."""
    seconds = step.get(TIMES)
    return seconds if seconds is None or ROUNDS in step else seconds - step.get("timing_s/save_checkpoint", 0.0)


def round_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds that generating took in the step's last round, the mean over data-parallel ranks.

    None in a trainer without rounds.
    """
    return step.get("timing_s/generate_sequences") if ROUNDS in step else None
