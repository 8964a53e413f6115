# SPDX-License-Identifier: Apache-2.0
"""Speculation on vllm-ascend does not change a single token of greedy answers."""

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
    """A resumed answer is sent as its prompt and its first part; drafts come from an earlier answer of its group."""
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
    """Each step decides for the next step: drafts may follow a step with 8 requests, never a step with 9 or more."""
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
    """4 requests arrive while drafts of 8 others are scheduled. These drafts are verified, and no others follow."""
    prompts, lengths = prompts[:12], [90] * 8 + [20] * 4
    assert sam.run(prompts, lengths, stagger=2) == cpu.run(prompts, lengths)
    running = [int(row[2]) for row in sam.rows]
    drafted = [row[4] for row in sam.rows]
    over = [i for i, n in enumerate(running) if n > 8]
    assert sum(drafted[: over[0]]) > 0 and sum(drafted[over[-1] + 2 :]) > 0
    assert all(drafted[i + 1] == 0 for i in over if i + 1 < len(drafted))


def test_off_costs_nothing(cpu, sam, prompts):
    """Above the threshold a step runs the decode operator with one token per request, as without speculation."""
    before, calls = sam.drafter(), sam.ask("calls")[0]
    assert sam.run(prompts, 20) == cpu.run(prompts, 20)
    after, calls_after = sam.drafter(), sam.ask("calls")[0]
    off = [row for previous, row in zip(sam.rows, sam.rows[1:], strict=False) if previous[2] > 8]
    assert len(off) >= 18 and max(row[2] for row in off) == 64
    assert all(row[3] == row[2] and row[4] == 0 for row in off)
    decode = calls_after[DECODE] - calls.get(DECODE, 0)
    assert decode >= 2 * (len(off) - 2)  # 2 layers; at most two of these steps hold prompts
    within = sum(0 < row[2] <= 8 for row in sam.rows)
    # with asynchronous scheduling an engine begins up to two steps that it does not need
    assert within <= after["steps_on"] - before["steps_on"] <= within + (0 if OLD else 2)
    assert after["proposed"] - before["proposed"] <= K * sum(row[2] for row in sam.rows if row[2] <= 8)


@pytest.mark.parametrize("requests", [6, 32])
def test_every_sampled_token_is_fed_once(cpu, sam, prompts, requests):
    """Tokens that a step samples after the end of an answer are not indexed. With 32 requests the switch is off."""
    before = sam.pool()["appended"]
    answers = sam.run(prompts[:requests], 40)
    settled(sam)
    assert sam.pool()["appended"] - before == 40 * requests
    assert answers == cpu.run(prompts[:requests], 40)


def test_pool_is_empty_after_the_last_request(cpu, sam, prompts):
    """One request is aborted. The pool is still empty at the end, and the other answers do not change."""
    kept, answers = cpu.run(prompts[:6]), sam.run(prompts[:6], abort={2})
    speculated(sam)
    assert settled(sam)["requests"] == sam.pool()["slots_open"] == 0
    aborted, whole = answers.pop(2), kept.pop(2)
    assert answers == kept and aborted == whole[: len(aborted)] != whole
