# SPDX-License-Identifier: Apache-2.0
"""How many draft tokens each request gets in a step, for the most accepted tokens a second."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


class Cost(Protocol):
    """Cost of steps, see StepCost."""

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
    gain: predicted tokens a second as a multiple of those without drafts; with prompts, if that is less, one plus the
        net value of the drafts as a share of the B tokens of a step without drafts.
    rate: tokens a second of the best step without prompts.
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
    cost: Cost,
    uniform: int = 0,
    beside: Cost | None = None,
    guess: float = 0.0,
) -> Choice:
    """Draft lengths that maximize (expected tokens) / (expected seconds) of the next step.

    A step of B requests with n_i draft tokens each emits B + sum of scores[i, :n_i] tokens and takes
    f(B + sum n_i) + a * sum contexts + b * sum n_i * contexts_i seconds, and a constant more if there is any. At a given price of a second, the best tokens
    for each total are those with the highest score minus cost; since scores fall along a draft, they form prefixes. The
    price is the best ratio itself, which Dinkelbach's iteration finds without overshooting. So the choice is exact.

    Prompts have to be read in any case. In a step that reads prompts a second has the same price as in one that reads
    none, and the drafts maximize (expected tokens) - price * (seconds).

    Args:
        scores: [B, K], probability that a draft is accepted up to each token; nonincreasing along a row.
        lengths: int32 [B], tokens of each draft, at most K.
        contexts: [B], tokens of each request, in thousands.
        cost: a fitted cost of steps.
        uniform: 0, or a number of tokens that all requests get or none does, as captured graphs need; padding of
            shorter drafts is assumed to be rejected.
        beside: cost of the step with the prompts that it reads, by its other rows; None: it reads none.
        guess: of the rate, which changes nothing but the time to find it, as that of the step before.
    """
    batch, k = scores.shape
    base = cost.context * contexts.sum()
    live = np.empty(scores.shape, bool)
    for depth in range(k):  # twice as fast as along the short rows
        np.greater(lengths, depth, out=live[:, depth])
    if uniform:
        tokens = batch + float(scores[live].sum())
        plain, seconds = (cost.rows_cost([batch, batch * (1 + uniform)]) + base).tolist()
        seconds += cost.draft_context * uniform * contexts.sum() + cost.verify
        gain = max(1.0, tokens / seconds * plain / batch)
        rate = gain * batch / plain
        if beside:
            of_rows = beside.rows_cost([batch, batch * (1 + uniform)])
            more = float(of_rows[1] - of_rows[0]) + beside.draft_context * uniform * contexts.sum() + beside.verify
            gain = max(1.0, min(gain, 1 + (tokens - batch - rate * more) / batch))
        pays = gain > 1
        return Choice(np.full(batch, uniform * pays, np.int32), gain, rate, (tokens - batch) * pays)
    drafts = live.ravel().nonzero()[0]
    owner = drafts // k
    # value and price of each draft are one complex number, so that both are ordered and added up at once
    pairs = np.empty(len(drafts), complex)
    pairs.real = scores.ravel().take(drafts)
    pairs.imag = cost.draft_context * contexts.take(owner)
    accepted = 0.0
    rows = np.arange(batch, batch + len(drafts) + 1.0)
    f = cost.rows_cost(rows) + base
    f[1:] += cost.verify
    plain = float(f[0])
    rate, best = guess or batch / plain, owner[:0]
    tokens = seconds = None
    while True:
        net = rate * pairs.imag
        net -= pairs.real  # in place, as fresh memory is slow
        if tokens is None or np.count_nonzero(net[1:] < net[:-1]):  # at the next rate few change places
            # not stable at first: among equal drafts, the first requests would always win
            order = net.argsort(kind=None if tokens is None else "stable")
            owner, pairs = owner.take(order), pairs.take(order)
            sums = _sums(pairs)
            tokens, seconds = batch + sums.real, f + sums.imag
        loss = rate * seconds
        loss -= tokens
        total = int(loss.argmin())
        better = tokens[total] / seconds[total]
        if not better > rate * (1 + 1e-12) and not guess:
            break
        guess = 0.0  # one step from any price leads to one that is not too high
        rate, best, accepted = better, owner[:total], tokens[total] - batch
    gain = float(rate * plain / batch)
    if beside:
        value, price = pairs.real, beside.draft_context * contexts[owner]
        order = np.argsort(rate * price - value)
        tokens = _sums(value[order])
        seconds = beside.rows_cost(rows) + _sums(price[order])
        seconds[1:] += beside.verify
        worth = tokens - rate * seconds
        total = int(np.argmax(worth))
        best, accepted = owner[order[:total]], tokens[total]
        gain = min(gain, 1 + float(worth[total] - worth[0]) / batch)
    return Choice(np.bincount(best, minlength=batch).astype(np.int32), gain, float(rate), float(accepted))


def _sums(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of the first 0, 1, ... values."""
    sums = np.zeros(len(values) + 1, values.dtype)
    values.cumsum(out=sums[1:])
    return sums


class Calibration:
    """Corrects scores by the share of draft tokens with about this score that were accepted.

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
        self.offered = np.zeros(self.NUM_BINS)
        self.accepted = np.zeros(self.NUM_BINS)

    def _bins(self, scores: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
        return np.minimum((np.asarray(scores) * self.NUM_BINS).astype(np.int64), self.NUM_BINS - 1)

    def observe(self, scores: npt.NDArray[np.floating], accepted: npt.NDArray[np.bool_]) -> None:
        """A step has ended: scores of its verified draft tokens, and whether its draft was accepted up to each."""
        bins = self._bins(scores) + self.NUM_BINS * accepted
        refused, confirmed = np.bincount(bins, minlength=2 * self.NUM_BINS).reshape(2, -1)
        self.fade()
        self.offered += refused + confirmed
        self.accepted += confirmed

    def fade(self) -> None:
        """A step has ended. Counts decay without drafts as well, so that refused scores are tried again."""
        self.offered *= self.DECAY
        self.accepted *= self.DECAY

    def correct(self, scores: npt.NDArray[np.floating]) -> Float64:
        """Corrected scores [B, K], nonincreasing along a row."""
        factor = (self.accepted + self.PRIOR_SAMPLES * self._centre) / (
            self.offered * self._centre + self.PRIOR_SAMPLES * self._centre
        )
        corrected = factor.take(self._bins(scores))
        corrected *= scores
        before: Any = 1.0
        for column in corrected.T:  # as np.minimum.accumulate, which is slow along short rows
            before = np.minimum(column, before, out=column)
        return corrected

    def state(self) -> dict[str, list[float]]:
        """The counts, as JSON can hold them."""
        return {"offered": self.offered.tolist(), "accepted": self.accepted.tolist()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Restore what `state` returned; raises ValueError for anything else."""
        offered, accepted = (np.asarray(state[name], float) for name in ("offered", "accepted"))
        shaped = offered.shape == accepted.shape == (self.NUM_BINS,)
        if not (shaped and np.isfinite(offered).all() and (0 <= accepted).all() and (accepted <= offered).all()):
            raise ValueError("this is no record of what scores were worth")
        self.offered, self.accepted = offered, accepted
