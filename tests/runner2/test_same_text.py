# SPDX-License-Identifier: Apache-2.0
"""A drafter that waits for each step does not change the text of the second runner."""

from conftest import appended
from engine_checks import salts_share_nothing, settled, speculated

SAMPLED = [
    {"temperature": 1.0, "seed": i, **more}
    for i, more in enumerate(
        [
            {},
            {"top_k": 5},
            {"top_p": 0.8, "min_tokens": 20, "stop_token_ids": list(range(0, 63, 3))},
            {"temperature": 0.7, "repetition_penalty": 1.2},
        ]
    )
]
"""Sampling parameters of four requests."""


def test_text_is_that_of_plain_runner_2(plain, synchronous, prompts):
    for each in (None, SAMPLED):
        assert synchronous.run(prompts[:4], 40, stagger=3, each=each) == plain.run(prompts[:4], 40, each=each)
        speculated(synchronous)
    assert synchronous.count("drafted") < 3 * synchronous.count("running"), "all drafts had 3 tokens"


def test_texts_end_where_the_answers_do(plain, synchronous, prompts):
    """An answer ends at a stop token in the middle of a draft. Tokens that were sampled after it are not indexed."""
    answers = plain.run(prompts[:3], 40)
    synchronous.run(prompts[:3], 40)  # so that later drafts continue beyond the stop tokens
    stops = [{"stop_token_ids": [answer[25 + i]]} for i, answer in enumerate(answers)]
    expected = plain.run(prompts[:3], 40, each=stops)
    before = appended(synchronous)
    assert synchronous.run(prompts[:3], 40, each=stops) == expected
    speculated(synchronous)
    settled(synchronous)
    assert appended(synchronous) - before == sum(map(len, expected))


def test_turns_of_a_session(plain, synchronous, asynchronous, prompts):
    """A turn ends inside a draft. The next turn begins after its last token, even if later tokens were accepted."""
    accepted = dict.fromkeys((synchronous, asynchronous), 0)
    for length in (2, 3, 5, 8):
        turns, lengths = [prompts[0], [3, 4, 5, 6], prompts[1]], [length, 12, 20]
        expected = plain.run_session(turns, lengths)
        for engine in accepted:
            assert engine.run_session(turns, lengths) == expected
            accepted[engine] += engine.count("accepted")
    assert all(accepted.values())


def test_salts_share_nothing(asynchronous):
    salts_share_nothing(asynchronous, [(7 * i * i + 3 * i) % 40 for i in range(50)])
