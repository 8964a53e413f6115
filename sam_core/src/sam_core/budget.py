# SPDX-License-Identifier: Apache-2.0
"""Chooses how many draft tokens each request gets in a step, for the most tokens per second."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sam_core._sam import choose_drafts, correct_scores

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


class Choice(NamedTuple):
    """Drafts of a step.

    lengths: int32 [B], draft tokens of each request.
    gain: predicted tokens per second, divided by those without drafts. If the step reads prompts, one plus the net
        value of the drafts divided by B, the tokens of a step without drafts.
    rate: tokens per second of the best step without prompts.
    accepted: tokens of the drafts that are expected to be accepted.
    """

    lengths: Int32
    gain: float
    rate: float
    accepted: float


def choose(
    scores: npt.NDArray[np.floating],
    lengths: Int32,
    contexts: Float64,
    seconds: Float64,
    draft_context: float = 0.0,
    with_prompts: Float64 | None = None,
    uniform: int = 0,
    guess: float = 0.0,
    turn: int = 0,
) -> Choice:
    """Draft lengths that maximize (expected tokens) / (expected seconds) of the next step.

    A step of B requests with n_i draft tokens each emits B + sum of scores[i, :n_i] tokens and takes
    seconds[sum n_i] + draft_context * sum n_i * contexts_i. At a given price of a second, the best tokens for each
    total are those with the highest score minus cost; since scores fall along a draft, they form prefixes. The price is
    the best ratio itself, which Dinkelbach's iteration finds without overshooting. So the choice is exact.

    Prompts have to be read in any case. In a step that reads prompts a second has the same price as in one that reads
    none, and the drafts maximize (expected tokens) - price * (seconds).

    Args:
        scores: [B, K], probability that a draft is accepted up to each token; nonincreasing along a row.
        lengths: int32 [B], tokens of each draft, at most K.
        contexts: [B], tokens of each request, in thousands.
        seconds: [N + 1], cost of a step without prompts by its number of draft tokens; N is the sum of lengths, or
            B * uniform.
        draft_context: seconds for each draft token and each thousand tokens of its request.
        with_prompts: [N + 1], cost of the step with the prompts that it reads; None: it reads none.
        uniform: 0, or a number of tokens that either all requests or none get, as captured graphs need; padding of
            shorter drafts is assumed to be rejected.
        guess: a guess of the rate, such as that of the previous step; it only affects the time to find the rate.
        turn: among tokens of equal value, those of request turn % B and the following ones come first. A number that
            changes from step to step gives all requests their turn.
    """
    batch, k = scores.shape
    if uniform:  # one request with one draft token stands for all
        score = scores[np.arange(k) < lengths[:, None]].sum() / batch
        context = np.array([uniform * contexts.sum()])
        both = with_prompts[[0, -1]] if with_prompts is not None else None
        one = choose(np.full((1, 1), score), np.ones(1, np.int32), context, seconds[[0, -1]], draft_context, both)
        return Choice(np.repeat(uniform * one.lengths, batch), one.gain, batch * one.rate, batch * one.accepted)
    chosen = np.empty(batch, np.int32)
    drafts = np.ascontiguousarray(scores, np.float64), np.ascontiguousarray(lengths, np.int32), contexts
    rate, accepted, _ = choose_drafts(*drafts, seconds, chosen, draft_context, guess, False, turn)
    gain = rate * float(seconds[0]) / batch
    if with_prompts is not None:
        _, accepted, gained = choose_drafts(*drafts, with_prompts, chosen, draft_context, rate, True, turn)
        gain = 1 + gained / batch
    return Choice(chosen, gain, rate, accepted)


class Calibration:
    """Corrects scores by the share of accepted tokens among draft tokens with about the same score.

    A budget chooses drafts whose scores happen to be high, and such scores are too high on average. Each bin of scores
    keeps decaying counts of verified and of accepted tokens, and begins with a correction of 1.
    """

    NUM_BINS = 24
    PRIOR_SAMPLES = 20.0
    """Weight of the correction of 1, in tokens."""
    DECAY = 0.999
    """Factor of the counts, per step."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, self.NUM_BINS))  # refused and accepted tokens

    def observe(self, counts: Float64) -> None:
        """A step has ended.

        Counts decay without drafts as well, so that scores whose drafts were refused are tried again.

        Args:
            counts: [2, NUM_BINS], verified draft tokens by their scores: refused ones, accepted ones.
        """
        self.counts *= self.DECAY
        self.counts += counts

    def correct(self, scores: npt.NDArray[np.floating]) -> Float64:
        """Corrected scores [B, K], nonincreasing along a row."""
        centre = (np.arange(self.NUM_BINS) + 0.5) / self.NUM_BINS
        prior = self.PRIOR_SAMPLES * centre
        factors = (self.counts[1] + prior) / (self.counts.sum(0) * centre + prior)
        corrected = np.empty(scores.shape)
        correct_scores(np.ascontiguousarray(scores, np.float32), factors, corrected)
        return corrected

    def state(self) -> list[list[float]]:
        """The counts, for JSON."""
        return self.counts.tolist()

    def restore(self, state: list[list[float]]) -> None:
        """Restore what `state` returned; raises ValueError for anything else."""
        counts = np.asarray(state, float)
        if counts.shape != self.counts.shape or not (np.isfinite(counts) & (counts >= 0)).all():
            raise ValueError("this is not a record of what scores were worth")
        self.counts = counts
