# SPDX-License-Identifier: Apache-2.0
"""Chooses how many draft tokens each request gets in a step, for the most tokens per second."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sam_core._sam import choose_drafts, correct_scores

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


class CostModel(Protocol):
    """The cost of a step; see StepCost."""

    @property
    def context(self) -> float: ...

    @property
    def draft_context(self) -> float: ...

    @property
    def verify(self) -> float: ...

    def rows_cost(self, rows: npt.ArrayLike) -> Float64: ...


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
    cost: CostModel,
    uniform: int = 0,
    with_prompts: CostModel | None = None,
    guess: float = 0.0,
    turn: int = 0,
) -> Choice:
    """Draft lengths that maximize (expected tokens) / (expected seconds) of the next step.

    A step of B requests with n_i draft tokens each emits B + sum of scores[i, :n_i] tokens and takes
    f(B + sum n_i) + a * sum contexts + b * sum n_i * contexts_i seconds, and a constant more if there is any draft. At
    a given price of a second, the best tokens for each total are those with the highest score minus cost; since scores
    fall along a draft, they form prefixes. The price is the best ratio itself, which Dinkelbach's iteration finds
    without overshooting. So the choice is exact.

    Prompts have to be read in any case. In a step that reads prompts a second has the same price as in one that reads
    none, and the drafts maximize (expected tokens) - price * (seconds).

    Args:
        scores: [B, K], probability that a draft is accepted up to each token; nonincreasing along a row.
        lengths: int32 [B], tokens of each draft, at most K.
        contexts: [B], tokens of each request, in thousands.
        cost: the cost of a step.
        uniform: 0, or a number of tokens that either all requests or none get, as captured graphs need; padding of
            shorter drafts is assumed to be rejected.
        with_prompts: cost of the step with the prompts that it reads, by its number of other rows; None: it reads none.
        guess: a guess of the rate, such as that of the previous step; it only affects the time to find the rate.
        turn: among tokens of equal value, those of request turn % B and the following ones come first. A number that
            changes from step to step gives all requests their turn.
    """
    batch, k = scores.shape
    base = cost.context * contexts.sum()
    if uniform:
        live = np.arange(k) < lengths[:, None]
        tokens = batch + float(scores[live].sum())
        plain, seconds = (cost.rows_cost([batch, batch * (1 + uniform)]) + base).tolist()
        seconds += cost.draft_context * uniform * contexts.sum() + cost.verify
        gain = max(1.0, tokens / seconds * plain / batch)
        rate = gain * batch / plain
        if with_prompts:
            both = with_prompts.rows_cost([batch, batch * (1 + uniform)])
            more = both[1] - both[0] + with_prompts.draft_context * uniform * contexts.sum() + with_prompts.verify
            gain = max(1.0, 1 + float(tokens - batch - rate * more) / batch)
        pays = gain > 1
        return Choice(np.full(batch, uniform * pays, np.int32), gain, rate, (tokens - batch) * pays)
    chosen = np.empty(batch, np.int32)
    drafts = np.ascontiguousarray(scores, np.float64), np.ascontiguousarray(lengths, np.int32), contexts
    rows = np.arange(batch, batch + int(lengths.sum()) + 1)
    seconds = cost.rows_cost(rows) + base
    seconds[1:] += cost.verify
    plain = float(seconds[0])
    rate, accepted, _ = choose_drafts(*drafts, seconds, chosen, cost.draft_context, guess, False, turn)
    gain = rate * plain / batch
    if with_prompts:
        seconds = np.array(with_prompts.rows_cost(rows))
        seconds[1:] += with_prompts.verify
        _, accepted, gained = choose_drafts(*drafts, seconds, chosen, with_prompts.draft_context, rate, True, turn)
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
        self._centre = (np.arange(self.NUM_BINS) + 0.5) / self.NUM_BINS
        self._prior = self.PRIOR_SAMPLES * self._centre
        self.offered = np.zeros(self.NUM_BINS)
        self.accepted = np.zeros(self.NUM_BINS)
        self._factors = np.ones(self.NUM_BINS)

    def observe(self, counts: Float64) -> None:
        """A step has ended.

        Counts decay without drafts as well, so that scores whose drafts were refused are tried again.

        Args:
            counts: [2, NUM_BINS], verified draft tokens by their scores: refused ones, accepted ones.
        """
        self.offered *= self.DECAY
        self.offered += counts[0] + counts[1]
        self.accepted *= self.DECAY
        self.accepted += counts[1]
        self._weigh()

    def _weigh(self) -> None:
        self._factors = (self.accepted + self._prior) / (self.offered * self._centre + self._prior)

    def correct(self, scores: npt.NDArray[np.floating]) -> Float64:
        """Corrected scores [B, K], nonincreasing along a row."""
        corrected = np.empty(scores.shape)
        correct_scores(np.ascontiguousarray(scores, np.float32), self._factors, corrected)
        return corrected

    def state(self) -> dict[str, list[float]]:
        """The counts, for JSON."""
        return {"offered": self.offered.tolist(), "accepted": self.accepted.tolist()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Restore what `state` returned; raises ValueError for anything else."""
        offered, accepted = (np.asarray(state[name], float) for name in ("offered", "accepted"))
        shaped = offered.shape == accepted.shape == (self.NUM_BINS,)
        if not (shaped and np.isfinite(offered).all() and (accepted >= 0).all() and (accepted <= offered).all()):
            raise ValueError("this is no record of what scores were worth")
        self.offered, self.accepted = offered, accepted
        self._weigh()
