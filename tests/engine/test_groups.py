# SPDX-License-Identifier: Apache-2.0
"""Requests that name their group share drafts over turns and resumptions, and their texts stay the same."""

import pytest

SEEDED = {"temperature": 1.0, "seed": 2**41}
LENGTH = 60


def named(name, **sampling):
    return SEEDED | sampling | {"extra_args": {"sam_group": name}}


def resumed(engine, prompt, step, sampling, aborted=False):
    """The answer of LENGTH tokens, asked in parts of `step`; the first one aborted, if that is asked for."""
    answer = []
    while len(answer) < LENGTH:
        size = min(step, LENGTH - len(answer))
        if aborted and not answer:
            answer += engine.run([prompt], 30, abort=[0], each=[sampling])[0]
        else:
            answer += engine.run([prompt + answer], size, each=[sampling])[0]
    return answer


def borrowed(engine):
    """Accepted tokens from other answers, and all drafted ones that were verified."""
    counts = engine.drafter()
    return counts["accepted_group"] + counts["accepted_history"]


@pytest.mark.parametrize("step", [7])
def test_an_answer_that_is_resumed_keeps_its_group(tight, step):
    """A second answer of the same seed is that of the first, token for token, and is drafted from it to the end."""
    prompt = [(7 * i + step) % 60 for i in range(40)]
    (whole,) = tight.run([prompt], LENGTH, each=[named(f"whole {step}")])
    before = borrowed(tight)
    assert resumed(tight, prompt, step, named(f"whole {step}"), aborted=True) == whole
    with_name = borrowed(tight) - before
    assert with_name > LENGTH / 4
    before = borrowed(tight)
    assert resumed(tight, prompt, step, SEEDED, aborted=True) == whole
    assert borrowed(tight) - before < with_name / 2, "without names resumed answers found each other as well"


def test_turns_of_a_conversation_stay_with_their_siblings(tight):
    """A trial's second turn continues the first, behind what a tool said, and is drafted from an earlier trial's."""
    prompt, tool = [(11 * i + 3) % 60 for i in range(20)], [1, 2, 3]
    counts, answers = [], []
    for sampling in (named("task"), named("task"), SEEDED):
        (call,) = tight.run([prompt], 10, each=[sampling])
        before = borrowed(tight)
        answers += tight.run([prompt + call + tool], 50, each=[sampling])
        counts.append(borrowed(tight) - before)
    assert answers[0] == answers[1] == answers[2]
    assert counts[1] > 50 / 4 and counts[0] < 50 / 8 > counts[2]


def test_groups_of_other_names_share_nothing(tight):
    prompt = [(13 * i + 5) % 60 for i in range(30)]
    tight.run([prompt], LENGTH, each=[named("training")])
    before = borrowed(tight)
    tight.run([prompt], LENGTH, each=[named("validation")])
    assert borrowed(tight) == before
    tight.run([prompt], LENGTH, each=[named("validation")])
    assert borrowed(tight) > before
