# SPDX-License-Identifier: Apache-2.0
"""A folder of history, as an engine that has ended leaves it."""

from sam_core import Pool


def leave(folder, rank, prompts, answers):
    """folder: made here; rank: the engine's; prompts, answers: lists of token ids."""
    pool = Pool()
    slots = [pool.open(prompt) for prompt in prompts]
    for slot, answer in zip(slots, answers, strict=True):
        pool.append(slot, answer)
        pool.close(slot)
    (folder / f"engine-{rank}").mkdir(parents=True)
    pool.save(folder / f"engine-{rank}/pool")


def texts(folder, rank):
    return Pool.describe(folder / f"engine-{rank}/pool")["texts"]
