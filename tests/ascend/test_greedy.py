# SPDX-License-Identifier: Apache-2.0
"""Speculation on vllm-ascend changes nothing: greedy answers equal those without, token for token."""

import pytest
from ascend_engine import DECODE, OLD
from engine_checks import salts_share_nothing, settled, speculated

K = 3


def test_sam_equals_the_cpu_backend(cpu, plain, sam, prompts):
    few = prompts[:8]
    expected = cpu.run(few)
    assert plain.run(few) == expected
    assert sam.run(few) == expected
    speculated(sam)


def test_a_resumed_answer_keeps_its_group(cpu, sam, prompts):
    """Drafts of an answer that is sent anew as prompt and first part come from an earlier answer of the same name."""
    (answer,) = cpu.run(prompts[40:41])
    name = [{"extra_args": {"sam_group": "task"}}]
    assert sam.run(prompts[40:41], each=name) == [answer]
    before = sam.drafter()["accepted_history"]
    assert sam.run([prompts[40] + answer[:20]], 44, each=name) == [answer[20:]]
    named = sam.drafter()["accepted_history"] - before
    assert named > 11
    assert sam.run([prompts[40] + answer[:20]], 44) == [answer[20:]]
    assert sam.drafter()["accepted_history"] - before == named


def test_salts_share_nothing(sam):
    salts_share_nothing(sam, [(7 * i * i + 3 * i) % 40 for i in range(50)])


def test_switch_turns_at_the_exact_batch_size(cpu, sam, prompts):
    """The decision of a step acts on the next: drafts follow a step of 8 requests, never one of 9 or more."""
    lengths = [30 + 6 * i for i in range(12)]
    before = sam.drafter()
    assert sam.run(prompts[:12], lengths) == cpu.run(prompts[:12], lengths)
    running = [int(row[2]) for row in sam.rows]
    drafted = [row[4] for row in sam.rows]
    assert {8, 9, 12} <= set(running)
    assert all(drafted[i + 1] == 0 for i, n in enumerate(running[:-1]) if n > 8)
    assert any(drafted[i + 1] > 0 for i, n in enumerate(running[:-1]) if n == 8)
    sam.run(prompts[:12], lengths)
    after = sam.drafter()
    assert after["transitions"] - before["transitions"] >= 3  # on, off, on, off
    assert after["steps_on"] - before["steps_on"] < after["steps"] - before["steps"]


def test_requests_that_arrive_turn_it_off_and_their_end_on_again(cpu, sam, prompts):
    """8 requests draft, 4 more arrive while their drafts are scheduled: those are verified and no others follow."""
    prompts, lengths = prompts[:12], [90] * 8 + [20] * 4
    assert sam.run(prompts, lengths, stagger=2) == cpu.run(prompts, lengths)
    running = [int(row[2]) for row in sam.rows]
    drafted = [row[4] for row in sam.rows]
    over = [i for i, n in enumerate(running) if n > 8]
    assert sum(drafted[: over[0]]) > 0 and sum(drafted[over[-1] + 2 :]) > 0
    assert all(drafted[i + 1] == 0 for i in over if i + 1 < len(drafted))


def test_off_costs_nothing(cpu, sam, prompts):
    """Above the threshold a step is that of an engine without speculation: the decode operator, one token a request."""
    before, calls = sam.drafter(), sam.ask("calls")[0]
    assert sam.run(prompts, 20) == cpu.run(prompts, 20)
    after, calls_after = sam.drafter(), sam.ask("calls")[0]
    off = [row for previous, row in zip(sam.rows, sam.rows[1:], strict=False) if previous[2] > 8]
    assert len(off) >= 18 and max(row[2] for row in off) == 64
    assert all(row[3] == row[2] and row[4] == 0 for row in off)
    decode = calls_after[DECODE] - calls.get(DECODE, 0)
    assert decode >= 2 * (len(off) - 2)  # 2 layers; at most two of these steps hold prompts
    within = sum(0 < row[2] <= 8 for row in sam.rows)
    # an engine that schedules asynchronously begins up to two steps more than it needs
    assert within <= after["steps_on"] - before["steps_on"] <= within + (0 if OLD else 2)
    assert after["proposed"] - before["proposed"] <= K * sum(row[2] for row in sam.rows if row[2] <= 8)


@pytest.mark.parametrize("requests", [6, 32])
def test_every_sampled_token_is_fed_once(cpu, sam, prompts, requests):
    """With the switch on and off, and none that a step samples behind the end of an answer."""
    before = sam.pool()["appended"]
    answers = sam.run(prompts[:requests], 40)
    settled(sam)
    assert sam.pool()["appended"] - before == 40 * requests
    assert answers == cpu.run(prompts[:requests], 40)


def test_pool_is_empty_after_the_last_request(cpu, sam, prompts):
    """Also after one that is aborted, which leaves the others their answers."""
    kept, answers = cpu.run(prompts[:6]), sam.run(prompts[:6], abort={2})
    speculated(sam)
    assert settled(sam)["requests"] == sam.pool()["slots_open"] == 0
    aborted, whole = answers.pop(2), kept.pop(2)
    assert answers == kept and aborted == whole[: len(aborted)] != whole
