# SPDX-License-Identifier: Apache-2.0
"""Speculation changes nothing: greedy answers of the engine with `sam` equal those without, token for token."""

from engine_checks import speculated
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
