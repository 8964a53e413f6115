# SPDX-License-Identifier: Apache-2.0
"""Checks for every kind of engine, with the methods count(), drafter(), run() and stop() of tests/engine and
tests/ascend."""

import os
import time


def speculated(engine):
    assert engine.count("drafted") > 0, "nothing was drafted: the test shows nothing"
    assert engine.count("accepted") > 0, "no draft was accepted: the test shows nothing"


def settled(engine):
    """Wait until the drafter holds no request; return its counters. The engine ends the last one in a separate step."""
    for _ in range(50):
        counters = engine.drafter()
        if counters["requests"] == 0:
            return counters
        time.sleep(0.1)
    raise AssertionError(f"{counters['requests']} requests are still indexed")


def go_on_from_what_they_had(engine, prompts, answers, old, lengths=None, each=None):
    """Check that answers begin like those of the old weights and continue like those of `engine`, which has the new
    weights.

    old: whole answers with the old weights; lengths: requested tokens, by default those of `old`; each: see run().
    """
    kept = [len(os.path.commonprefix(pair)) for pair in zip(answers, old, strict=True)]
    lengths = lengths or [len(whole) for whole in old]
    changed = [i for i, whole in enumerate(old) if answers[i] != whole]
    assert any(kept[i] for i in changed), f"no answer changed on its way: they kept {kept} tokens"
    assert [answers[i][kept[i] :] for i in changed] == engine.run(
        [prompts[i] + answers[i][: kept[i]] for i in changed],
        [lengths[i] - kept[i] for i in changed],
        each=each and [each[i] for i in changed],
    )


def salts_share_nothing(engine, prompt):
    """Requests with the same prompt or name share drafts only with the same cache_salt and while both run.

    prompt: token ids that no other test of this engine uses.
    """

    def borrowed(named, *salts, stagger=0):
        before = engine.drafter()
        requests = [{"cache_salt": salt, **named} if salt else named for salt in salts]
        engine.run([prompt] * len(salts), 32, stagger=stagger, each=requests)
        after = settled(engine)
        return [after[name] - before[name] for name in ("accepted_group", "accepted_history")]

    for named in ({}, {"extra_args": {"sam_group": "salted"}}):
        for salt in ("a", "b", "a"):
            assert borrowed(named, salt) == [0, 0], "it drafted from a text of another salt, or an ended one"
        for salts in (("a", "b"), (None, "a")):
            assert borrowed(named, *salts, stagger=8)[0] == 0, "two salts share a group"
        assert borrowed(named, "a", "a", stagger=8)[0] > 0, "nothing was shared: the test shows nothing"
