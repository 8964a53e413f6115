# SPDX-License-Identifier: Apache-2.0
"""The plan in words: a recommendation, and what grows with dies, prompts and epochs."""

from __future__ import annotations

import math
from typing import Any

from llm_rl.layout import GIB
from sam_lab.plan.step import Setup

INDEX = (46.3, 99.4)
"""Bytes of host memory a token while one of its group runs: request alone, request and group.

See docs/design-sam-core.md.
"""
TEXT = 4
"""Bytes a token that stays for the history."""


def recommend(plan: Setup, result: dict[str, Any], memory_bytes: int, mean: float) -> list[str]:
    """A few sentences for the user."""
    own, best, auto = (result["figures"][name] for name in ("batch", "best", "auto"))
    threshold, k = result["best"]
    advice = []
    gain = max(best["rollout_gain"], auto["rollout_gain"])
    advised = "auto" if auto["rollout_gain"] >= best["rollout_gain"] * 0.998 else "best"
    by_auto, by_best, setting = (
        _percent(auto["rollout_gain"]),
        _percent(best["rollout_gain"]),
        f"{threshold} and k = {k}",
    )
    if gain < 1.01:
        advice.append("Leave speculation off: no policy makes the rollout faster by 1 %.")
    elif advised == "auto":
        advice.append(
            f"Use sam=auto: the rollout takes {by_auto} less, with batch at its best, threshold {setting}, {by_best}."
        )
    else:
        advice.append(f"Use sam=batch with threshold {setting}: the rollout takes {by_best} less, with auto {by_auto}.")
    if threshold > 8 and gain >= 1.01:
        advice.append(
            "Measure before drafting at more than 8 requests (sam_lab engine-replay does): what verification costs "
            "there is an assumption. On the article's stack a verifying step took 1.8 times a decoding one."
        )
    own_threshold, own_k = result["own"]
    if (own_threshold, own_k) != (threshold, k):
        saved = _percent(own["rollout_gain"])
        advice.append(f"The recipe's threshold {own_threshold} and k = {own_k} save {saved} of the rollout.")
    if advised in result["ranges"]:
        low, high = result["ranges"][advised]["rollout_gain"]
        if low < 1 and gain >= 1.01:
            name = "auto" if advised == "auto" else f"batch {threshold} {k}"
            advice.append(f"It is not sure that {name} gains: 10 to 90 % of the worlds have {low:.2f} to {high:.2f}.")
    if result["figures"]["off"]["tail_share"] < 0.1:
        advice.append("The tail is short, so there is little that a switch by batch size could win.")
    preempted = result["figures"]["off"]["preempted"]
    if preempted > 0.1 * plan.gen_prompts * plan.n:
        advice.append(
            f"Memory ends before max_num_seqs does: {preempted:,.0f} preemptions a round, each of which reads a "
            "request anew. Lower rollout.max_num_seqs or take a larger tensor parallel size."
        )
    routing = result["routing"]
    if routing["sticky"]["batch_s"] < 0.98 * routing["spread"]["batch_s"]:
        advice.append(
            f"Send a prompt's answers to one engine (the recipes do): "
            f"{routing['spread']['batch_s'] / routing['sticky']['batch_s']:.3f} times as fast a round."
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
    """What grows: with prompts and answers a round over the ranks, with the epochs' prompts, with the dies."""
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
        "requests_an_engine": plan.gen_prompts * plan.n / plan.ranks,
    }


def growing(plan: Setup, mean: float) -> list[str]:
    """The same in words."""
    g = growth(plan, mean)
    return [
        f"index: about {g['index_bytes_engine'] / GIB:.2f} GiB of host memory an engine, for the groups that run at "
        f"once at full length or for the whole round, whichever is less, at {INDEX[1]} bytes a token "
        f"({g['index_bytes_engine_request_only'] / GIB:.2f} at {INDEX[0]}, request alone); grows with max_num_seqs, "
        "answers and length",
        f"history: {g['history_bytes_engine_step'] / (1 << 20):,.0f} MiB of text an engine and step at {TEXT} bytes a "
        f"token, {g['history_bytes_thousand_prompts'] / GIB:.2f} GiB in all for 1,000 prompts; grows with the prompts "
        "of an epoch, by as much with each epoch that is kept",
        "traffic: none between engines; a prompt that returns to another engine finds no history there, so a history "
        f"that follows its prompt would move {TEXT * plan.n * mean / 1e6:.1f} MB a prompt",
        f"routing: {plan.ranks} engines; spread, {g['siblings_an_engine_spread']:.2g} of {plan.n} siblings meet on "
        "one, fewer with more dies; sticky, all do",
    ]


def _percent(gain: float) -> str:
    return f"{round(100 * (1 - 1 / gain), 1) + 0.0:.1f} %"
