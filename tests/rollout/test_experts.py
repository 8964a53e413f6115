# SPDX-License-Identifier: Apache-2.0
"""Experts spread over two data-parallel engines of two tensor-parallel ranks each, as Qwen3-235B-A22B needs it.

The reference is one rank of an Atlas A2 that holds all experts and does not speculate. The other ranks are an A3,
which exchanges tokens with fused operators, and in long steps with all-to-all.
"""

import pytest
from ranks import Rollout, metrics, sam
from started import started

pytestmark = pytest.mark.slow  # five ranks; for vLLM 0.23, tests/ascend/test_experts.py tests the same
SETTINGS = {"n": 2, "seed": 7, "max_num_seqs": 8, "free_cache_engine": True, "scope": "module", "model": "mixture"}
SLEEPS = {"VLLM_ASCEND_ENABLE_NZ": "0"}
SPREAD = {"data_parallel_size": 2, "enable_expert_parallel": True} | sam(verify="seeded", threshold=8)
A3 = SLEEPS | {"STANDIN_A3": "1"}

one = started(Rollout, environment=SLEEPS, engine={"additional_config": {"sam_verify": "seeded"}}, **SETTINGS)
spread = started(Rollout, ranks=4, environment=A3, tensor_model_parallel_size=2, engine=SPREAD, **SETTINGS)


def answers(done):
    """Return the answers to all requests, after checking that both ranks of an engine gave the same ones."""
    for leader, follower in zip(done[::2], done[1::2], strict=True):
        assert leader["answers"] == follower["answers"]
    return [answer for rank in done[::2] for answer in rank["answers"]]


def generate(one, spread, prompts, lengths, **sampling):
    """Return the spread engines' results, whose answers must equal one rank's. prompts, lengths: lists by engine."""
    done = spread.ask("generate_uneven", prompts=prompts, lengths=lengths, **sampling)
    (expected,) = one.ask("generate_uneven", prompts=[sum(prompts, [])], lengths=[sum(lengths, [])], **sampling)
    assert answers(done) == expected["answers"]
    assert expected["operators"]["one"] > 0 and expected["drafted"] == 0
    return done


def test_sampled_answers_are_those_of_one_rank_without_speculation(one, spread, prompts):
    done = spread.ask("generate", prompts=prompts)
    (expected,) = one.ask("generate", prompts=prompts)
    assert answers(done) == expected["answers"]
    assert metrics(done)["rollout/spec/accepted"] > 0


def test_greedy_answers_of_ranks_with_different_numbers_of_drafts(one, spread, prompts):
    done = generate(one, spread, [prompts[:3], prompts[3:]], [[40, 30, 20], [35]])
    assert done[0]["drafted"] != done[2]["drafted"] and min(done[0]["drafted"], done[2]["drafted"]) > 0
    for rank in done:
        assert len(rank["rows"]) == 8 // 4, "experts over ranks"
        assert min(rank["rows"]) > 0.02 * sum(rank["rows"]), "an expert that no token chose"
        assert rank["operators"]["one"] == 0 and rank["operators"]["fused"] > 0


def test_a_rank_without_requests_runs_dummy_batches(one, spread, prompts):
    """A rank runs dummy batches after its last request ends, or all the time if it has none."""
    done = generate(one, spread, [prompts[:1], prompts[1:]], [[5], [40, 40, 40]], temperature=1.0, seed=3)
    assert done[0]["dummies"] > done[0]["steps"] > 0 == done[2]["dummies"]
    assert done[0]["steps"] + done[0]["dummies"] == done[2]["steps"]
    done = generate(one, spread, [prompts, []], [[40] * 4, []])
    assert done[2]["steps"] == 0 < done[0]["steps"] == done[2]["dummies"]
    assert sum(done[2]["rows"]) > 0, "the other engine's tokens go through its experts too"
    assert done[0]["operators"]["all_to_all"] > 0, "no step was too long for the fused operators"


def test_new_weights_reach_every_rank_through_sleep_and_wake_up(one, spread, prompts):
    lengths = [[40, 40], [40, 40]]
    before = generate(one, spread, [prompts[:2], prompts[2:]], lengths)
    for rollout in (one, spread):
        assert all(rollout.ask("next_step")), "sleep kept the weights' memory"
    after = generate(one, spread, [prompts[:2], prompts[2:]], lengths)
    assert after[0]["drafted"] > 0 and answers(after) != answers(before)
