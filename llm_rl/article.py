# SPDX-License-Identifier: Apache-2.0
"""The article's curves as numbers, quoted: read off its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CURVES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""By name: `tokens_per_step` (thousands, values), `length` and `reward` of each training step (off, on), `stages` of a
rollout in seconds (off, on: normal, tail), `seconds` (off, on) of a round, a rollout and a step by recipe. `figure`
says which picture or table and of what; `source` where they are."""


def tokens_per_step(begin: float, end: float) -> float | None:
    """Mean of the article's tokens a step over positions begin .. end of the answer; None where it has no value.

    Each value holds from its position to the next one's, 2,000 tokens on.
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
