# SPDX-License-Identifier: Apache-2.0
"""Tests of a worker in its own process, and of vllm-ascend 0.11's scheduler, which prefills whole prompts first."""

import pytest
from ascend_engine import OLD, Engine
from engine_checks import speculated
from started import started

apart = started(
    Engine,
    scope="module",
    sam={"threshold": 3},
    distributed_executor_backend="mp",
    async_scheduling=False,
)
"""Engine whose worker runs in its own process, and in which each step waits for the drafts."""


def test_no_call_asks_for_drafts(cpu, apart, prompts):
    """A call to the worker costs a message each way, so the engine must never ask for drafts."""
    apart.ask("refuse_draft_calls")
    lengths = [10, 20, 30, 40, 50, 60]
    assert apart.run(prompts[:6], lengths) == cpu.run(prompts[:6], lengths)
    speculated(apart)
    assert apart.drafter()["steps"] > apart.drafter()["steps_on"] + 5


@pytest.mark.skipif(OLD, reason="vLLM 0.11 freezes nothing in a worker")
def test_a_collection_reads_nothing_of_what_the_worker_started_with(apart):
    """Imports are frozen before the fork. The worker must also freeze some 20,000 objects of its start."""
    assert apart.ask("collected_objects")[0] < 1_000


@pytest.mark.skipif(not OLD, reason="0.23 has vLLM's scheduler")
def test_ascend_scheduler_gives_the_same_answers(model, cpu, prompts):
    settings = {"additional_config": {"ascend_scheduler_config": {"enabled": True}}}
    engine = Engine(model, sam={"threshold": 64}, **settings)
    assert engine.run(prompts[:12], 50, stagger=3) == cpu.run(prompts[:12], 50)
    speculated(engine)
    assert engine.ask("calls")[0]["_npu_flash_attention"] > 0
    engine.stop()
