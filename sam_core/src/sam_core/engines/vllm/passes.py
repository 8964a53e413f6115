# SPDX-License-Identifier: Apache-2.0
"""Decides how many passes a model drafter runs; works without torch."""

from __future__ import annotations

import math
import statistics
from collections import deque

PASS_SHARE = 0.1
"""Assumed time of a model drafter's pass as a share of a step, until it is known: about what EAGLE-3 and MTP heads take
next to 8B models."""
PASS_SAMPLES = 9
"""Latest steps of each kind whose median tells the time of passes."""
PASS_INTERVAL = 64
"""Steps after which one runs the other passes, so that their time stays known: it bounds what that costs."""


class Passes:
    """Decides whether the passes of a model drafter after the first one run.

    Their time is learned from steps with and without them, as a share of a step with one pass.

    Args:
        count: passes that make all draft tokens.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._residuals: dict[bool, deque[float]] = {each: deque(maxlen=PASS_SAMPLES) for each in (False, True)}
        self._same = 0  # steps since the other choice was tried

    @property
    def share(self) -> float:
        """Time of all later passes, as a share of a step with one pass."""
        one, all_passes = self._residuals[False], self._residuals[True]
        if min(len(one), len(all_passes)) < PASS_SAMPLES:
            return PASS_SHARE * (self.count - 1)
        return max(0.0, math.exp(statistics.median(all_passes) - statistics.median(one)) - 1)

    def learn(self, passes: int, residual: float) -> None:
        """Learn from a step with this number of passes.

        Args:
            residual: logarithm of its seconds, divided by those predicted from its rows and context.
        """
        if passes in (1, self.count):
            self._residuals[passes > 1].append(residual)

    def choose(self, one: float, full: float, explores: bool) -> bool:
        """Whether the later passes are to run.

        Args:
            one, full: expected tokens of a step with one pass, and with all passes.
            explores: whether to try the other choice now and then; it needs timed steps.
        """
        pays = full > one * (1 + self.share)
        self._same += 1
        if explores and self._same >= PASS_INTERVAL:
            self._same = 0
            return not pays
        return pays
