# SPDX-License-Identifier: Apache-2.0
"""When to draft."""

from __future__ import annotations

import logging


class BatchSwitch:
    """On while at most `threshold` requests run in a step.

    At larger batches verifying drafts costs more than accepted tokens gain (article, section 3.1.1). The decision falls
    when drafts are proposed, so it acts on the next step and nothing that is scheduled has to be taken back.
    """

    def __init__(self, threshold: int, logger: logging.Logger) -> None:
        self.threshold = threshold
        self.logger = logger
        self.on: bool | None = None
        self.steps = self.steps_on = self.transitions = 0

    def step(self, running: int) -> bool:
        """Decide for a step in which `running` requests took part; count, and log a change once."""
        on = running <= self.threshold
        if on != self.on:
            if self.on is not None:
                self.transitions += 1
                self.logger.info(
                    "drafting %s: %d requests running, threshold %d", "on" if on else "off", running, self.threshold
                )
            self.on = on
        self.steps += 1
        self.steps_on += on
        return on
