# SPDX-License-Identifier: Apache-2.0
"""Rows of the benchmark's table: figure, target and verdict."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sam_core.files import write_json

from sam_lab.replay import geometric_mean

TARGETS = Path(__file__).with_name("targets.toml")


@dataclasses.dataclass(frozen=True, order=True)
class Figure:
    """A median and its quartiles; all are equal if there is a single value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """The figure of these values, one or more."""
        return cls(*np.quantile(values, (0.5, 0.25, 0.75)).tolist())

    @classmethod
    def of_sets(cls, values: Sequence[float]) -> Figure:
        """The geometric mean of the sets' values instead of their median."""
        figure = cls.of(values)
        return dataclasses.replace(figure, median=geometric_mean(values)) if len(values) > 1 else figure

    @property
    def spread(self) -> str:
        return f"{figure(self.low)}-{figure(self.high)}" if self.low < self.high else ""


@dataclasses.dataclass
class Row:
    """One row of the table: our figure, and those of the peers in the same run.

    The target bounds our median or, if `of` names a peer, our median divided by the peer's.
    `ours` is None until it is measured, and stays None if that failed; `error` then says why.
    """

    section: str
    what: str
    unit: str
    better: str  # "<=" or ">="
    bound: float
    of: str = ""
    reason: str = ""
    ours: Figure | None = None
    peers: dict[str, Figure | str] = dataclasses.field(default_factory=dict)
    note: str = ""
    error: str = ""

    @property
    def value(self) -> float | None:
        """The value that is compared with the bound; None if it was not measured."""
        if self.ours is None:
            return None
        if not self.of:
            return self.ours.median
        peer = self.peers.get(self.of)
        return self.ours.median / peer.median if isinstance(peer, Figure) else None

    @property
    def met(self) -> bool:
        """Whether the target is met; False if nothing was measured."""
        if self.value is None:
            return False
        return self.value <= self.bound if self.better == "<=" else self.value >= self.bound

    @property
    def verdict(self) -> str:
        return "met" if self.met else "FAILED" if self.value is None else "MISSED"

    @property
    def target(self) -> str:
        return f"{self.better} {self.bound:g}" + (f" x {self.of}" if self.of else "")


@functools.cache
def targets() -> dict[str, dict[str, Any]]:
    """The parts `reason`, `better`, `bound` and `of` of each row's target."""
    found: dict[str, dict[str, Any]] = {}
    for reason, rows in tomllib.loads(TARGETS.read_text()).items():
        for what, text in rows.items():
            better, _, bound = text.partition(" ")
            number, _, of = bound.partition(" x ")
            found[what] = {"reason": reason, "better": better, "bound": json.loads(number), "of": of}
    return found


def bounded(section: str, what: str, unit: str) -> Row:
    """The row with this name and its target."""
    return Row(section, what, unit, **targets()[what])


Sample = Callable[[], float]


def alternate(samples: Mapping[str, Sample], rounds: int) -> dict[str, Figure]:
    """The figure of each contestant; every round runs all of them, in an order that rotates."""
    names = list(samples)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(samples[name]())
    return {name: Figure.of(values) for name, values in taken.items()}


def figure(value: float | None) -> str:
    """A measured value with three significant digits, or a dash."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:.{2 if value >= 10 else 3}f}"


def table(rows: list[Row]) -> str:
    """The table as text: a line per row, and below it a line per peer with the ratio of its figure to ours."""
    lines = []
    section = None
    width = max(len(f"{row.what}, {row.unit}") for row in rows)
    for row in rows:
        if row.section != section:
            section = row.section
            lines += ["", section, f"{'':{width}} {'median':>9} {'quartiles':>17} {'peer/ours':>9}  target"]
        median, spread = (row.ours.median, row.ours.spread) if row.ours else (None, "")
        name = f"{row.what}, {row.unit}" if row.unit else row.what
        lines.append(f"{name:{width}} {figure(median):>9} {spread:>17} {'':9}  {row.target:18} {row.verdict}")
        for peer, value in row.peers.items():
            if isinstance(value, str):
                lines.append(f"{'  ' + peer:{width}}   {value}")
            else:
                ratio = figure(value.median / median) if median else ""
                line = f"{'  ' + peer:{width}} {figure(value.median):>9} {value.spread:>17} {ratio:>9}"
                lines.append(line.rstrip())
        for text in (row.note, row.error and f"failed: {row.error}"):
            if text:
                lines.append(f"    {text}")
    return "\n".join(lines[1:])


def missed(rows: list[Row]) -> str:
    """The missed targets, one per line, with the reason of the bound."""
    lines = []
    for row in rows:
        if not row.met:
            got = f"{row.value:.3g}" if row.value is not None else row.error or row.peers.get(row.of, "not measured")
            lines.append(f"{row.verdict}: {row.what}: {got}, target {row.target}. {row.reason}".rstrip())
    return "\n".join(lines)


def finish(rows: list[Row], out: Path, name: str, record: dict[str, Any]) -> int:
    """Print the table, write OUT/NAME.json, name what was missed; returns the exit status, 1 if anything was."""
    print(table(rows))
    written = [dataclasses.asdict(row) | {"held": row.value, "verdict": row.verdict} for row in rows]
    write_json(out / f"{name}.json", record | {"rows": written})
    print(f"\n{sum(row.met for row in rows)} of {len(rows)} targets met; {out}/{name}.json")
    print(missed(rows))
    return 0 if all(row.met for row in rows) else 1


def machine() -> dict[str, Any]:
    """Machine and versions on which the figures depend."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "processors": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
    }
