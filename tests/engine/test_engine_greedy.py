# SPDX-License-Identifier: Apache-2.0
"""Speculation changes nothing: greedy answers of the engine with `sam` equal those without, token for token."""

import random

from conftest import KNOWN_PROMPT
from engine_checks import settled, speculated
from tiny_qwen3 import VOCAB


def test_sam_equals_plain_greedy(plain, sam, prompts):
    few = prompts[:8]
    assert sam.run(few) == plain.run(few)
    speculated(sam)


def test_staggered_arrivals(plain, sam, prompts):
    lengths = [20 + 9 * i for i in range(12)]
    assert sam.run(prompts[:12], lengths, stagger=4) == plain.run(prompts[:12], lengths)
    speculated(sam)


def test_sixty_four_requests_over_the_threshold(plain, sam, prompts):
    lengths = [16 + 3 * i for i in range(64)]
    assert sam.run(prompts, lengths) == plain.run(prompts, lengths)
    speculated(sam)


def test_preemption_and_prompts_longer_than_a_chunk(plain, tight):
    rng = random.Random(1)
    prompts = [[rng.randrange(VOCAB - 1) for _ in range(70)] for _ in range(10)]
    assert tight.run(prompts, 50) == plain.run(prompts, 50)
    speculated(tight)
    assert tight.log.preemptions > 0, "nothing was preempted: the test shows nothing"


def test_near_max_model_len(plain, tight):
    rng = random.Random(2)
    prompts = [[rng.randrange(VOCAB - 1) for _ in range(n)] for n in (100, 121, 124, 126)]
    lengths = [28, 7, 4, 2]
    assert tight.run(prompts, lengths) == plain.run(prompts, lengths)
    speculated(tight)


def test_neighbour_of_a_request_at_max_model_len_still_drafts(sam):
    """A prompt of 510 tokens leaves no room for 3 drafts in 512; its neighbour, which holds every token, drafts on.

    Upstream skips the drafter in such steps and verifies 3 zeros for every request.
    """
    before = sam.drafter()
    sam.run([list(range(VOCAB)) * 2, [7] * 510], [60, 2])
    after = sam.drafter()
    assert any(row[2] == 2 for row in sam.rows)
    assert after["steps"] - before["steps"] == len(sam.rows)
    assert 0 < sam.count("drafted") <= after["proposed"] - before["proposed"]


def test_corpus_drafts_for_a_prompt_that_was_never_asked(plain, tight):
    before = tight.drafter()
    assert tight.run([KNOWN_PROMPT]) == plain.run([KNOWN_PROMPT])
    after = tight.drafter()
    assert after["accepted_corpus"] - before["accepted_corpus"] > 10
    assert tight.count("tokens") / tight.count("running") > 2


def test_abort(plain, sam, prompts):
    kept = plain.run(prompts[:6])
    answers = sam.run(prompts[:6], abort={1, 4})
    assert [a for i, a in enumerate(answers) if i not in (1, 4)] == [a for i, a in enumerate(kept) if i not in (1, 4)]
    for i in (1, 4):
        assert answers[i] == kept[i][: len(answers[i])] and len(answers[i]) < len(kept[i])


def test_answers_end_where_they_do_without_drafts(plain, sam, prompts):
    """At the first stop token behind min_tokens, wherever in a draft that falls; most tokens are stop tokens here."""
    ends = [{"min_tokens": n, "stop_token_ids": list(range(0, VOCAB, 2))} for n in range(17, 25)]
    assert sam.run([prompts[1]] * 8, each=ends) == plain.run([prompts[1]] * 8, each=ends)
    speculated(sam)


def test_repeated_prompts_reach_more_than_one_and_a_half_tokens_a_step(plain, sam, prompts):
    sam.run(prompts[:4])
    before = sam.drafter()
    again = sam.run(prompts[:4])
    after = sam.drafter()
    assert again == plain.run(prompts[:4])
    assert after["accepted_history"] > before["accepted_history"]
    assert plain.count("tokens") == plain.count("running")
    assert sam.count("tokens") / sam.count("running") > 1.5


def test_switch_turns_at_the_exact_batch_size(sam, prompts):
    """The decision of a step acts on the next: drafts follow a step of 8 requests, never one of 9 or more."""
    before = sam.drafter()
    sam.run(prompts[:12], [30 + 6 * i for i in range(12)])
    running = [int(row[2]) for row in sam.rows]
    drafted = [row[4] for row in sam.rows]
    seen = set(running)
    assert {8, 9, 12} <= seen
    assert all(drafted[i + 1] == 0 for i, n in enumerate(running[:-1]) if n > 8)
    assert any(drafted[i + 1] > 0 for i, n in enumerate(running[:-1]) if n == 8)
    sam.run(prompts[:12], [30 + 6 * i for i in range(12)])
    after = sam.drafter()
    assert after["transitions"] - before["transitions"] >= 3  # on, off, on, off
    assert after["steps_on"] - before["steps_on"] < after["steps"] - before["steps"]


def test_off_costs_nothing(plain, sam, prompts):
    """Above the threshold a step is that of an engine without speculation: one token a request, nothing looked up."""
    before = sam.drafter()
    assert sam.run(prompts, 20) == plain.run(prompts, 20)
    after = sam.drafter()
    off = [row for previous, row in zip(sam.rows, sam.rows[1:], strict=False) if previous[2] > 8]
    assert len(off) >= 19 and sum(row[2] for row in off) >= 64 * 16
    assert all(row[3] == row[2] and row[4] == 0 for row in off)
    # every step above the threshold was one with the switch off, and only steps with it on proposed something
    within = sum(row[2] <= 8 for row in sam.rows)
    assert after["steps_on"] - before["steps_on"] == within
    assert after["proposed"] - before["proposed"] <= 3 * sum(row[2] for row in sam.rows if row[2] <= 8)


def test_pool_is_empty_after_the_last_request(sam, prompts):
    sam.run(prompts[:5], abort={2})
    assert settled(sam)["requests"] == 0
