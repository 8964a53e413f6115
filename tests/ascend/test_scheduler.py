# SPDX-License-Identifier: Apache-2.0
"""A worker in a process of its own, and 0.11's own scheduler, which prefills whole prompts first."""

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
"""The worker is a process of its own, and each step waits for the drafts."""


def test_no_call_asks_for_drafts(cpu, apart, prompts):
    """A call is a message each way; drafting or not."""
    apart.ask("refuse_draft_calls")
    lengths = [10, 20, 30, 40, 50, 60]
    assert apart.run(prompts[:6], lengths) == cpu.run(prompts[:6], lengths)
    speculated(apart)
    assert apart.drafter()["steps"] > apart.drafter()["steps_on"] + 5


@pytest.mark.skipif(OLD, reason="vLLM 0.11 freezes nothing in a worker")
def test_a_collection_reads_nothing_of_what_the_worker_started_with(apart):
    """Its process is a fork of one that has frozen what it imported: what is left is the start itself, some 20,000."""
    assert apart.ask("collected_objects")[0] < 1_000


@pytest.mark.skipif(not OLD, reason="0.23 has vLLM's scheduler")
def test_ascend_scheduler_gives_the_same_answers(model, cpu, prompts):
    settings = {"additional_config": {"ascend_scheduler_config": {"enabled": True}}}
    engine = Engine(model, sam={"threshold": 64}, **settings)
    assert engine.run(prompts[:12], 50, stagger=3) == cpu.run(prompts[:12], 50)
    speculated(engine)
    assert engine.ask("calls")[0]["_npu_flash_attention"] > 0
    engine.stop()
