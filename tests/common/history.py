# SPDX-License-Identifier: Apache-2.0
"""An engine that is started on a folder of history, as one that has ended leaves it."""

from sam_core import Pool


def check_it_is_found_again(start, speculated, settled, folder, rank, prompts, answers):
    """start(sam=options): an engine of this `rank`; speculated, settled: its own checks; folder: made here; prompts,
    answers: lists of token ids."""
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
