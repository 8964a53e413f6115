# SPDX-License-Identifier: Apache-2.0
"""The options of the drafting methods."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Options of the methods; the defaults are the papers', but `sure`: at 1 the automaton drafted in 3 % of the steps.

    k: tokens of a chain; n_max, m, c: REST's; width, depth, theta_prob, theta_sib,
    tau: the draft model's; sure: the hybrid's threshold.
    """

    k: int = 8
    n_max: int = 16
    m: int = 10
    c: int = 64
    width: int = 4
    depth: int = 10
    theta_prob: float = 0.2
    theta_sib: float = 0.3
    tau: int = 2
    sure: float = 0.3
