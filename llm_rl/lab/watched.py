# SPDX-License-Identifier: Apache-2.0
"""A drafter for replays that notes what its drafts promised and what was accepted of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sam_core.replay import SamDrafter, accept_chain


class Draft(NamedTuple):
    """request: its number in the replay. position: tokens that the request was given before. scores: float32 [n], as
    `Pool.step` gives them. accepted: tokens."""

    request: int
    position: int
    scores: npt.NDArray[np.float32]
    accepted: int


class Watched(SamDrafter):
    """Notes each draft in `drafts`, in the order in which they were judged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.drafts: list[Draft] = []
        self._last: dict[int, tuple[list[int], npt.NDArray[np.float32]]] = {}
        self._at: dict[int, int] = {}

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        slots, zeros, out, lengths, scores, _ = self._arrays(requests, k)
        self._pool.step(slots, self._nothing, zeros, k, out, lengths, scores)
        drafts = [row[:length] for row, length in zip(out.tolist(), lengths.tolist(), strict=True)]
        for request, draft, row in zip(requests, drafts, scores, strict=True):
            self._last[request] = draft, row[: len(draft)].copy()
        return drafts

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        super().append_many(requests, rows)
        for request, row in zip(requests, rows, strict=True):
            position = self._at.get(request, 0)
            if request in self._last:
                draft, scores = self._last.pop(request)
                self.drafts.append(Draft(request, position, scores, accept_chain(draft, row, 0)))
            self._at[request] = position + len(row)
