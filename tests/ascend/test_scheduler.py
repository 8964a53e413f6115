# SPDX-License-Identifier: Apache-2.0
"""Heads of 32, a worker in a process of its own, and 0.11's own scheduler, which prefills whole prompts first."""

import pytest
import torch
from ascend_engine import OLD, Engine
from distribution import loaded
from engine_checks import speculated
from started import started


@pytest.fixture(scope="module")
def small_heads(make_model):
    """Heads of 32: _npu_rotary_embedding."""
    return make_model(num_attention_heads=2, num_key_value_heads=1, head_dim=32)


@pytest.fixture(scope="module")
def network(small_heads):
    return loaded(small_heads)


def greedy(network, prompt, tokens):
    """The answer of transformers."""
    ids, fixed = torch.tensor([prompt]), {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    row = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **fixed)
    return row[0, len(prompt) :].tolist()


apart = started(
    Engine,
    scope="module",
    model="small_heads",
    sam={"threshold": 3},
    distributed_executor_backend="mp",
    async_scheduling=False,
)
"""The worker is a process of its own, and each step waits for the drafts."""


def test_no_call_asks_for_drafts(network, apart, prompts):
    """A call is a message each way; drafting or not."""
    apart.ask("refuse_draft_calls")
    answers = apart.run(prompts[:6], [10, 20, 30, 40, 50, 60])
    speculated(apart)
    assert apart.drafter()["steps"] > apart.drafter()["steps_on"] + 5
    assert apart.ask("calls")[0]["_npu_rotary_embedding"] > 0
    assert answers == [greedy(network, prompt, 10 * i) for i, prompt in enumerate(prompts[:6], 1)]


@pytest.mark.skipif(OLD, reason="vLLM 0.11 freezes nothing in a worker")
def test_a_collection_reads_nothing_of_what_the_worker_started_with(apart):
    """Its process is a fork of one that has frozen what it imported: what is left is the start itself, some 20,000."""
    assert apart.ask("collected_objects")[0] < 1_000


@pytest.mark.skipif(not OLD, reason="0.23 has vLLM's scheduler")
def test_ascend_scheduler_equals_transformers(small_heads, network, prompts):
    settings = {"additional_config": {"ascend_scheduler_config": {"enabled": True}}}
    engine = Engine(small_heads, sam={"threshold": 64}, **settings)
    answers = engine.run(prompts[:12], 50, stagger=3)
    speculated(engine)
    assert engine.ask("calls")[0]["_npu_flash_attention"] > 0
    assert answers == [greedy(network, prompt, 50) for prompt in prompts[:12]]
    engine.stop()
