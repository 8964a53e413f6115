# SPDX-License-Identifier: Apache-2.0
"""Rows of the table: what is measured, its target, and the verdict."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Row:
    """One line of the table. `ours` is None until it is measured, and stays so where that failed: `error` says why."""

    section: str
    what: str
    unit: str
    better: str  # "<=" or ">="
    target: float
    ours: float | None = None
    peers: dict[str, float | str] = dataclasses.field(default_factory=dict)
    note: str = ""
    error: str = ""

    @property
    def met(self) -> bool:
        """Whether the target is met; False where nothing was measured."""
        if self.ours is None:
            return False
        return self.ours <= self.target if self.better == "<=" else self.ours >= self.target

    @property
    def verdict(self) -> str:
        return "met" if self.met else "MISSED" if self.ours is not None else "FAILED"


class NotMeasured(Exception):
    """Why a figure could not be measured."""


Sample = Callable[[], float]


def alternate(samples: dict[str, Sample], rounds: int) -> dict[str, float]:
    """The median of each contestant's samples; every round runs all of them, in turned order."""
    names, taken = list(samples), {name: [] for name in samples}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(samples[name]())
    return {name: statistics.median(values) for name, values in taken.items()}


def figure(value: float | str | None) -> str:
    """A measured value with three significant digits, or the words that stand for it."""
    if value is None or isinstance(value, str):
        return value or "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:.{2 if value >= 10 else 3}f}"


def table(rows: list[Row]) -> str:
    """The table as text."""
    lines = []
    section = None
    width = max(len(row.what) for row in rows)
    for row in rows:
        if row.section != section:
            section = row.section
            lines += ["", f"{section}", f"{'':{width}}  {'ours':>10} {'target':>10} {'':6}  peers"]
        peers = ", ".join(f"{name} {figure(value)}" for name, value in row.peers.items())
        target = f"{row.better} {row.target:g}"
        line = f"{row.what:{width}}  {figure(row.ours):>10} {target:>10} {row.verdict:6}  {peers}".rstrip()
        lines.append(line)
        for text in (row.note, row.error and f"failed: {row.error}"):
            if text:
                lines.append(f"{'':{width}}    {text}")
    return "\n".join(lines[1:])


def as_json(row: Row) -> dict[str, Any]:
    return dataclasses.asdict(row) | {"verdict": row.verdict}
