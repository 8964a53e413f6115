# SPDX-License-Identifier: Apache-2.0
"""Counters of a proposer, and their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

EXCLUSION_REASONS = ("penalties", "min_p", "min_tokens", "logit_bias", "bad_words", "allowed_token_ids")
"""Why an engine may exclude a request from drafting: the sampling parameter that changes its logits."""
LEVELS = ("requests", "bytes_used")
"""Counters of SamProposer.stats() that hold a current value rather than a sum since the start."""
REPORT_INTERVAL_S = 1.0
"""Minimum seconds between two reports of the counters, and maximum seconds between two steps with `has_news`."""
POSITIONS = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""The bins of Positions: each begins at one of these positions in the answer and ends at the next."""


def since(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The change between two results of SamProposer.stats(): differences, and for names in LEVELS the later value.

    before: may be empty.
    """
    return {name: value if name in LEVELS else value - before.get(name, 0) for name, value in now.items()}


class Reports:
    """Reports to an engine's front end.

    An engine with several front ends sends each report to one of them, and each adds up its own.
    """

    def __init__(self) -> None:
        self._time = -REPORT_INTERVAL_S
        self._reported: dict[str, Any] = {}

    def take(self, stats: Callable[[], dict[str, Any]], on: bool | None) -> dict[str, Any] | None:
        """The counts of `stats` since the previous report, and switch_on, 1 or 0; None within REPORT_INTERVAL_S."""
        now = time.monotonic()
        if now - self._time < REPORT_INTERVAL_S:
            return None
        self._time = now
        before, self._reported = self._reported, stats()
        return since(before, self._reported) | {"switch_on": int(bool(on))}


class Positions:
    """Counts steps of requests with a draft, and the tokens gained in them, by position in the answer.

    Tokens divided by steps is the mean acceptance length at a position, including the token that the model adds. A
    draft that the engine dropped, for instance because it preempted the request, counts as one without accepted tokens.
    """

    MAX_PENDING = 2048
    """Requests that are counted together, since counting many costs the same as counting one."""

    def __init__(self) -> None:
        self._steps, self._tokens = np.zeros((2, len(POSITIONS)), np.int64)
        self._pending: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        self._num_pending = 0

    def add(self, positions: npt.ArrayLike, tokens: npt.ArrayLike) -> None:
        """Add N requests that had a draft after `positions` [N] tokens of their answers and gained `tokens` [N]."""
        self._pending.append((np.asarray(positions), np.asarray(tokens)))
        self._num_pending += len(self._pending[-1][0])
        if self._num_pending >= self.MAX_PENDING:
            self._count()

    def _count(self) -> None:
        if self._pending:
            positions, tokens = map(np.concatenate, zip(*self._pending, strict=True))
            self._pending, self._num_pending = [], 0
            bins = np.searchsorted(POSITIONS, positions, side="right") - 1
            self._steps += np.bincount(bins, minlength=len(POSITIONS))
            self._tokens += np.bincount(bins, tokens, len(POSITIONS)).astype(np.int64)

    def counts(self) -> dict[str, int]:
        """The sums so far: steps_from_<position> and tokens_from_<position>, one pair for each bin of POSITIONS."""
        self._count()
        return {
            **{f"steps_from_{at}": n for at, n in zip(POSITIONS, self._steps.tolist(), strict=True)},
            **{f"tokens_from_{at}": n for at, n in zip(POSITIONS, self._tokens.tolist(), strict=True)},
        }
