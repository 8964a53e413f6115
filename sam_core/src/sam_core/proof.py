# SPDX-License-Identifier: Apache-2.0
"""Whether drafts pay, as steps show it, whatever their cost is believed to be."""

from __future__ import annotations

from collections import deque

from sam_core.cost import StepCost


class PlainSteps:
    """The latest steps without drafts, with which those that have drafts are compared."""

    WINDOW = 5

    def __init__(self) -> None:
        # rows, thousands of context tokens, seconds, and the speed of the cost at that time
        self._steps: deque[tuple[int, float, float, float]] = deque(maxlen=self.WINDOW)

    def add(self, cost: StepCost, rows: int, context: float, seconds: float) -> None:
        """A step without drafts has ended."""
        self._steps.append((rows, context, seconds, cost.speed))

    def seconds(self, cost: StepCost, rows: int, context: float, follow: bool) -> float:
        """What a plain step would take now: the median of the latest, each scaled to this step; 0: unknown.

        Args:
            follow: whether changes of the machine's speed that `cost` has noticed since count.
        """
        if not self._steps or not cost.fitted:
            return 0.0
        costs = {n: cost.size_cost(n) for n in {rows, *(step[0] for step in self._steps)}}  # mostly few
        now = costs[rows] + cost.context * context
        scaled = [
            seconds * now / (costs[n] + cost.context * contexts) * (cost.speed / speed if follow else 1.0)
            for n, contexts, seconds, speed in self._steps
        ]
        return sorted(scaled)[len(scaled) // 2]


class Proof:
    """Ends drafting for a while when steps with drafts yield less than plain steps would have yielded in their time.

    It keeps an account of what drafts gained, in plain steps. When that has fallen to -LIMIT, drafting pauses, and the
    account begins anew; each pause is twice as long as the one before. At MAX_ACCOUNT, drafts are seen to pay. After
    that pauses are short: what was measured once will mostly pay again, and a machine that got slower looks like drafts
    that do not.

    proven: drafts were seen to pay since the last pause.
    """

    LIMIT = 1.0
    """Plain steps that drafts may lose before drafting pauses."""
    MAX_ACCOUNT = 2.0
    """Plain steps that drafts must have gained to be proven, and the most that they may lose again."""
    MAX_STEP = 0.5
    """The most that one step counts: a machine may be slow for a moment."""
    PAUSES = (16, 256)
    """Steps of the first pause and of the longest, before drafts are proven."""
    PAUSES_ONCE_PROVEN = (4, 32)
    """The same once they are: a machine that got slower for a while looks like drafts that lose."""

    def __init__(self, pauses_once_proven: tuple[int, int] = PAUSES_ONCE_PROVEN) -> None:
        self.proven = False
        self._pauses_once_proven = pauses_once_proven
        self._account = 0.0
        self._pause, self._longest = self.PAUSES
        self._until = 0

    def add(self, gain: float, step: int) -> None:
        """A step with drafts has ended. `gain`: in plain steps; less than 0: a loss."""
        self._account = min(self._account + min(max(gain, -self.MAX_STEP), self.MAX_STEP), self.MAX_ACCOUNT)
        if self._account == self.MAX_ACCOUNT:
            self.proven = True
            self._pause, self._longest = self._pauses_once_proven
        elif self._account <= -self.LIMIT:
            self.proven = False
            self._account = 0.0
            self._until = step + self._pause
            self._pause = min(2 * self._pause, self._longest)

    def pauses(self, step: int) -> bool:
        """Whether the step is to have no drafts but those that explore."""
        return step < self._until
