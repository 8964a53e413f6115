# SPDX-License-Identifier: Apache-2.0
"""sam_core for the timings: called for a batch of rows with preallocated buffers, and as an engine calls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sam_core.proposer import SamProposer
from sam_core.switch import AutoSwitch

import sam_core
from sam_lab.bench.texts import SIBLINGS

if TYPE_CHECKING:
    from sam_core.options import Source

MEMORY = 8 << 30
NOTHING = np.empty(0, np.int32)
RULES: dict[str, dict[str, Any]] = {
    "newest": {"rule": "newest", "sources": ("request",)},
    "blend with group": {"rule": "blend", "sources": ("request", "group", "common")},
}


def feed(pool: sam_core.Pool, slots: np.ndarray, num_tokens: int) -> None:
    """Index all tokens of these slots, as the next steps of an engine would."""
    rows = len(slots)
    none, out, lengths = np.zeros(rows, np.int32), np.empty((rows, 1), np.int32), np.empty(rows, np.int32)
    for _ in range(6 * num_tokens // 2048 + 1):  # a step does 2,048 units of work, and a token takes at most 6
        pool.step(slots, NOTHING, none, 1, out, lengths)


class SamBatch:
    """Rows of one pool; with source `group`, each SIBLINGS rows form a group.

    Args:
        table: tokens [rows, n].
        size: the number of tokens per row that the pool has at first; `append` and `step` add the next one.
    """

    def __init__(self, table: np.ndarray, size: int, sources: Sequence[Source], **options):
        rows = len(table)
        self.pool = sam_core.Pool(memory_bytes=MEMORY, sources=sources, **options)
        names = [b"%d" % (row // SIBLINGS) if "group" in sources else None for row in range(rows)]
        slots = [self.pool.open(text[:1], name) for text, name in zip(table, names, strict=True)]
        self.slots = np.array(slots, np.int32)
        self.lengths = np.empty(rows, np.int32)
        self.zeros, self.ones = np.zeros(rows, np.int32), np.ones(rows, np.int32)
        self.out = {k: np.empty((rows, k), np.int32) for k in (0, 1, 3)}
        for at in range(1, size, 512):  # siblings grow side by side
            for slot, text in zip(slots, table, strict=True):
                self.pool.append(slot, text[at : min(at + 512, size)])
        self.table, self.columns, self.at = table, np.ascontiguousarray(table.T), size

    def append(self):
        self.pool.step(self.slots, self.columns[self.at], self.ones, 0, self.out[0], self.lengths)
        self.at += 1

    def draft(self, k):
        self.pool.step(self.slots, NOTHING, self.zeros, k, self.out[k], self.lengths)

    def step(self, k):
        self.pool.step(self.slots, self.columns[self.at], self.ones, k, self.out[k], self.lengths)
        self.at += 1


class Engine:
    """Calls the proposer as an engine does whose model samples the tokens of a table. Each SIBLINGS requests form a
    group.

    By its own clock, which switch auto reads, a step takes 20 ms and 0.02 ms per computed token.
    """

    def __init__(self, table: np.ndarray, size: int, k: int, **options: Any):
        rows = len(table)
        self.table, self.k, self.now = table, k, 0.0
        self.req_ids = [str(row) for row in range(rows)]
        self.lengths, self.prompts = np.full(rows, size, np.int32), np.full(rows, size // 4, np.int32)
        self.sampled = [[1]] * rows
        self.proposer = SamProposer(
            k,
            {"memory_bytes": MEMORY} | options,
            max_model_len=table.shape[1] + k + 1,
            group_of=lambda req_id: b"%d" % (int(req_id) // SIBLINGS),
        )
        if isinstance(self.proposer.switch, AutoSwitch):
            self.proposer.switch.clock = lambda: self.now
        self.drafted = 0
        self.propose(int(self.lengths.sum()))
        feed(self.proposer.texts.pool, np.arange(rows, dtype=np.int32), int(self.lengths.sum()))

    def propose(self, num_tokens: int) -> float:
        """Return the seconds until the drafts are ready. Index after that, like an engine that waits for its device."""
        begin = time.perf_counter()
        drafts = self.proposer.propose(
            self.req_ids, self.table, self.lengths, self.prompts, self.sampled, num_tokens, index_later=True
        )
        waited = time.perf_counter() - begin
        self.proposer.catch_up()
        self.drafts = np.array([draft + [-1] * (self.k - len(draft)) for draft in drafts], np.int32)
        return waited

    def step(self) -> float:
        """Verify the drafts, then propose; returns the seconds of `propose`."""
        self.drafted += (drafted := int((self.drafts >= 0).sum()))
        num_tokens = len(self.table) + drafted
        self.now += 0.02 + 2e-5 * num_tokens
        continuation = self.table[np.arange(len(self.table))[:, None], self.lengths[:, None] + np.arange(self.k)]
        self.lengths += 1 + np.logical_and.accumulate(self.drafts == continuation, axis=1).sum(1, dtype=np.int32)
        return self.propose(num_tokens)
