# SPDX-License-Identifier: Apache-2.0
"""Worlds: cost models of an engine on a device, fitted to measured steps or from a roofline."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_rl.shape import SHAPES
from sam_lab.evidence.rollout import FIELDS, Step, column
from sam_lab.plan.cost import DEVICES, Cost, fitted, roofline

MEASURED = {name: Path(__file__).with_name(f"{name}.json") for name in ("cpu", "h100")}
"""Costs of a step of vLLM; `about` in each file says which one."""
STEPS = Path(__file__).resolve().parents[2] / "docs" / "results" / "engine-replay-h200.jsonl.gz"
"""Steps of vLLM 0.32's second runner with the plugin, Qwen3-8B's architecture."""
LAUNCH = 82e-6
"""Host seconds per operator on a 910C in eager mode; with it a step takes about as long as the article's plain one."""
VERIFY = 0.75
"""A verifying step of the article took 1.6 to 1.9 times as long as a decoding one: the mean, less 1."""
EXPENSIVE = "article"


@dataclass(frozen=True)
class World:
    """The cost model of an engine on a device.

    cost: cost of a step. verify: additional seconds of a step with drafts, whatever its size.
    padded: whether `auto` drafts k tokens for every request or for none, as captured graphs need.
    share: time of a pass of the model's own drafter, as a share of a step with the same number of rows. Its first pass
        has the rows of the step, later passes one row per request.
    """

    name: str
    title: str
    cost: Cost
    verify: float = 0.0
    padded: bool = False
    share: float = 0.0

    def seconds(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Seconds of each step that `roll_out` returned."""
        context = self.cost.context * column(steps, "context") + self.cost.draft_context * column(
            steps, "draft_context"
        )
        device = self.cost.device(column(steps, "rows").astype(float)) + context / 1000
        verify = self.verify * (column(steps, "drafted") > 0)
        passes = column(steps, "passes")
        first, later = (self.cost.rows_cost(column(steps, name)) for name in ("rows", "running"))
        drafting = self.share * (first * (passes > 0) + later * np.maximum(passes - 1, 0))
        return np.maximum(self.cost.floor, device) + verify + drafting

    def step_seconds(self, step: Step) -> float:
        return float(self.seconds(np.array([step], np.int64))[0])


def worlds(names: Iterable[str] = (), verify: float = VERIFY, share: float = 0.0) -> list[World]:
    """The worlds of these names, or all.

    verify: additional seconds of a verifying step in `article`, as a share of a plain step. share: see World.
    """
    large = SHAPES["Qwen3-32B"]
    npu = replace(DEVICES["910C"], launch=LAUNCH)
    eager = roofline(large, 4, 1, npu)
    found = [
        measured("cpu", "CPU, measured, Qwen3-0.6B"),
        World("910c-eager", "910C eager, Qwen3-32B on 4 dies", eager),
        World("910c-graph", "910C graphs, Qwen3-32B on 4 dies", roofline(large, 4, 1, npu, eager=False), padded=True),
        measured("h100", "H100, fitted, Qwen3-8B"),
        replayed("h200", "H200, second runner, fitted, Qwen3-8B"),
        World(EXPENSIVE, "910C eager, costly verification", eager, verify * float(eager.rows_cost(8))),
    ]
    return [replace(world, share=share) for world in found if not names or world.name in names]


def measured(name: str, title: str) -> World:
    """A world from a file: `rows` with their `seconds`, `context` and `draft_context` in seconds per 1,000 tokens, and
    `verify`."""
    record = json.loads(MEASURED[name].read_text())
    rows, seconds = (np.array(record[key], float) for key in ("rows", "seconds"))
    cost = Cost(rows, seconds, record["context"], record["draft_context"])
    return World(name, title, cost, record.get("verify", 0.0))


@functools.cache
def replayed(name: str, title: str) -> World:
    """A world fitted to STEPS, where a step of `auto` with drafts takes `verify` seconds longer than one without."""
    with gzip.open(STEPS, "rt") as lines:
        runs = [json.loads(line) for line in lines][1:]
    world = World(name, title, fitted([step for run in runs for step in run["steps"]]))
    drafting = [
        step | {"draft_context": step["context"] * step["drafted"] / step["running"], "prompt": 0, "passes": 0}
        for run in runs
        if run["arm"] == "auto"
        for step in run["steps"]
        if step["drafted"] and not step["prefill"]
    ]
    steps: npt.NDArray[Any] = np.array([[step[field] for field in FIELDS] for step in drafting])
    beyond = np.array([step["s"] for step in drafting]) - world.seconds(steps)
    return replace(world, verify=float(np.median(beyond)))


NAMES = ("cpu", "910c-eager", "910c-graph", "h100", "h200", EXPENSIVE)
