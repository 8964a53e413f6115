# SPDX-License-Identifier: Apache-2.0
"""Runs in a worker: records the answers in a drafter's indexes."""

from sam_core.request_texts import FEED_INTERVAL


class NotingPool:
    """A Pool that records the answers it keeps: `answers` has the token ids of each closed text without its prompt."""

    def __init__(self, pool):
        self.pool, self.answers, self._open = pool, [], {}

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def open(self, *args):
        slot = self.pool.open(*args)
        self._open[slot] = []
        return slot

    def step(self, slots, tokens, counts, *args, starts, **options):
        for slot, row, start, count in zip(slots.tolist(), tokens, starts, counts, strict=False):
            self._open[slot] += row[start : start + count].tolist()
        self.pool.step(slots, tokens, counts, *args, starts=starts, **options)

    def append(self, slot, tokens):
        self._open[slot] += tokens.tolist()
        self.pool.append(slot, tokens)

    def close(self, slot, keep=True):
        answer = self._open.pop(slot)
        if keep:
            self.answers.append(answer)
        self.pool.close(slot, keep)


def note_answers(drafter, feed_all=False):
    """Record the answers that the drafter's pool keeps from now on. The drafter must have no requests.

    feed_all: whether a step without drafts feeds all requests instead of only those whose turn it is.
    """
    texts = drafter.texts
    texts.pool = NotingPool(getattr(texts.pool, "pool", texts.pool))
    vars(texts).pop("feed_turn", None)
    if feed_all:
        feed_turn = texts.feed_turn
        texts.feed_turn = lambda step, num_steps: feed_turn(step, FEED_INTERVAL)


def noted_answers(drafter):
    """The answers recorded since the previous call."""
    pool = drafter.texts.pool
    noted, pool.answers = pool.answers, []
    return noted
