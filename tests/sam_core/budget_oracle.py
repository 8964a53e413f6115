# SPDX-License-Identifier: Apache-2.0
"""The budget in NumPy, as slow as it is plain: every sum in the same order as in C, so that results are equal bit for
bit."""

import numpy as np
from sam_core.budget import Calibration, Choice

BINS = Calibration.NUM_BINS


def bins(scores):
    return np.minimum((np.asarray(scores, np.float32) * np.float32(BINS)).astype(int), BINS - 1)


def correct(calibration, scores):
    centre = (np.arange(BINS) + 0.5) / BINS
    prior = calibration.PRIOR_SAMPLES * centre
    factors = (calibration.accepted + prior) / (calibration.offered * centre + prior)
    return np.minimum(np.minimum.accumulate(factors[bins(scores)] * scores, axis=1), 1.0)


def sums(values):
    return np.concatenate([[0.0], np.cumsum(values)])


def choose(scores, lengths, contexts, cost, with_prompts=None, guess=0.0, turn=0):
    """As sam_core.budget.choose, but for `uniform`."""
    batch, k = scores.shape
    rows = np.roll(np.arange(batch), -(turn % batch))
    owner = np.repeat(rows, lengths[rows])
    worth = scores[rows][np.arange(k) < lengths[rows, None]]
    sizes = np.arange(batch, batch + len(owner) + 1.0)

    def ordered(rate, owner, worth, price):
        order = np.argsort(rate * price - worth, kind="stable")
        return owner[order], worth[order], price[order]

    price = cost.draft_context * contexts[owner]
    first = owner, worth, price
    f = cost.rows_cost(sizes) + cost.context * contexts.sum()
    f[1:] += cost.verify
    rate, best, accepted = guess or batch / f[0], owner[:0], 0.0
    while True:
        owner, worth, price = ordered(rate, owner, worth, price)
        tokens, seconds = batch + sums(worth), f + sums(price)
        total = int(np.argmin(rate * seconds - tokens))
        better = tokens[total] / seconds[total]
        if not guess and not better > rate * (1 + 1e-12):
            break
        rate, best, accepted, guess = better, owner[:total], tokens[total] - batch, 0.0
    gain = rate * f[0] / batch
    if with_prompts:
        owner, worth, _ = first
        f = with_prompts.rows_cost(sizes)
        f[1:] += with_prompts.verify
        owner, worth, price = ordered(rate, owner, worth, with_prompts.draft_context * contexts[owner])
        tokens, seconds = batch + sums(worth), f + sums(price)
        loss = rate * seconds - tokens
        total = int(np.argmin(loss))
        best, accepted = owner[:total], tokens[total] - batch
        gain = min(gain, 1 + (loss[0] - loss[total]) / batch)
    return Choice(np.bincount(best, minlength=batch), gain, rate, accepted)


def observe(slots, gained, last_slots, drafted, contexts, scores):
    """The sums and counts that sam_core._sam.observe_drafts gives, one request after another."""
    counts, known, drafts, context, draft_context = np.zeros((2, BINS)), 0, 0, 0.0, 0.0
    for slot, tokens in zip(slots.tolist(), gained.tolist(), strict=True):
        for place in np.flatnonzero(last_slots == slot):
            n = int(drafted[place])
            known, drafts = known + 1, drafts + n
            context, draft_context = context + contexts[place], draft_context + n * contexts[place]
            for depth in range(n if tokens else 0):
                counts[int(depth < tokens - 1), bins(scores[place, depth])] += 1
    return (known, drafts, context, draft_context), counts
