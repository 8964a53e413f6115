# SPDX-License-Identifier: Apache-2.0
"""Metrics of a training step in verl's log, and times with the same meaning in all pin sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

ROUNDS = "train/num_gen_batches"
"""Number of a step's rounds of generation; a trainer without rounds does not log it."""
TIMES = "timing_s/step"
"""A step is finished when this is logged; a trainer may log a step in several lines, and before its first step."""


def numbers(data: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a log line that are finite numbers.

    A trainer may log other values: verl 0.9.1 writes null for NaN and infinity, verl 0.6.1 NaN and Infinity.
    """
    return {
        name: value
        for name, value in data.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def step_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds of a training step without writing its checkpoint, which a trainer without rounds includes."""
    seconds = step.get(TIMES)
    return seconds if seconds is None or ROUNDS in step else seconds - step.get("timing_s/save_checkpoint", 0.0)


def round_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds of generation in the step's last round, mean over data-parallel ranks; None if there are no rounds."""
    return step.get("timing_s/generate_sequences") if ROUNDS in step else None
