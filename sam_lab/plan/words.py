# SPDX-License-Identifier: Apache-2.0
"""The plan in words: a recommendation."""

from __future__ import annotations

import math
from typing import Any

from llm_rl.layout import GIB
from sam_lab.plan.step import Setup

INDEX = 99.4
"""Bytes of host memory per token of a running group: two indexes and the text. See docs/design-sam-core.md."""
MAX_LOSS = 0.02
"""Largest share of the rollout that a recommended switch may lose in the worst tenth of the samples."""


def recommend(plan: Setup, result: dict[str, Any], memory_bytes: int, mean: float) -> list[str]:
    """A few sentences for the user."""
    figures, ranges = result["figures"], result["ranges"]
    settings = {
        "batch": "the recipe's threshold {} and k = {}".format(*result["own"]),
        "best": "sam=batch with threshold {} and k = {}".format(*result["best"]),
    }
    if not plan.shape.nets:  # else vLLM does not verify adaptively
        settings["auto"] = "sam=auto"
    gains = {name: figures[name]["rollout_gain"] for name in settings}
    worst = {name: ranges[name]["rollout_gain"][0] for name in settings}
    safe = [name for name in ("auto", "batch", "best") if worst.get(name, 0) > 1 - MAX_LOSS]
    advised = max(safe, key=gains.__getitem__, default=None)
    advice = []
    if advised is None or gains[advised] < 1.01:
        advice.append(
            "Leave speculation off: what gains 1 % in the median sample of the assumptions loses 2 % or more in others."
        )
    else:
        advice.append(f"Use {settings[advised]}: {_saving(result, advised)}.")
        threshold = {"batch": result["own"][0], "best": result["best"][0]}.get(advised, 0)
        if threshold > 8:
            advice.append(
                "Measure before drafting at more than 8 requests (sam_lab engine-replay does): what verification costs "
                "there is an assumption. On the article's stack a verifying step took 1.7 times a decoding one."
            )
    for name in settings:
        if name != advised and (
            name != "best" or all(gains["best"] > gains[other] for other in gains if other != name)
        ):
            advice.append(f"With {settings[name]} {_saving(result, name)}.")
    if result["figures"]["off"]["tail_share"] < 0.1:
        advice.append("The tail is short, so there is little that a switch by batch size could win.")
    preempted = result["figures"]["off"]["preempted"]
    if preempted > 0.1 * plan.gen_prompts * plan.n:
        advice.append(
            f"Memory ends before max_num_seqs does: {preempted:,.0f} preemptions per round, each of which reads a "
            "request anew. Lower rollout.max_num_seqs or choose a larger tensor parallel size."
        )
    running = min(math.ceil(plan.gen_prompts * plan.n / plan.ranks), plan.slots)
    at_once = math.ceil(running / plan.n) * plan.n * (plan.limit + plan.prompt_tokens)
    need = INDEX * min(at_once, plan.gen_prompts * plan.n * (mean + plan.prompt_tokens) / plan.ranks)
    if need > memory_bytes:
        advice.append(
            f"Raise sam_options.memory_bytes: the groups that run on an engine need about {need / GIB:.1f} GiB of host "
            f"memory, {memory_bytes / GIB:.1f} are allowed, and requests without an index do not draft."
        )
    return advice


def _saving(result: dict[str, Any], name: str) -> str:
    saving = f"the rollout takes {_percent(result['figures'][name]['rollout_gain'])} less"
    low, high = map(_percent, result["ranges"][name]["rollout_gain"])
    return f"{saving} in the median, {low} to {high} from the 10th to the 90th percentile"


def _percent(gain: float) -> str:
    return f"{round(100 * (1 - 1 / gain), 1) + 0.0:.1f} %"
