# SPDX-License-Identifier: Apache-2.0
"""Requests that name their group share drafts over resumptions, and their texts stay the same."""

SEEDED = {"temperature": 1.0, "seed": 2**41}
LENGTH = 60


def named(name):
    return SEEDED | {"extra_args": {"sam_group": name}}


def resumed(engine, prompt, sampling):
    """The answer of LENGTH tokens, asked in parts: the first one aborted, then 7 tokens each."""
    (answer,) = engine.run([prompt], 30, abort=[0], each=[sampling])
    while len(answer) < LENGTH:
        answer += engine.run([prompt + answer], min(7, LENGTH - len(answer)), each=[sampling])[0]
    return answer


def borrowed(engine):
    """Accepted tokens from other answers, and all drafted ones that were verified."""
    counts = engine.drafter()
    return counts["accepted_group"] + counts["accepted_history"]


def test_an_answer_that_is_resumed_keeps_its_group(tight):
    """A second answer of the same seed is that of the first, token for token, and is drafted from it to the end."""
    prompt = [(7 * i + 7) % 60 for i in range(40)]
    (whole,) = tight.run([prompt], LENGTH, each=[named("whole")])
    before = borrowed(tight)
    assert resumed(tight, prompt, named("whole")) == whole
    with_name = borrowed(tight) - before
    assert with_name > LENGTH / 4
    before = borrowed(tight)
    assert resumed(tight, prompt, SEEDED) == whole
    assert borrowed(tight) - before < with_name / 2, "without names resumed answers found each other as well"
