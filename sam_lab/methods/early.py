# SPDX-License-Identifier: Apache-2.0
"""The drafter of an engine that indexes a step's tokens while it waits for the next step's: see `Pool.step`, early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from sam_lab.methods.pool import SamDrafter, packed


class EarlyDrafter(SamDrafter):
    """A SamDrafter whose drafts come before the tokens that they follow are indexed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._new: dict[int, list[int]] = {}

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, row in zip(requests, rows, strict=True):
            self._new.setdefault(request, []).extend(row)

    def draft(self, requests: Sequence[int], k: int, *names: str) -> list[npt.NDArray[Any]]:
        rows = [self._new.pop(request, []) for request in requests]
        return self._step(self._arrays_of(requests, k), *packed(rows), k, names, early=True)

    def finish(self, request: int) -> None:
        self.pool.append(self.slots[request], self._new.pop(request, []))
        super().finish(request)
