# SPDX-License-Identifier: Apache-2.0
"""The difference of pass@1 between two arms, with an interval and a test, over questions with several answers each.

Answers to one question are not independent, so the unit is the question: an interval describes other questions of the
same kind with newly sampled answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A difference as a share, with its interval at level CONFIDENCE and its standard error over questions."""

    value: float
    low: float
    high: float
    standard_error: float


def difference(off: Sequence[int], on: Sequence[int], answers: int) -> Estimate:
    """pass@1 of `on` minus that of `off` on the same questions, with Student's interval over questions.

    If all questions have the same difference, up to a share of 1 - (1 - CONFIDENCE)^(1/questions) of other questions
    may have another one: the ends of the interval assume that these all differ by -1, or all by 1.
    """
    shares = [(b - a) / answers for a, b in zip(off, on, strict=True)]
    questions, mean = len(shares), fmean(shares)
    if len(set(shares)) == 1:
        bound = 1 - (1 - CONFIDENCE) ** (1 / questions)
        return Estimate(mean, mean - bound * (1 + mean), mean + bound * (1 - mean), 0.0)
    error = math.sqrt(variance(shares) / questions)
    half = float(stdtrit(questions - 1, (1 + CONFIDENCE) / 2)) * error
    return Estimate(mean, max(mean - half, -1.0), min(mean + half, 1.0), error)


def paired_test(off: Sequence[int], on: Sequence[int]) -> float:
    """Two-sided p-value of the exact sign-flip test over questions.

    If the arms have the same distribution, each question's difference of right answers is as likely as its negative.
    The p-value is the share of all sign patterns whose sum is at least as far from 0 as the observed sum, computed
    exactly. With one answer per question this is McNemar's exact test.

    Args:
        off, on: right answers to each question in each arm.
    """
    sizes = [abs(b - a) for a, b in zip(off, on, strict=True)]
    observed, largest = abs(sum(b - a for a, b in zip(off, on, strict=True))), sum(sizes)
    chances = np.zeros(2 * largest + 1)  # of each sum, -largest to largest
    chances[largest] = 1.0
    for size in filter(None, sizes):
        shifted = np.zeros_like(chances)
        shifted[size:] += chances[:-size]
        shifted[:-size] += chances[size:]
        chances = shifted / 2
    sums = np.abs(np.arange(-largest, largest + 1))
    return min(float(chances[sums >= observed].sum()), 1.0)
