# SPDX-License-Identifier: Apache-2.0
"""What is asked of every kind of engine: count(), drafter(), run(), stop() are those of tests/engine and tests/ascend."""

import time

from sam_core import Pool


def speculated(engine):
    assert engine.count("drafted") > 0, "nothing was drafted: the test shows nothing"
    assert engine.count("accepted") > 0, "no draft was accepted: the test shows nothing"


def settled(engine):
    """The drafter's counters once it holds no request: the engine hears of the last end in a step of its own."""
    for _ in range(50):
        counters = engine.drafter()
        if counters["requests"] == 0:
            return counters
        time.sleep(0.1)
    raise AssertionError(f"{counters['requests']} requests are still indexed")


def go_on_from_what_they_had(engine, prompts, answers, old):
    """Answers whose weights changed on the way begin as the old ones, and go on as `engine`, which has the new weights, does.

    old: answers with the old weights, as long as `answers`.
    """
    pairs = [list(zip(*pair, strict=True)) for pair in zip(answers, old, strict=True)]
    kept = [next((i for i, (a, b) in enumerate(pair) if a != b), len(pair)) for pair in pairs]
    assert 0 < max(kept) < len(old[0]), kept
    rest = [prompt + answer[:n] for prompt, answer, n in zip(prompts, answers, kept, strict=False)]
    left = [answer[n:] for answer, n in zip(answers, kept, strict=True)]
    assert left == engine.run(rest, [len(whole) - n for whole, n in zip(old, kept, strict=True)])


def history_is_found_again(start, folder, rank, prompts, answers):
    """An engine drafts from what the one before it, of the same rank, had answered, answers the same, and adds to it.

    start(sam=options): an engine of this rank; folder: made here; prompts, answers: lists of token ids.
    """
    path = folder / f"engine-{rank}" / "pool"
    pool = Pool()
    slots = [pool.open(prompt) for prompt in prompts]
    for slot, answer in zip(slots, answers, strict=True):
        pool.append(slot, answer)
        pool.close(slot)
    path.parent.mkdir(parents=True)
    pool.save(path)
    engine = start(sam={"threshold": 64, "history": str(folder)})
    assert engine.run(prompts) == answers
    speculated(engine)
    assert engine.drafter()["accepted_history"] > 50, "it drafted from its own texts alone"
    settled(engine)
    engine.stop()
    assert Pool.describe(path)["texts"] == 2 * len(prompts), "what it answered itself was not saved"
