# SPDX-License-Identifier: Apache-2.0
"""How many draft tokens each request gets in a step: the most accepted tokens a second."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


class Cost(Protocol):
    """What steps cost, see StepCost."""

    @property
    def context(self) -> float: ...

    @property
    def draft_context(self) -> float: ...

    def rows_cost(self, rows: npt.ArrayLike) -> Float64: ...


class Choice(NamedTuple):
    """Drafts of a step.

    lengths: int32 [B], tokens to draft. gain: predicted tokens a second against those of a step without drafts; beside
    prompts, if that is less, what drafts are worth less what they cost, against the B tokens of a step without drafts. rate:
    tokens a second of the best step without prompts.
    """

    lengths: Int32
    gain: float
    rate: float


def choose(
    scores: npt.NDArray[np.floating],
    lengths: Int32,
    contexts: Float64,
    cost: Cost,
    uniform: int = 0,
    beside: Cost | None = None,
) -> Choice:
    """Draft lengths that maximize (expected tokens) / (expected seconds) of the next step.

    A step of B requests with n_i draft tokens each emits B + sum of scores[i, :n_i] tokens and takes
    f(B + sum n_i) + a * sum contexts + b * sum n_i * contexts_i seconds. For a given price of a second the best n_i for
    each total are the drafts of highest score less cost, and since scores fall along a draft they are prefixes; the price
    is the best ratio itself, found by Dinkelbach's iteration, which never overshoots. So the choice is exact.

    Prompts have to be read in any case. In a step that reads some, a second is worth what it is in one that reads none, and
    the drafts are those of (expected tokens) - (that price) * (seconds) at the most.

    Args:
        scores: [B, K], probability that the draft is accepted up to a token; nonincreasing along a row.
        lengths: int32 [B], tokens of each draft, at most K.
        contexts: [B], tokens each request holds, in thousands.
        cost: a fitted cost of steps.
        uniform: 0, or a number of tokens that all requests get or none does, as an engine with captured graphs wants;
            shorter drafts are filled up by padding, which is taken to be rejected.
        beside: what the step costs with the prompts that it reads, by the rows of the others; None: it reads none.
    """
    batch, k = scores.shape
    base = cost.context * contexts.sum()
    plain = float(cost.rows_cost(batch)) + base
    live = np.arange(k) < lengths[:, None]
    if uniform:
        tokens = batch + float(scores[live].sum())
        seconds = float(cost.rows_cost(batch * (1 + uniform))) + base + cost.draft_context * uniform * contexts.sum()
        gain = max(1.0, tokens / seconds * plain / batch)
        rate = gain * batch / plain
        if beside:
            of_rows = beside.rows_cost([batch, batch * (1 + uniform)])
            more = float(of_rows[1] - of_rows[0]) + beside.draft_context * uniform * contexts.sum()
            gain = max(1.0, min(gain, 1 + (tokens - batch - rate * more) / batch))
        return Choice(np.full(batch, uniform if gain > 1 else 0, np.int32), gain, rate)
    value = scores[live].astype(float)
    owner = np.repeat(np.arange(batch), np.minimum(lengths, k))
    price = cost.draft_context * contexts[owner]
    f = cost.rows_cost(batch + np.arange(len(value) + 1)) + base
    rate, best = batch / plain, np.empty(0, np.int64)
    order = None
    while True:
        if order is None or cost.draft_context:
            order = np.argsort(rate * price - value)
            tokens = batch + np.concatenate([[0.0], np.cumsum(value[order])])
            seconds = f + np.concatenate([[0.0], np.cumsum(price[order])])
        total = int(np.argmax(tokens - rate * seconds))
        better = tokens[total] / seconds[total]
        if not better > rate * (1 + 1e-12):
            break
        rate, best = better, order[:total]
    gain = float(rate * plain / batch)
    if beside:
        price = beside.draft_context * contexts[owner]
        order = np.argsort(rate * price - value)
        tokens = np.concatenate([[0.0], np.cumsum(value[order])])
        seconds = beside.rows_cost(batch + np.arange(len(value) + 1)) + np.concatenate([[0.0], np.cumsum(price[order])])
        worth = tokens - rate * seconds
        best = order[: int(np.argmax(worth))]
        gain = min(gain, 1 + float(worth[len(best)] - worth[0]) / batch)
    return Choice(np.bincount(owner[best], minlength=batch).astype(np.int32), gain, float(rate))


class Calibration:
    """What scores are worth: of drafts with about this score, how many were accepted.

    The drafts that a budget chooses are those whose scores happen to be high, and such scores are on average too high.
    Scores fall into bins; each keeps a fading count of tokens and of accepted ones, and starts out at its own value.
    """

    BINS = 24
    PRIOR = 20.0
    FADE = 0.999

    def __init__(self) -> None:
        self._centre = (np.arange(self.BINS) + 0.5) / self.BINS
        self.offered = np.zeros(self.BINS)
        self.accepted = np.zeros(self.BINS)

    def _bins(self, scores: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
        return np.clip((np.asarray(scores) * self.BINS).astype(np.int64), 0, self.BINS - 1)

    def observe(self, scores: npt.NDArray[np.floating], accepted: npt.NDArray[np.bool_]) -> None:
        """A step has ended: scores of draft tokens that were verified, and whether the draft was accepted up to each."""
        bins = self._bins(scores)
        self.fade()
        self.offered += np.bincount(bins, minlength=self.BINS)
        self.accepted += np.bincount(bins, accepted, minlength=self.BINS)

    def fade(self) -> None:
        """A step has ended; without drafts it fades all the same, so that those that were bad are tried again some day."""
        self.offered *= self.FADE
        self.accepted *= self.FADE

    def correct(self, scores: npt.NDArray[np.floating]) -> Float64:
        """Corrected scores [B, K], nonincreasing along a row if the given ones are."""
        factor = (self.accepted + self.PRIOR * self._centre) / (self.offered * self._centre + self.PRIOR * self._centre)
        corrected = np.clip(np.asarray(scores) * factor[self._bins(scores)], 0.0, 1.0)
        for j in range(1, corrected.shape[1]):  # much faster than np.minimum.accumulate on short rows
            np.minimum(corrected[:, j], corrected[:, j - 1], out=corrected[:, j])
        return corrected

    def state(self) -> dict[str, list[float]]:
        """What was learned, as JSON can hold it."""
        return {"offered": self.offered.tolist(), "accepted": self.accepted.tolist()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Take over what `state` gave; ValueError if it is none."""
        offered, accepted = (np.asarray(state[name], float) for name in ("offered", "accepted"))
        shaped = offered.shape == accepted.shape == (self.BINS,)
        if not (shaped and np.isfinite(offered).all() and (0 <= accepted).all() and (accepted <= offered).all()):
            raise ValueError("this is no record of what scores were worth")
        self.offered, self.accepted = offered, accepted
