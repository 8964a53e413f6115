# SPDX-License-Identifier: Apache-2.0
"""Requests that name their group share drafts over resumptions, and their texts stay the same; requests with
different cache_salts share nothing."""

from engine_checks import salts_share_nothing

SEEDED = {"temperature": 1.0, "seed": 2**41}
NAMED = SEEDED | {"extra_args": {"sam_group": "whole"}}
LENGTH = 60


def resumed(engine, prompt, sampling):
    """The answer of LENGTH tokens, asked in parts: the first one aborted, then 7 tokens each. And how many of them were
    accepted from other answers."""
    before = engine.drafter()
    (answer,) = engine.run([prompt], 30, abort=[0], each=[sampling])
    while len(answer) < LENGTH:
        answer += engine.run([prompt + answer], min(7, LENGTH - len(answer)), each=[sampling])[0]
    after = engine.drafter()
    return answer, sum(after[name] - before[name] for name in ("accepted_group", "accepted_history"))


def test_an_answer_that_is_resumed_keeps_its_group(tight):
    """A second answer of the same seed is that of the first, token for token, and is drafted from it to the end."""
    prompt = [(7 * i + 7) % 60 for i in range(40)]
    (whole,) = tight.run([prompt], LENGTH, each=[NAMED])
    (named, borrowed), (nameless, fewer) = (resumed(tight, prompt, sampling) for sampling in (NAMED, SEEDED))
    assert named == nameless == whole and borrowed > LENGTH / 4
    assert fewer < borrowed / 2, "without names resumed answers found each other as well"


def test_salts_share_nothing(tight):
    salts_share_nothing(tight, [(7 * i * i + 3 * i) % 40 for i in range(50)])
