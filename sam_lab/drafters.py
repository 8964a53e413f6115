# SPDX-License-Identifier: Apache-2.0
"""`sam_core.Pool` as a drafter for the replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import sam_core
from sam_lab.replay import accept_chain


def packed(rows: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Arguments of `Pool.step`: the tokens of all rows, one row after another, and the length of each row."""
    tokens = np.array([token for row in rows for token in row], np.int32)
    return tokens, np.array([len(row) for row in rows], np.int32)


class SamDrafter:
    """`sam_core.Pool` as a drafter for the replay; `options` are the pool's.

    Attributes:
        pool: the pool. With `private`, each group and each request without a group gets a new one.
        slots: the slot of each open request.
    """

    def __init__(self, private: bool = False, **options: Any) -> None:
        self.pool, self.private, self.options = sam_core.Pool(**options), private, options
        self.slots: dict[int, int] = {}
        self._group: str | None = None
        self._arrays: dict[tuple[int, int], dict[str, npt.NDArray[Any]]] = {}

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        if self.private and (group is None or group != self._group):
            if self.slots:
                raise ValueError("requests of another private pool are running")
            self.pool, self._group = sam_core.Pool(**self.options), group
        self.slots[request] = self.pool.open(prompt_ids, None if group is None else group.encode())

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        arrays = self._arrays_of(requests, 0)
        self.pool.step(arrays["slots"], *packed(rows), 0, arrays["out"], arrays["lengths"])

    def draft(self, requests: Sequence[int], k: int, *names: str) -> list[npt.NDArray[Any]]:
        """Draft at most k tokens for each of B requests.

        Returns tokens int32 [B, k], lengths int32 [B], and the arrays [B, k] of `Pool.step` in `names`, which may be
        "scores". The next draft of this size overwrites all of them.
        """
        arrays = self._arrays_of(requests, k)
        return self._step(arrays, arrays["nothing"], arrays["zeros"], k, names)

    def _step(
        self,
        arrays: dict[str, npt.NDArray[Any]],
        tokens: npt.NDArray[np.int32],
        counts: npt.NDArray[np.int32],
        k: int,
        names: Sequence[str],
        index_later: bool = False,
    ) -> list[npt.NDArray[Any]]:
        """`Pool.step` with the arrays of `_arrays_of`; returns what `draft` does."""
        out, lengths, named = arrays["out"], arrays["lengths"], {name: arrays[name] for name in names}
        self.pool.step(arrays["slots"], tokens, counts, k, out, lengths, **named, index_later=index_later)
        return [out, lengths, *named.values()]

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        out, lengths = self.draft(requests, k)
        return [row[:length] for row, length in zip(out.tolist(), lengths.tolist(), strict=True)]

    def finish(self, request: int) -> None:
        self.pool.close(self.slots.pop(request))

    def drop(self, group: str) -> None:
        self.pool.drop(group.encode())

    def _arrays_of(self, requests: Sequence[int], k: int) -> dict[str, npt.NDArray[Any]]:
        """Arguments of `Pool.step` for these requests; calls of the same size share one set of arrays."""
        rows = len(requests)
        if (rows, k) not in self._arrays:
            self._arrays[rows, k] = {
                "out": np.empty((rows, k), np.int32),
                "scores": np.empty((rows, k), np.float32),
                **{name: np.zeros(rows, np.int32) for name in ("slots", "zeros", "lengths")},
                "nothing": np.empty(0, np.int32),
            }
        arrays = self._arrays[rows, k]
        arrays["slots"][:] = [self.slots[request] for request in requests]
        return arrays


class Watched(SamDrafter):
    """Records all drafts, in the order in which they are verified.

    Attributes:
        positions: number of tokens of the answer before each draft.
        scores: float32 [k] of each draft, as `Pool.step` returns them, 0 after its end.
        accepted: number of accepted tokens of each draft.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.positions, self.scores, self.accepted = list[int](), list[npt.NDArray[np.float32]](), list[int]()
        self._last: dict[int, tuple[list[int], npt.NDArray[np.float32]]] = {}
        self._position: dict[int, int] = defaultdict(int)

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        out, lengths, scores = self.draft(requests, k, "scores")
        drafts = [row[:length] for row, length in zip(out.tolist(), lengths.tolist(), strict=True)]
        scores = np.where(np.arange(k) < lengths[:, None], scores, 0)
        self._last |= zip(requests, zip(drafts, scores, strict=True), strict=True)
        return drafts

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        super().append_many(requests, rows)
        for request, row in zip(requests, rows, strict=True):
            if request in self._last:
                draft, scores = self._last.pop(request)
                self.positions.append(self._position[request])
                self.scores.append(scores)
                self.accepted.append(accept_chain(draft, row, 0))
            self._position[request] += len(row)
