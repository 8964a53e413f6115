# SPDX-License-Identifier: Apache-2.0
"""Times of a training step in verl's log that mean the same in all pin sets."""

from __future__ import annotations

from collections.abc import Mapping

ROUNDS = "train/num_gen_batches"
"""Rounds of generation of a step; a trainer without rounds does not log them."""
TIMES = "timing_s/step"
"""A step is finished when this is logged; a trainer may log in parts, and before its first step."""


def step_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds of a training step without the writing of its checkpoint, which a trainer without rounds counts in."""
    seconds = step.get(TIMES)
    return seconds if seconds is None or ROUNDS in step else seconds - step.get("timing_s/save_checkpoint", 0.0)


def round_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds that generating took in the step's last round, the mean over data-parallel ranks.

    None in a trainer without rounds.
    """
    return step.get("timing_s/generate_sequences") if ROUNDS in step else None
