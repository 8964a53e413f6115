# SPDX-License-Identifier: Apache-2.0
"""Runs on Ascend hardware that others published: their settings, and what they measured. All of it is quoted.

Nothing here was measured by this project. `article.py` fits the first cluster and predicts the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llm_rl.article import CURVES
from llm_rl.layout import GIB
from llm_rl.shape import SHAPES
from sam_lab.plan.step import Setup

LIMIT = 34816
KV_GIB = {0.8: 38.0, 0.85: 41.0, 0.87: 42.0}
"""GiB a die for keys and values by gpu_memory_utilization: its share of 64 GiB less weights and 4 to 8 GiB."""


def _cluster(name: str, model: str, utilization: float, *sizes: int, **more: Any) -> Setup:
    shape = SHAPES[model]
    dies, tensor, data, expert, train, gen, slots = sizes
    capacity = KV_GIB[utilization] * GIB / shape.kv_bytes(tensor)
    return Setup(name, shape, dies, tensor, data, expert, train, gen, 16, slots, LIMIT, capacity, **more)


CLUSTERS = {
    "32b": _cluster("32b", "Qwen3-32B", 0.8, 32, 8, 1, 1, 32, 96, 128),
    "235b": _cluster("235b", "Qwen3-235B-A22B", 0.85, 128, 4, 32, 128, 128, 128, 64, rounds=2),
    "customer": _cluster("customer", "Qwen3-32B", 0.8, 128, 8, 1, 1, 512, 1536, 256, threshold=4, k=4),
    "grpo": _cluster("grpo", "Qwen3-32B", 0.87, 32, 8, 1, 1, 128, 128, 128, threshold=32),
    "dapo": _cluster("dapo", "Qwen3-32B", 0.87, 32, 8, 1, 1, 128, 128, 128, threshold=32),
}
"""The article's three clusters, and two runs of its repository's later head.

vLLM 0.14.1, vllm-ascend 0.14.0rc1, CANN 8.5.

n = 16 and two rounds of the 235B as in the published recipes, the article does not state them; threshold 32 of the
later runs is a quarter of max_num_seqs, as their scripts set it.
"""

_RECIPES = {
    "32b": "dapo-qwen3-32b-32die",
    "235b": "dapo-qwen3-235b-a22b-128die",
    "customer": "dapo-qwen3-32b-128die-customer",
}
ARTICLE = {
    name: {what: tuple(seconds) for what, seconds in CURVES["seconds"][recipe].items()}
    for name, recipe in _RECIPES.items()
}
"""Seconds without and with SAM. round: mean over the data-parallel ranks; rollout: of a training step; step: in all."""

LATER = {"grpo": {"off": 2444.0, "on": 2106.0, "graph": 1621.0}, "dapo": {"off": 4562.0, "on": 4109.0, "graph": 3261.0}}
"""Seconds of the first step's generation, mean over ranks: eager, eager with SAM, graphs with SAM. README of
llm_rl/qwen3 at the repository's head, where the method's name is rewritten to ngram before the drafter is built: the
drafts are probably vLLM's n-grams."""

STAGES = CURVES["stages"]
MEAN_LENGTHS = CURVES["length"]["off"]
MEAN_235B = 10119.0
"""Tokens of an answer of Qwen3-235B, from the recipe published with the article (32k rollouts)."""


class Served(NamedTuple):
    """A row of vllm-ascend's table of suffix decoding: Qwen3-32B on four Atlas A2, TP4, k = 3, greedy.

    prompt, answer: mean tokens; tpot_ms: without drafts; accepted: share of the draft tokens; gain: of throughput.
    """

    data: str
    running: int
    prompt: int
    answer: int
    tpot_ms: float
    accepted: float
    gain: float


SUFFIX = [
    Served("HumanEval", 1, 150, 2700, 55.1, 0.270, 0.451),
    Served("HumanEval", 15, 150, 2700, 61.6, 0.270, 0.361),
    Served("HumanEval", 26, 150, 2700, 64.7, 0.270, 0.286),
    Served("ARC", 1, 76, 960, 52.8, 0.239, 0.346),
    Served("ARC", 8, 76, 960, 59.1, 0.239, 0.300),
    Served("ARC", 15, 76, 960, 59.8, 0.239, 0.268),
    Served("GSM8K", 1, 67, 1570, 55.5, 0.311, 0.584),
    Served("GSM8K", 17, 67, 1570, 61.5, 0.311, 0.440),
    Served("GSM8K", 26, 67, 1570, 63.9, 0.311, 0.331),
    Served("ShareGPT", 1, 666, 231, 54.1, 0.239, 0.315),
    Served("ShareGPT", 8, 666, 231, 58.8, 0.239, 0.225),
    Served("ShareGPT", 14, 666, 231, 61.8, 0.239, 0.207),
    Served("BoolQ", 1, 207, 314, 54.1, 0.334, 0.456),
    Served("BoolQ", 16, 207, 314, 60.0, 0.334, 0.323),
    Served("BoolQ", 32, 207, 314, 62.7, 0.334, 0.280),
    Served("AGIEval", 1, 735, 1880, 53.1, 0.503, 0.819),
    Served("AGIEval", 24, 735, 1880, 64.0, 0.503, 0.650),
    Served("AGIEval", 34, 735, 1880, 70.0, 0.503, 0.553),
]
"""docs/source/tutorials/features/suffix_speculative_decoding.md of vllm-ascend; added for its release 0.13."""
