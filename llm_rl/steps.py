# SPDX-License-Identifier: Apache-2.0
"""Read verl's log of training steps; times with the same meaning in all pin sets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_rl.errors import UserError

ROUNDS = "train/num_gen_batches"
"""Number of a step's rounds of generation; a trainer without rounds does not log it."""
TIMES = "timing_s/step"
"""Metric whose presence marks a finished step; a trainer may log a step in several lines, and before its first step."""


def complete_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The complete lines of a log and their JSON; a killed run may leave an incomplete last line, or no file.

    Raises UserError.
    """
    try:
        lines = path.read_bytes().decode(errors="replace").split("\n")[:-1] if path.is_file() else []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            yield line, json.loads(line)
        except ValueError:
            raise UserError(f"{path}, line {number}, is not JSON: repair it, or use another folder") from None


def read_steps(path: Path) -> list[dict]:
    """The finished training steps in verl's log, each with all finite numbers of its lines.

    A trainer may log a step in several lines, lines before its first step, and other values: verl 0.9.1 writes null for
    NaN and infinity, verl 0.6.1 NaN and Infinity. Raises UserError if a line is not verl's.
    """
    steps: dict[int, dict] = {}
    ended = set()
    for number, (_, row) in enumerate(complete_lines(path), 1):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int) or not isinstance(row.get("data"), dict):
            raise UserError(f"{path}, line {number}, is not a line of verl's log: repair it, or use another folder")
        data = steps.setdefault(row["step"], {"step": row["step"], "data": {}})["data"]
        data |= {name: value for name, value in row["data"].items() if _is_finite(value)}
        if TIMES in row["data"]:
            ended.add(row["step"])
    return [step for step in steps.values() if step["step"] in ended]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def step_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds of a training step without writing its checkpoint, which a trainer without rounds includes."""
    seconds = step.get(TIMES)
    return seconds if seconds is None or ROUNDS in step else seconds - step.get("timing_s/save_checkpoint", 0.0)


def round_seconds(step: Mapping[str, float]) -> float | None:
    """Seconds of generation in the step's last round, mean over data-parallel ranks; None if there are no rounds."""
    return step.get("timing_s/generate_sequences") if ROUNDS in step else None
