# SPDX-License-Identifier: Apache-2.0
"""Tests of a mixture of experts over data-parallel ranks, as the servers of verl 0.9.1 run it; tests/rollout tests
verl 0.6.1.

The reference is an Atlas A2 with one rank, which holds all experts and does not speculate. Two ranks run as an A3.
"""

import pytest
import tiny_qwen3
from ascend_engine import OLD, Engine
from engine_checks import speculated
from test_stop_strings import STOPS

pytestmark = pytest.mark.skipif(OLD, reason="0.11 spreads experts in verl's synchronous rollout: tests/rollout")
NUM_EXPERTS = 8
SIZES = {"max_model_len": 256, "max_num_seqs": 16}
RECORD = {"enable_return_routed_experts": True}
SPREAD = {"data_parallel_size": 2, "enable_expert_parallel": True, "front_end": "AsyncLLM"}
SPREAD["compilation_config"] = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 8, 12, 16, 24]}
SPREAD["additional_config"] = {"enable_fused_mc2": 1}
LENGTHS = [30 + 10 * i for i in range(7)]
SEEDS = [{"temperature": 1.0, "seed": seed} for seed in range(7)]
ENDS = [{"stop": STOPS[i % len(STOPS)], "min_tokens": 4 * i} for i in range(7)]
"""Sampling parameters with stop strings, so that some answers, and their recorded experts, end inside a draft."""


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3_moe")
    tiny_qwen3.save(folder, experts=True, num_attention_heads=2, num_key_value_heads=2, head_dim=128)
    return folder


@pytest.fixture(scope="module")
def expected(mixture, prompts):
    """Return answers of one rank, each with the experts of its tokens, which verl's router replay (R3) needs."""
    engine = Engine(mixture, additional_config={"sam_verify": "seeded"}, **SIZES, **RECORD)
    answers = [(engine.run(prompts[:7], LENGTHS, each=each), engine.routed_experts) for each in (None, SEEDS, ENDS)]
    engine.stop()
    recorded = answers[0][1]
    assert [len(tokens) for tokens in recorded] == [len(p) + n - 1 for p, n in zip(prompts, LENGTHS, strict=False)]
    assert {i for tokens in recorded for layers in tokens for layer in layers for i in layer} == set(range(NUM_EXPERTS))
    return answers


def test_recorded_experts_are_those_without_speculation(mixture, expected, prompts):
    """The engine has one rank: with several ranks, vllm-ascend's recorder of experts ends the engine."""
    engine = Engine(mixture, sam={"verify": "seeded", "threshold": 5}, **SIZES, **RECORD)
    for answers, each in zip(expected, (None, SEEDS, ENDS), strict=True):
        assert (engine.run(prompts[:7], LENGTHS, each=each), engine.routed_experts) == answers
        speculated(engine)
    engine.stop()


def test_answers_are_those_of_one_rank_without_speculation(mixture, expected, prompts):
    """Two ranks run the fused expert operator in graphs."""
    (greedy, _), (sampled, _), _ = expected
    spread = Engine(mixture, "a3", sam={"verify": "seeded", "threshold": 5}, **SIZES, **SPREAD)
    before = spread.ask("calls")[0]
    assert spread.run(prompts[:7], LENGTHS) == greedy
    speculated(spread)
    assert spread.run(prompts[:7], LENGTHS, each=SEEDS) == sampled
    speculated(spread)
    calls = {name: count - before.get(name, 0) for name, count in spread.ask("calls")[0].items()}
    held, replays = spread.ask("experts")[0]
    assert held == NUM_EXPERTS // 2 and replays > 0
    assert calls["dispatch_ffn_combine"] > 0 and calls.get("npu_moe_init_routing_v2", 0) == 0
    spread.stop()
