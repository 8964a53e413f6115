# SPDX-License-Identifier: Apache-2.0
"""Lengths of answers: a distribution cut at the limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

Int64 = npt.NDArray[np.int64]

TOGETHER = 0.5
"""Share of the logarithm's variance that the answers to one prompt have in common: hard prompts have long answers."""


@dataclass(frozen=True)
class Lengths:
    """A lognormal distribution cut at `limit`, to which all longer lengths are shortened.

    mean: of the cut lengths, tokens. spread: sigma of the logarithm.
    """

    mean: float
    spread: float
    limit: int

    def __post_init__(self) -> None:
        if not 1 <= self.mean < self.limit:
            raise ValueError(f"the mean length {self.mean:g} must lie between 1 and the limit {self.limit}")
        if not 0 < self.spread <= 4:
            raise ValueError(f"the spread of the lengths is {self.spread:g}: it must be above 0 and at most 4")

    def longer(self, factor: float) -> Lengths:
        """Answers that are longer by a factor."""
        return replace(self, mean=min(self.mean * factor, 0.9 * self.limit))

    def scale(self) -> float:
        """The median that gives this mean after the cut."""
        high = self.limit * exp(8 * self.spread)
        return exp(brentq(lambda x: self._mean(exp(x)) - self.mean, log(1e-3), log(high), xtol=1e-14))

    def _mean(self, scale: float) -> float:
        z = log(self.limit / scale) / self.spread
        return scale * exp(self.spread**2 / 2) * ndtr(z - self.spread) + self.limit * ndtr(-z)

    def sample(self, prompts: int, n: int, rng: np.random.Generator) -> Int64:
        """[prompts, n] lengths of at least one token. The normal scores of all answers are stratified, so that means of
        a step vary less than with independent draws."""
        common = rng.standard_normal((prompts, 1))
        z = sqrt(TOGETHER) * common + sqrt(1 - TOGETHER) * rng.standard_normal((prompts, n))
        ranks = z.ravel().argsort().argsort()
        share = (ranks + rng.random(ranks.size)) / ranks.size
        values = self.scale() * np.exp(self.spread * ndtri(np.clip(share, 1e-9, 1 - 1e-9)))
        return np.clip(np.rint(values), 1, self.limit).astype(np.int64).reshape(prompts, n)
