# SPDX-License-Identifier: Apache-2.0
"""pass@1 and its difference between two arms, with intervals and a test, over questions with several answers each.

Answers to one question are not independent, so questions are what is counted: an interval speaks of questions like
these, drawn anew, and answers sampled anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its interval of confidence CONFIDENCE, all as shares, and its standard error over questions."""

    value: float
    low: float
    high: float
    standard_error: float


def pass_at_1(right: Sequence[int], answers: int) -> Estimate:
    """pass@1: the mean over questions of the share of right answers, with Wilson's interval.

    The interval is that of as many independent answers as have the standard error found over the questions, at least as
    many as there are questions and at most as many as there are answers. Unlike mean +- 1.96 standard errors it keeps
    its coverage near 0 and 1.

    Args:
        right: right answers to each question, at least one question.
        answers: answers to each question.
    """
    shares = [count / answers for count in right]
    questions, mean = len(shares), fmean(shares)
    error = math.sqrt(variance(shares) / questions) if questions > 1 else 0.5
    independent = mean * (1 - mean) / error**2 if error else questions
    independent = min(max(independent, questions), questions * answers)
    z = t_quantile(questions - 1)
    centre = (mean + z * z / (2 * independent)) / (1 + z * z / independent)
    half = z / (1 + z * z / independent)
    half *= math.sqrt(mean * (1 - mean) / independent + z * z / (4 * independent**2))
    return Estimate(mean, max(centre - half, 0.0), min(centre + half, 1.0), error)


def difference(off: Sequence[int], on: Sequence[int], answers: int) -> Estimate:
    """pass@1 of `on` minus that of `off` on the same questions, with Student's interval over questions.

    Where no question differs, the interval is what so many equal questions still allow: a share of differing ones up to
    1 - (1 - CONFIDENCE)^(1/questions).
    """
    shares = [(b - a) / answers for a, b in zip(off, on, strict=True)]
    questions, mean = len(shares), fmean(shares)
    if not any(shares):
        most = 1 - (1 - CONFIDENCE) ** (1 / questions)
        return Estimate(0.0, -most, most, 0.0)
    error = math.sqrt(variance(shares) / questions) if questions > 1 else 1.0
    half = t_quantile(questions - 1) * error
    return Estimate(mean, max(mean - half, -1.0), min(mean + half, 1.0), error)


def paired_test(off: Sequence[int], on: Sequence[int]) -> float:
    """Two-sided p-value of the exact sign-flip test over questions.

    If the arms sample alike, each question's difference of right answers is as likely as its negative. The p-value is
    the share of all sign patterns whose sum is at least as far from 0 as the one found, computed without sampling. With
    one answer a question it is McNemar's exact test.

    Args:
        off, on: right answers to each question in each arm.
    """
    sizes = [abs(b - a) for a, b in zip(off, on, strict=True)]
    found, most = abs(sum(b - a for a, b in zip(off, on, strict=True))), sum(sizes)
    chances = np.zeros(2 * most + 1)  # of each sum, -most to most
    chances[most] = 1.0
    for size in filter(None, sizes):
        moved = np.zeros_like(chances)
        moved[size:] += chances[:-size]
        moved[:-size] += chances[size:]
        chances = moved / 2
    sums = np.abs(np.arange(-most, most + 1))
    return min(float(chances[sums >= found].sum()), 1.0)


def t_quantile(freedom: int) -> float:
    """Student's quantile for a two-sided interval of CONFIDENCE; for fewer than one degree of freedom that of one.

    By Newton's method on the distribution function, which for whole degrees of freedom is a finite sum of powers of
    cosines (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    freedom = max(freedom, 1)
    t = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    if freedom > 2000:  # closer to the normal than 0.002
        return t
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    for _ in range(100):
        density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        step = (_within(t, freedom) - CONFIDENCE) / (2 * density)
        t -= step
        if abs(step) < 1e-12:
            break
    return t


def _within(t: float, freedom: int) -> float:
    """The chance that Student's t lies between -t and t."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine * (k - 1) / k
    if odd:
        return (angle + math.sin(angle) * total) * 2 / math.pi
    return math.sin(angle) * total
