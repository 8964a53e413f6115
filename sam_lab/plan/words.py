# SPDX-License-Identifier: Apache-2.0
"""The plan in words: a recommendation, and how memory and traffic grow with dies, prompts and epochs."""

from __future__ import annotations

import math
from typing import Any

from llm_rl.layout import GIB
from sam_lab.plan.step import Setup

INDEX = (46.3, 99.4)
"""Bytes of host memory per token of a running group: with source request alone, with request and group.

See docs/design-sam-core.md.
"""
MAX_LOSS = 0.02
"""A switch that loses more than this share of the rollout in the worst tenth of the samples is not recommended."""
TEXT = 4
"""Bytes per token kept for the history."""


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
    routing = result["routing"]
    if routing["sticky"]["batch_s"] < 0.98 * routing["spread"]["batch_s"]:
        advice.append(
            f"Send a prompt's answers to one engine (the recipes do): "
            f"{routing['spread']['batch_s'] / routing['sticky']['batch_s']:.3f} times as fast per round."
        )
    elif routing["sticky"]["batch_s"] > 1.02 * routing["spread"]["batch_s"]:
        advice.append(
            f"Spread a prompt's answers: kept together they make the slowest engine slower by "
            f"{100 * (routing['sticky']['batch_s'] / routing['spread']['batch_s'] - 1):.1f} %, more than the siblings' "
            "text gains."
        )
    need = growth(plan, mean)["index_bytes_engine"]
    if need > memory_bytes:
        advice.append(
            f"Raise sam_options.memory_bytes: the groups that run on an engine need about {need / GIB:.1f} GiB of host "
            f"memory, {memory_bytes / GIB:.1f} are allowed, and requests without an index do not draft."
        )
    return advice


def growth(plan: Setup, mean: float) -> dict[str, float]:
    """Quantities that grow with the prompts and answers per round and rank, the prompts of an epoch, or the dies."""
    tokens = plan.gen_prompts * plan.n * (mean + plan.prompt_tokens)
    running = min(math.ceil(plan.gen_prompts * plan.n / plan.ranks), plan.slots)
    groups = math.ceil(running / plan.n)
    longest = plan.limit + plan.prompt_tokens
    return {
        "tokens_round": tokens,
        "index_bytes_engine": INDEX[1] * min(groups * plan.n * longest, tokens / plan.ranks),
        "index_bytes_engine_request_only": INDEX[0] * min(running * longest, tokens / plan.ranks),
        "history_bytes_thousand_prompts": TEXT * 1000 * plan.n * mean,
        "history_bytes_engine_step": TEXT * tokens * plan.rounds / plan.ranks,
        "siblings_an_engine_spread": plan.n / plan.ranks,
    }


def growing(plan: Setup, mean: float) -> list[str]:
    """`growth` in words."""
    g = growth(plan, mean)
    return [
        f"index: about {g['index_bytes_engine'] / GIB:.2f} GiB of host memory per engine at {INDEX[1]} bytes per "
        "token, for the groups that run at once at full length or for the whole round, whichever is less "
        f"({g['index_bytes_engine_request_only'] / GIB:.2f} GiB at {INDEX[0]} bytes with source request alone); grows "
        "with max_num_seqs, answers per prompt and length",
        f"history: {g['history_bytes_engine_step'] / (1 << 20):,.0f} MiB of text per engine and training step at "
        f"{TEXT} bytes per token, {g['history_bytes_thousand_prompts'] / GIB:.2f} GiB in all for 1,000 prompts; grows "
        "with the prompts of an epoch, and by the same amount with each epoch that is kept",
        "traffic: none between engines; a prompt that returns to another engine finds no history there, so a history "
        f"that follows its prompt would move {TEXT * plan.n * mean / 1e6:.1f} MB per prompt",
        f"routing: {plan.ranks} engines; if the answers to a prompt are spread, "
        f"{g['siblings_an_engine_spread']:.2g} of {plan.n} meet on one engine, fewer with more "
        f"{plan.unit}s; if routing is sticky, all meet",
    ]


def _saving(result: dict[str, Any], name: str) -> str:
    saving = f"the rollout takes {_percent(result['figures'][name]['rollout_gain'])} less"
    low, high = map(_percent, result["ranges"][name]["rollout_gain"])
    return f"{saving} in the median, {low} to {high} from the 10th to the 90th percentile"


def _percent(gain: float) -> str:
    return f"{round(100 * (1 - 1 / gain), 1) + 0.0:.1f} %"
