# SPDX-License-Identifier: Apache-2.0
"""Cost of a step: by roofline from a model's shape and a device's figures, fitted to recorded steps, or measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.cost import StepCost

from llm_rl.shape import Shape
from sam_lab.recordings import DATA

Float64 = npt.NDArray[np.float64]

MEASURED = {name: DATA / f"cost-{name}.json" for name in ("cpu", "h100")}
"""Files with the cost of a step of vLLM; `about` in each file names the model and device."""


@dataclass(frozen=True)
class Die:
    """A die. Peaks are quoted; the shares of them that are reached are assumptions.

    bandwidth: memory, bytes per second; flops: per second, dense bf16; link: bytes per second to other dies, one way.
    collective, exchange: seconds before the first byte of an all-reduce, and of an all-to-all of experts.
    launch: host seconds per operator in eager mode. operators, expert_operators: operators that vllm-ascend 0.11
    launches per layer, counted in its source: norm, qkv, two norms of q and k, rope, cache, attention, output,
    all-reduce, norm, two matrix products and an activation, all-reduce; with experts instead of the MLP router, top-k,
    cast, dispatch, two grouped products, activation, combine, and the padding, slicing and gathering around them.
    draft_context: attention's cost of a draft token, as a share of that of its request's context without drafts; 0.43
    was measured on a CPU, the 910C's operator is not known. verify: seconds per layer by which a step with
    drafts is longer, whatever it reads and computes, as the host waits for the device. max_verify: its upper bound.
    """

    name: str
    bandwidth: float
    flops: float
    link: float
    weights_share: float = 0.7
    context_share: float = 0.5
    flops_share: float = 0.5
    collective: float = 25e-6
    exchange: float = 100e-6
    launch: float = 40e-6
    operators: float = 14
    expert_operators: float = 22
    draft_context: float = 0.43
    verify: float = 0.0
    max_verify: float = 0.0


DIES = {
    "910C": Die("910C die", 1.6e12, 376e12, 196e9, launch=82e-6, max_verify=0.9e-3),
    "H100": Die("H100 SXM", 3.35e12, 989e12, 450e9, launch=6e-6, context_share=0.7),
}
"""910C: Serving Large Language Models on Huawei CloudMatrix384 (arXiv 2506.12708), section 3: a package of two dies has
752 TFLOPS in bf16, 128 GB at 3.2 TB/s and 392 GB/s of scale-up links one way; launch and max_verify were fitted to the
article (docs/results/plan-article.json).
H100: NVIDIA's data sheet; launch is an assumption."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a step: max(floor, f(rows) + context * thousands + draft_context * thousands of the drafts' contexts),
    and `verify` more if it has drafts.

    The floor is the host's time to launch a step in eager mode, while the device computes. `RunningCost` has the form
    that sam_core.budget.choose expects. prefill: seconds per prompt token.
    """

    rows: Float64
    seconds: Float64
    context: float
    draft_context: float
    prefill: float = 0.0
    floor: float = 0.0
    verify: float = 0.0

    def step(self, rows: npt.ArrayLike, context: Any, draft_context: Any, drafts: Any) -> Float64:
        """Seconds of steps with these rows and contexts, in tokens, and with drafts or without."""
        contexts = (self.context * context + self.draft_context * draft_context) / 1000
        return np.maximum(self.floor, self.device(np.asarray(rows, float)) + contexts) + self.verify * drafts

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """f(rows), but at least the floor."""
        return np.maximum(self.floor, self.device(np.asarray(rows, float)))

    def device(self, rows: Float64) -> Float64:
        """f(rows); beyond the largest known number of rows it is proportional to the rows."""
        inside = np.interp(rows, self.rows, self.seconds)
        return np.where(rows > self.rows[-1], self.seconds[-1] * rows / self.rows[-1], inside)

    def stretch(
        self,
        steps: int,
        rows: npt.NDArray[Any],
        context: Float64,
        growth: Float64,
        draft_context: Float64,
        draft_growth: Float64,
        share: float = 1.0,
    ) -> float:
        """Seconds of equal steps; the slowest rank determines each.

        Args:
            rows, context, draft_context: [ranks], tokens in the first step.
            growth, draft_growth: [ranks], tokens by which the contexts grow per step.
            share: share of the steps that have drafts.
        """
        first = self.device(rows) + (self.context * context + self.draft_context * draft_context) / 1000
        slope = (self.context * growth + self.draft_context * draft_growth) / 1000
        beyond = steps * self.verify * share if draft_context.any() else 0.0
        if len(first) == 1:
            above = min(steps, max(0, int(np.ceil((self.floor - first[0]) / slope[0])))) if slope[0] else 0
            if not slope[0] and first[0] < self.floor:
                above = steps
            n = steps - above  # steps that take longer than the floor
            return float(above * self.floor + n * (first[0] + slope[0] * (above + (n - 1) / 2))) + beyond
        first, slope = first[rows > 0], slope[rows > 0]
        each = first + slope * np.arange(steps)[:, None]
        return float(np.maximum(self.floor, each.max(axis=1)).sum()) + beyond

    def scaled(self, factor: float) -> Cost:
        names = ("seconds", "context", "draft_context", "prefill", "floor", "verify")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


@dataclass(frozen=True)
class RunningCost:
    """The cost of steps of `running` requests with `thousands` of tokens each, by rows."""

    cost: Cost
    running: int
    thousands: float

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """Seconds of steps with these numbers of rows; rows beyond `running` are draft tokens."""
        rows = np.asarray(rows, float)
        drafted, each = rows - self.running, 1000 * self.thousands
        return self.cost.step(rows, each * self.running, each * drafted, drafted > 0)


def roofline(shape: Shape, tensor: int, expert: int, device: Die, eager: bool = True, most: int = 4096) -> Cost:
    """Cost of a step of an engine on `tensor` dies, experts spread over `expert` dies (1: over the engine's own)."""
    rows = np.unique(np.concatenate([np.arange(1, 65), np.geomspace(65, most, 64).astype(int)])).astype(float)
    dense = shape.parameters - shape.expert_parameters
    experts: float | Float64 = shape.expert_parameters / max(expert, tensor)
    if shape.experts and expert <= tensor:  # few rows touch few experts
        experts = experts * (1 - (1 - shape.experts_per_token / shape.experts) ** rows)
    read = 2 * (dense / tensor + experts) / (device.bandwidth * device.weights_share)
    flops_row = 2 * shape.active_parameters / tensor / (device.flops * device.flops_share)
    link_row = 0.0
    fixed = 0.0
    if tensor > 1:
        link_row += shape.layers * 2 * 2 * (tensor - 1) / tensor * 2 * shape.hidden / device.link
        fixed += shape.layers * 2 * device.collective
    if shape.experts and expert > 1:
        link_row += shape.layers * 2 * shape.experts_per_token * 2 * shape.hidden / tensor / device.link
        fixed += shape.layers * 2 * device.exchange
    states = (
        2 * shape.state_bytes(tensor) / (device.bandwidth * device.weights_share)
    )  # each token reads and writes one
    operators = device.expert_operators if shape.experts else device.operators
    context = 1000 * shape.kv_bytes(tensor) / (device.bandwidth * device.context_share)
    return Cost(
        rows,
        fixed + np.maximum(read + states * rows, flops_row * rows) + link_row * rows,
        context,
        device.draft_context * context,
        prefill=flops_row + link_row,
        floor=shape.layers * operators * device.launch if eager else 0.0,
        verify=shape.layers * device.verify,
    )


def measured(name: str) -> Cost:
    """The cost in a file of MEASURED: `rows` with their `seconds`, `context` and `draft_context` in seconds per 1,000
    tokens, and `verify`."""
    record = json.loads(MEASURED[name].read_text())
    rows, seconds = (np.array(record[key], float) for key in ("rows", "seconds"))
    return Cost(rows, seconds, **{key: record.get(key, 0.0) for key in ("context", "draft_context", "verify")})


def fitted(steps: Sequence[dict[str, Any]]) -> Cost:
    """The cost fitted to the steps of an `engine-replay` (steps.json): running, rows, drafted, context, prefill, and s,
    the seconds.

    Raises ValueError if no step decodes.
    """
    decoding = [s for s in steps if not s["prefill"] and s["running"]]
    if not decoding:
        raise ValueError("none of the recorded steps decodes: there is no cost to fit")
    model = StepCost()
    for s in decoding:
        held = s["context"] / 1000
        model.learn(s["rows"], s["drafted"] > 0, False, held, held * s["drafted"] / s["running"], s["s"])
    rows = np.arange(1.0, model.max_rows + 1)
    cost = Cost(rows, model.rows_cost(rows), model.context, model.draft_context)
    reading = [s for s in steps if s["prefill"] and s["rows"] > s["running"]]
    # how much longer these steps are than the same steps without prompts
    beyond = (s["s"] - float(cost.rows_cost(s["running"])) - cost.context * s["context"] / 1000 for s in reading)
    return replace(cost, prefill=max(0.0, sum(beyond)) / max(1, sum(s["rows"] for s in reading)))
