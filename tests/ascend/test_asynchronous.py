# SPDX-License-Identifier: Apache-2.0
"""With asynchronous scheduling, drafts do not change the texts, and the index holds the answers and nothing else."""

import device_costs as costs
import pytest
from ascend_engine import OLD, Engine
from engine_checks import go_on_from_what_they_had, settled, speculated
from started import started
from tiny_qwen3 import VOCAB

pytestmark = pytest.mark.skipif(OLD, reason="vLLM 0.11 schedules with drafts synchronously")
K = 3


tight = started(
    Engine,
    scope="module",
    sam={"threshold": 6, "min_prob": 0},
    k=K,
    max_model_len=256,
    max_num_seqs=16,
    max_num_batched_tokens=48,
    num_gpu_blocks_override=6,
    enable_prefix_caching=False,
    enable_sleep_mode=True,
    environment={"VLLM_ASCEND_ENABLE_NZ": "0"},
)
"""Engine that drafts 3 tokens while at most 6 requests run. Its KV cache has 6 blocks, prompt chunks 48 tokens."""


def test_the_engine_schedules_asynchronously(tight, plain, graphs):
    assert [engine.ask("scheduling") for engine in (tight, plain, graphs)] == 3 * [[[False, True]]]


def test_drafts_are_verified_and_counted(cpu, sam, prompts):
    """The counters count the drafts that steps verified, not the placeholders that were planned."""
    before, lengths = sam.drafter(), [60] * 4 + [1] * 4  # an answer of one token has no draft
    assert sam.run(prompts[:8], lengths) == cpu.run(prompts[:8], lengths)
    speculated(sam)
    after = sam.drafter()
    assert 0 < sam.count("drafted") <= after["proposed"] - before["proposed"] < K * sam.count("running")


def test_while_off_steps_are_planned_without_placeholders(cpu, sam, prompts):
    """The engine learns the state of the switch from the output of a step, so planning changes two steps later."""
    lengths = [16] * 8 + [40] * 4
    sam.ask("note_plans")
    assert sam.run(prompts[:12], lengths) == cpu.run(prompts[:12], lengths)
    speculated(sam)
    planned = sam.ask("noted_plans")[0]
    off = [placeholders for requests, placeholders in planned if requests > 8]
    assert len(off) > 10 and not any(off[3:]), planned
    assert sum(placeholders > 0 for requests, placeholders in planned if requests <= 4) > 8, planned


def test_while_off_what_is_sampled_is_indexed(cpu, sam, prompts):
    """While the switch is off, the drafter reads the sampled tokens of up to 32 steps at once."""
    lengths = [90 - 5 * (i % 3) for i in range(12)]
    sam.ask("note_answers")
    before = sam.pool()["appended"]
    expected = cpu.run(prompts[:12], lengths)
    assert sam.run(prompts[:12], lengths) == expected
    assert sam.count("drafted") < sum(lengths) / 4, "the switch was on most of the time"
    settled(sam)
    assert sorted(sam.ask("noted_answers")[0]) == sorted(expected)
    assert sam.pool()["appended"] - before == sum(lengths)


@pytest.fixture(scope="module")
def trained(make_model):
    """Return the folder of the same model with other weights."""
    return make_model(1, num_attention_heads=2, num_key_value_heads=1, head_dim=128)


def test_a_request_with_penalties_joins_while_the_switch_is_off(cpu, plain, sam, prompts):
    """For penalties the runner completes the output tokens of all requests, including tokens that are not read yet."""
    minimum = {"min_tokens": 30, "stop_token_ids": list(range(0, VOCAB, 2))}
    each = [{}] * 11 + [minimum] + [{"repetition_penalty": 1.3}] * 2
    for shortest in (20, 60):
        lengths = [shortest + 2 * i for i in range(12)] + [15, 30]
        expected = cpu.run(prompts[:14], lengths, stagger=1, each=each)
        assert plain.run(prompts[:14], lengths, stagger=1, each=each) == expected
        assert sam.run(prompts[:14], lengths, stagger=1, each=each) == expected
        speculated(sam)
        settled(sam)


@pytest.mark.parametrize("threshold", [6, 0], ids=["drafting", "switched off"])
def test_new_weights_in_a_pause_and_asleep(cpu, tight, trained, model, prompts, threshold):
    """Running requests keep their tokens and continue with the new weights; the other requests have not begun yet."""
    prompts = prompts[:10]  # 6 of them run, each in one block
    old = cpu.run(prompts, 40)
    tight.ask("keep_off", threshold=threshold)
    tight.ask("note_answers", feed_all=True)
    answers = tight.run(prompts, 40, renew=trained)
    assert (tight.count("drafted") > 0) == (threshold > 0)
    assert all(answer != whole for answer, whole in zip(answers, old, strict=True))
    settled(tight)
    assert sorted(tight.ask("noted_answers")[0]) == sorted(answers)
    tight.ask("keep_off", threshold=6)
    go_on_from_what_they_had(tight, prompts, answers, old)
    tight.ask("renew", weights=str(model))
    assert tight.run(prompts, 40) == old
    speculated(tight)


def test_a_step_waits_no_more_than_one_of_a_plain_engine_that_schedules_asynchronously():
    """While the switch is off, a step also launches no more kernels. Steps with `sam` are planned with placeholders,
    whether or not there are drafts."""
    settings, batch, layers, sam = {"async_scheduling": True}, 4, 2, {"min_prob": 0, "threshold": 64}
    arms = {
        "plain": costs.Arm(None, settings, costs.SAMPLED, False, None),
        "off": costs.Arm(sam, settings, costs.SAMPLED, False, "plain"),
        "drafting": costs.Arm(sam, settings, costs.SAMPLED, True, "plain"),
    }
    measured = costs.measure(arms, (batch,), (layers,))
    plain, off, drafting = (
        {kind: costs.total(measured[arm][batch][layers], kind) for kind in ("wait", "AICPU", "launch", "unknown")}
        for arm in arms
    )
    assert all(off[kind] <= plain[kind] for kind in plain), (off, plain)
    assert drafting["launch"] > plain["launch"] and drafting["unknown"] == 0
    assert drafting["wait"] <= plain["wait"] and drafting["AICPU"] <= plain["AICPU"], (drafting, plain)
