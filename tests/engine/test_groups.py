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


@pytest.mark.parametrize("step", [7, 20])
def test_an_answer_that_is_resumed_keeps_its_group(tight, step):
    """A second answer of the same seed is that of the first, token for token, and is drafted from it to the end."""
    prompt = [(7 * i + step) % 60 for i in range(40)]
    (whole,) = tight.run([prompt], LENGTH, each=[named(f"whole {step}")])
    before = borrowed(tight)
    assert resumed(tight, prompt, step, named(f"whole {step}"), aborted=True) == whole
    with_name = borrowed(tight) - before
    assert with_name > LENGTH / 2
    before = borrowed(tight)
    assert resumed(tight, prompt, step, SEEDED, aborted=True) == whole
    assert borrowed(tight) - before < with_name / 2, "without names resumed answers found each other as well"


def test_turns_of_a_conversation_stay_with_their_siblings(tight):
    """The second trial of a task repeats the first but for what the tool says; its second turn is drafted from there."""
    prompt = [(11 * i + 3) % 60 for i in range(20)]
    for tool in ([1, 2, 3], [4, 2, 3, 9]):
        (call,) = tight.run([prompt], 20, each=[named("task")])
        before = borrowed(tight)
        (answer,) = tight.run([prompt + call + tool], 30, each=[named("task", temperature=0.0)])
        after = borrowed(tight)
    unnamed = borrowed(tight)
    assert tight.run([prompt + call + tool], 30, temperature=0.0) == [answer]
    assert after - before >= borrowed(tight) - unnamed == 0


def test_groups_of_other_names_share_nothing(tight):
    prompt = [(13 * i + 5) % 60 for i in range(30)]
    tight.run([prompt], LENGTH, each=[named("training")])
    before = borrowed(tight)
    tight.run([prompt], LENGTH, each=[named("validation")])
    assert borrowed(tight) == before
    tight.run([prompt], LENGTH, each=[named("validation")])
    assert borrowed(tight) > before
