# SPDX-License-Identifier: Apache-2.0
"""Lengths of answers: a distribution cut at the limit, or the lengths of recorded answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from sam_lab.recordings import Answer

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


@dataclass(frozen=True)
class Recorded:
    """Lengths of recorded groups, drawn with replacement, times `scale` and then cut at `limit`."""

    groups: tuple[tuple[int, ...], ...]
    limit: int
    scale: float = 1.0

    @staticmethod
    def of(answers: Sequence[Answer], limit: int, mean: float | None = None) -> Recorded:
        """mean: of the cut lengths, tokens; None: they keep their scale."""
        groups: dict[str, list[int]] = defaultdict(list)
        for answer in answers:
            groups[answer.group].append(len(answer.response_ids))
        every = [length for group in groups.values() for length in group]
        scale = 1.0 if mean is None else _scale(every, limit, mean)
        return Recorded(tuple(map(tuple, groups.values())), limit, scale)

    def longer(self, factor: float) -> Recorded:
        """Answers that are longer by a factor."""
        return replace(self, scale=self.scale * factor)

    @property
    def mean(self) -> float:
        every = [min(self.limit, self.scale * length) for group in self.groups for length in group]
        return sum(every) / len(every)

    def sample(self, prompts: int, n: int, rng: np.random.Generator) -> Int64:
        """[prompts, n] lengths: n answers of a random group for each prompt."""
        chosen = rng.integers(len(self.groups), size=prompts)
        lengths = np.array([rng.choice(self.groups[group], n) for group in chosen])
        return np.clip(np.rint(self.scale * lengths), 1, self.limit).astype(np.int64)


def _scale(lengths: Sequence[int], limit: int, mean: float) -> float:
    """The factor that gives positive lengths this mean after the cut."""
    if not 1 <= mean < limit:
        raise ValueError(f"the mean length {mean:g} must lie between 1 and the limit {limit}")
    uncut, rest, wanted = sorted(lengths), sum(lengths), mean * len(lengths)
    while wanted / rest * uncut[-1] > limit:
        rest -= uncut.pop()
        wanted -= limit
    return wanted / rest
