# SPDX-License-Identifier: Apache-2.0
"""sam_core as a batch of rows for the timings, called from Python with preallocated buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from texts import SIBLINGS

import sam_core

MEMORY = 8 << 30
NOTHING = np.empty(0, np.int32)
RULES: dict[str, dict[str, Any]] = {
    "newest": {"rule": "newest", "sources": ("request",)},
    "count": {"rule": "count", "sources": ("request",)},
    "blend with group": {"rule": "blend", "sources": ("request", "group")},
}


class SamBatch:
    """Rows of one pool, SIBLINGS of them a group where the sources have groups."""

    def __init__(self, table: np.ndarray, size: int, sources: tuple[str, ...], **options):
        rows = len(table)
        self.pool = sam_core.Pool(memory_bytes=MEMORY, sources=sources, **options)
        names = [b"%d" % (row // SIBLINGS) if "group" in sources else None for row in range(rows)]
        self.slots = np.array([self.pool.open(text[:1], name) for text, name in zip(table, names)], np.int32)
        self.lengths = np.empty(rows, np.int32)
        self.zeros, self.ones = np.zeros(rows, np.int32), np.ones(rows, np.int32)
        self.out = {k: np.empty((rows, k), np.int32) for k in (0, 1, 3, 16)}
        self.parents, self.scores = np.empty((rows, 16), np.int32), np.empty((rows, 16), np.float32)
        fed = np.ascontiguousarray(table[:, 1:size])
        for at in range(0, size - 1, 512):  # siblings grow side by side
            part = fed[:, at : at + 512]
            counts = np.full(rows, part.shape[1], np.int32)
            self.pool.step(self.slots, part.reshape(-1), counts, 0, self.out[0], self.lengths)
        self.table, self.columns, self.at = table, np.ascontiguousarray(table.T), size

    def append(self):
        self.pool.step(self.slots, self.columns[self.at], self.ones, 0, self.out[0], self.lengths)
        self.at += 1

    def draft(self, k):
        self.pool.step(self.slots, NOTHING, self.zeros, k, self.out[k], self.lengths)

    def tree(self, n):
        self.pool.step(self.slots, NOTHING, self.zeros, n, self.out[n], self.lengths, self.scores, self.parents)

    def step(self, k):
        self.pool.step(self.slots, self.columns[self.at], self.ones, k, self.out[k], self.lengths)
        self.at += 1
