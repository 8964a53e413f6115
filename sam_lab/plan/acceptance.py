# SPDX-License-Identifier: Apache-2.0
"""Expected acceptance of drafts by position in the draft and in the answer, from replayed recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.budget import Calibration, choose

from sam_lab.cost import Cost, RunningCost
from sam_lab.drafters import Watched
from sam_lab.plan.simulate import BINS, EDGES, Policy
from sam_lab.recordings import Answer, make_scopes
from sam_lab.replay import replay

Float64 = npt.NDArray[np.float64]

KS = (1, 2, 3, 4, 6, 8, 12, 15)
MIN_DRAFTS = 50
"""Minimum drafts of a bin of positions; a bin with fewer has the values of the previous bin."""
DRAWS = 240
"""Random drafts, in at least eight batches, over which `auto` is averaged."""


@dataclass(frozen=True)
class Acceptance:
    """Expected tokens per request and step with drafts of at most k tokens.

    ks: [K] ascending.
    gain, drafted: [K, BINS], accepted and drafted tokens.
    worth: for `auto`, [BINS, M, ks[-1]], M single drafts per bin: probability that a draft is accepted up to each
        token, 0 after its end.
    accepted: [BINS, M], accepted tokens of these drafts, to be multiplied by `factor`.
    """

    ks: tuple[int, ...]
    gain: Float64
    drafted: Float64
    worth: Float64
    accepted: npt.NDArray[np.int64]
    factor: float = 1.0

    def batch(self, slots: int, threshold: int, k: int) -> Policy:
        """Switch `batch`: k tokens while at most `threshold` requests run."""
        policy = Policy.off(slots)
        if k:
            policy.gain[1 : threshold + 1] = self.gain[self.ks.index(k)]
            policy.drafted[1 : threshold + 1] = self.drafted[self.ks.index(k)]
        return policy

    def auto(self, slots: int, cost: Cost, contexts: Float64, margin: float = 1.02) -> Policy:
        """Switch `auto`: the mean of what sam_core.budget chooses for batches of random drafts. Where drafts yield less
        than plain steps there are none, as drafting pauses then.

        contexts: [slots + 1], mean thousands of tokens per request, by the number of running requests.
        """
        policy = Policy.off(slots)
        share = np.zeros_like(policy.gain)
        sizes = np.unique(np.concatenate([np.arange(1, min(slots, 16) + 1), np.geomspace(1, slots, 16).astype(int)]))
        rng = np.random.default_rng(0)
        lengths = (self.worth > 0).sum(axis=2)
        for bin_ in range(BINS):
            for n in sizes:
                steps, none = RunningCost(cost, int(n), contexts[n]), np.zeros(n)
                plain = float(steps.rows_cost(n))
                gain = drafted = seconds = drafting = 0.0
                draws = max(8, DRAWS // int(n))
                for _ in range(draws):
                    drawn = rng.integers(len(self.accepted[bin_]), size=n)
                    most = lengths[bin_][drawn]
                    of_drafts = steps.rows_cost(np.arange(n, n + most.sum() + 1))
                    chosen, better, *_ = choose(self.worth[bin_][drawn], most, none, of_drafts)
                    verified = int(chosen.sum()) if better >= margin else 0
                    seconds += float(of_drafts[verified])
                    if verified:
                        drafting += 1
                        drafted += verified
                        gain += np.minimum(chosen, self.accepted[bin_][drawn]).sum()
                gain = min(gain * self.factor, drafted)
                if (n * draws + gain) * plain >= n * seconds:
                    policy.gain[n, bin_], policy.drafted[n, bin_] = gain / draws / n, drafted / draws / n
                    share[n, bin_] = drafting / draws
        for table in (policy.gain, policy.drafted, share):
            for bin_ in range(BINS):
                table[1:, bin_] = np.interp(np.arange(1, slots + 1), sizes, table[sizes, bin_])
        return replace(policy, share=share)

    def scaled(self, factor: float) -> Acceptance:
        """A copy with accepted tokens multiplied by a factor, but at most all drafted tokens."""
        gain, worth = np.minimum(self.gain * factor, self.drafted), np.minimum(1, self.worth * factor)
        return replace(self, gain=gain, worth=worth, factor=self.factor * factor)


def recorded(
    answers: Sequence[Answer],
    context: str,
    options: dict[str, Any],
    ks: Sequence[int] = KS,
    max_tokens: int = 60_000,
    progress: Callable[[str], None] = lambda text: None,
) -> Acceptance:
    """Replay recordings with every draft length. context: as in sam_lab.replay; options: those of the pool."""
    scopes = make_scopes(answers, context, max_tokens=max_tokens)
    gain, drafted = np.zeros((len(ks), BINS)), np.zeros((len(ks), BINS))
    drafter = Watched(**options)
    for i, k in enumerate(ks):
        progress(f"replaying the recording, context {context}, k = {k}")
        drafter = Watched(**options)
        replay(drafter, scopes, context, k)
        bins, taken, scores = _verified(drafter)
        lengths = (scores > 0).sum(1)
        for bin_ in range(BINS):
            of_bin = bins == bin_
            if of_bin.sum() < MIN_DRAFTS and bin_:
                gain[i, bin_], drafted[i, bin_] = gain[i, bin_ - 1], drafted[i, bin_ - 1]
            else:
                gain[i, bin_], drafted[i, bin_] = taken[of_bin].mean(), lengths[of_bin].mean()
    worth, accepted = _samples(drafter)
    return Acceptance(tuple(ks), gain, drafted, worth, accepted)


def _verified(drafter: Watched) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Float64]:
    """The bin of each draft's position, its accepted tokens, and its scores."""
    bins = np.searchsorted(EDGES, drafter.positions, side="right")
    return bins, np.array(drafter.accepted), np.array(drafter.scores, float)


def _samples(drafter: Watched, count: int = 400) -> tuple[Float64, npt.NDArray[np.int64]]:
    """Drafts of each bin, with scores calibrated by the accepted tokens as in the engine's switch."""
    bins, accepted, scores = _verified(drafter)
    live = scores > 0
    calibration, size = Calibration(), Calibration.NUM_BINS
    of_scores = np.minimum((size * scores[live]).astype(int), size - 1)
    outcomes = of_scores + size * (np.arange(scores.shape[1]) < accepted[:, None])[live]
    calibration.observe(np.bincount(outcomes, minlength=2 * size).reshape(2, -1).astype(float))
    worth = np.where(live, np.maximum(calibration.correct(scores), 1e-9), 0.0)
    rng = np.random.default_rng(0)
    chosen = np.arange(len(bins))
    result = []
    for bin_ in range(BINS):
        of_bin = np.flatnonzero(bins == bin_)
        if len(of_bin) >= MIN_DRAFTS or not bin_:
            chosen = of_bin
        result.append(rng.choice(chosen, count))
    order = np.array(result)
    return worth[order], accepted[order]
