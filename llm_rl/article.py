# SPDX-License-Identifier: Apache-2.0
"""The article's curves as numbers, read from its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CURVES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""`tokens_per_step` (thousands, values); `length` and `reward` per training step (off, on); `stages`: seconds of a
rollout (off, on: normal, tail); `seconds` (off, on) of a round, a rollout and a step per recipe. `figure` names the
picture or table and its content, `source` the publication."""


def tokens_per_step(begin: float, end: float) -> float | None:
    """The article's mean tokens per step over positions begin .. end of the answer, or None if it has no value there.

    Each value covers 2,000 tokens, from its own position to the next.
    """
    curve = CURVES["tokens_per_step"]
    parts = [
        (min(end, 1000 * start + 2000) - max(begin, 1000 * start), value)
        for start, value in zip(curve["thousands"], curve["values"], strict=True)
    ]
    inside = [(width, value) for width, value in parts if width > 0]
    if not inside:
        return None
    return sum(width * value for width, value in inside) / sum(width for width, _ in inside)
