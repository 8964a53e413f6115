# SPDX-License-Identifier: Apache-2.0
"""The drafter of an engine that indexes a step's tokens while it waits for the next step's: see `Pool.step`, early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_lab.methods.pool import SamDrafter


class EarlyDrafter(SamDrafter):
    """A SamDrafter whose drafts come before the tokens that they follow are indexed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._new: dict[int, list[int]] = {}

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, row in zip(requests, rows, strict=True):
            self._new.setdefault(request, []).extend(row)

    def draft(self, requests: Sequence[int], k: int, *names: str) -> list[npt.NDArray[Any]]:
        arrays = self._arrays_of(requests, k)
        rows = [self._new.pop(request, []) for request in requests]
        tokens = np.array([token for row in rows for token in row], np.int32)
        counts = np.array([len(row) for row in rows], np.int32)
        out, lengths, named = arrays["out"], arrays["lengths"], {name: arrays[name] for name in names}
        self.pool.step(arrays["slots"], tokens, counts, k, out, lengths, **named, early=True)
        return [out, lengths, *named.values()]

    def finish(self, request: int) -> None:
        self.pool.append(self.slots[request], self._new.pop(request, []))
        super().finish(request)
