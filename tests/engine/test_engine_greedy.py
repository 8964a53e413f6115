# SPDX-License-Identifier: Apache-2.0
"""Speculation changes nothing: greedy answers of the engine with `sam` equal those without, token for token."""

import itertools

from engine_checks import settled, speculated
from tiny_qwen3 import VOCAB


def test_sam_equals_plain_greedy(plain, sam, prompts):
    few = prompts[:8]
    assert sam.run(few) == plain.run(few)
    speculated(sam)


def test_neighbour_of_a_request_at_max_model_len_still_drafts(sam):
    """A prompt of 510 tokens leaves no room for 3 drafts in 512; its neighbour, which holds every token, drafts on.

    Upstream skips the drafter in such steps and verifies 3 zeros for every request.
    """
    before = sam.drafter()
    sam.run([list(range(VOCAB)) * 2, [7] * 510], [60, 2])
    after = sam.drafter()
    assert any(row[2] == 2 for row in sam.rows) and after["steps"] - before["steps"] == len(sam.rows)
    assert 0 < sam.count("drafted") <= after["proposed"] - before["proposed"]


def test_answers_end_where_they_do_without_drafts(plain, sam, prompts):
    """At the first stop token behind min_tokens, wherever in a draft that falls; most tokens are stop tokens here."""
    ends = [{"min_tokens": n, "stop_token_ids": list(range(0, VOCAB, 2))} for n in range(17, 25)]
    assert sam.run([prompts[1]] * 8, each=ends) == plain.run([prompts[1]] * 8, each=ends)
    speculated(sam)


def test_switch_turns_at_the_exact_batch_size(sam, prompts):
    """The decision of a step acts on the next: drafts follow a step of 8 requests, never one of 9 or more."""
    before = sam.drafter()
    sam.run(prompts[:12], [30 + 6 * i for i in range(12)])
    pairs = [(row[2], following[4]) for row, following in itertools.pairwise(sam.rows)]
    assert {8, 9, 12} <= {running for running, _ in pairs}
    assert all(drafted == 0 for running, drafted in pairs if running > 8)
    assert any(drafted > 0 for running, drafted in pairs if running == 8)
    sam.run(prompts[:12], [30 + 6 * i for i in range(12)])
    after = sam.drafter()
    assert after["transitions"] - before["transitions"] >= 3  # on, off, on, off
    assert after["steps_on"] - before["steps_on"] < after["steps"] - before["steps"]


def test_pool_is_empty_after_the_last_request(sam, prompts):
    sam.run(prompts[:5], abort={2})
    assert settled(sam)["requests"] == 0
