# SPDX-License-Identifier: Apache-2.0
"""Cost models of an engine on a device, fitted to measured steps or from a roofline."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llm_rl.shape import SHAPES
from sam_lab.cost import DIES, Cost, fitted, measured, roofline
from sam_lab.evidence.rollout import column

STEPS = Path(__file__).resolve().parents[2] / "docs" / "results" / "engine-replay-h200.jsonl.gz"
"""Steps of vLLM 0.32's second runner with the plugin, Qwen3-8B's architecture."""
VERIFY = 0.75
"""Extra time of a verifying step, as a share of a decoding one: the mean of the article's 1.6 to 1.9, less 1."""
EXPENSIVE = "article"


@dataclass(frozen=True)
class Device:
    """The cost model of an engine on a device.

    padded: whether `auto` drafts k tokens for every request or for none, as captured graphs need.
    share: time of a pass of the model's own drafter, as a share of a step with the same number of rows. Its first pass
        has the rows of the step, later passes one row per request.
    """

    name: str
    title: str
    cost: Cost
    padded: bool = False
    share: float = 0.0

    def seconds(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Seconds of each step that `roll_out` returned."""
        rows, running, passes = (column(steps, name) for name in ("rows", "running", "passes"))
        contexts = column(steps, "context"), column(steps, "draft_context")
        first, later = self.cost.rows_cost(rows), self.cost.rows_cost(running)
        drafting = self.share * (first * (passes > 0) + later * np.maximum(passes - 1, 0))
        return self.cost.step(rows, *contexts, column(steps, "drafted") > 0) + drafting


def devices(names: Iterable[str] = (), verify: float = VERIFY, share: float = 0.0) -> list[Device]:
    """The devices of these names, or all.

    verify: additional seconds of a verifying step of `article`, as a share of a plain step. share: see Device.
    """
    large = SHAPES["Qwen3-32B"]
    npu = DIES["910C"]
    eager = roofline(large, 4, 1, npu)
    found = [
        Device("cpu", "CPU, measured, Qwen3-0.6B", measured("cpu")),
        Device("910c-eager", "910C eager, Qwen3-32B on 4 dies", eager),
        Device("910c-graph", "910C graphs, Qwen3-32B on 4 dies", roofline(large, 4, 1, npu, eager=False), padded=True),
        Device("h100", "H100, fitted, Qwen3-8B", measured("h100")),
        replayed("h200", "H200, second runner, fitted, Qwen3-8B"),
        Device(EXPENSIVE, "910C eager, costly verification", replace(eager, verify=verify * float(eager.rows_cost(8)))),
    ]
    return [replace(device, share=share) for device in found if not names or device.name in names]


@functools.cache
def replayed(name: str, title: str) -> Device:
    """A device fitted to STEPS, where a step of `auto` with drafts takes `verify` seconds longer than one without."""
    with gzip.open(STEPS, "rt") as lines:
        runs = [json.loads(line) for line in lines][1:]
    cost = fitted([step for run in runs for step in run["steps"]])
    drafting = [
        [step[name] for name in ("rows", "context", "drafted", "running", "s")]
        for run in runs
        if run["arm"] == "auto"
        for step in run["steps"]
        if step["drafted"] and not step["prefill"]
    ]
    rows, context, drafted, running, seconds = np.array(drafting).T
    beyond = seconds - cost.step(rows, context, context * drafted / running, False)
    return Device(name, title, replace(cost, verify=float(np.median(beyond))))


NAMES = ("cpu", "910c-eager", "910c-graph", "h100", "h200", EXPENSIVE)
