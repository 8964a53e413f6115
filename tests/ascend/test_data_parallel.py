# SPDX-License-Identifier: Apache-2.0
"""Two data-parallel engines behind one client: each drafts, and the answers to a prompt share one of them."""

import pytest
from ascend_engine import OLD, Engine
from engine_checks import speculated
from started import started

needs_asynchronous_server = pytest.mark.skipif(OLD, reason="vLLM 0.11's engines are synchronous")


pair = started(Engine, scope="module", sam={"threshold": 8, "min_prob": 0}, front_end="AsyncLLM", data_parallel_size=2)


@needs_asynchronous_server
def test_both_engines_draft(pair, cpu, prompts):
    """One engine alone would run 12 requests, more than the threshold. The counters are those of both."""
    assert pair.ask("scheduling") == [[False, True]]
    assert pair.run(prompts[:12], 50) == cpu.run(prompts[:12], 50)
    speculated(pair)
    both, first = pair.ask("drafters")
    assert both["proposed"] >= pair.count("drafted") > first["proposed"] > 0 and both["steps"] > first["steps"]


@needs_asynchronous_server
@pytest.mark.parametrize("routed", [True, False])
def test_answers_to_a_prompt_share_an_engine(pair, cpu, prompts, routed):
    """Without the routes vLLM separates them, so these tests would notice."""
    pair.ask("note_engines", routed=routed)
    different = prompts[20:24]
    asked = [prompt for prompt in different for _ in range(4)]
    assert pair.run(asked, 50) == cpu.run(asked, 50)
    speculated(pair)
    engines = [[engine for tokens, engine in pair.sent if tokens == prompt] for prompt in different]
    assert [len(ones) for ones in engines] == 4 * [4]
    assert {engine for ones in engines for engine in ones} == {0, 1}
    assert all(len(set(ones)) == 1 for ones in engines) is routed, engines


CLIENT = ["answers_to_a_prompt_share_an_engine", "other_choices_stay_first"]


@pytest.mark.parametrize("check", [*CLIENT, "vllm_chooses_by_load_without_shared_indexes"])
def test_client(npu_unit, check):
    assert npu_unit[f"check_{check}"] is None
