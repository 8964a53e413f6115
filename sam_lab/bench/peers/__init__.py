# SPDX-License-Identifier: Apache-2.0
"""Peers, each as a drafter for the replay and as a batch of rows for the timings."""

from sam_lab.automaton import Automaton, AutomatonDrafter

from .arctic import DEPTH, ArcticBatch, ArcticDrafter, arctic
from .ngram import NgramBatch, NgramDrafter
from .sglang import SglangBatch, SglangDrafter
from .source import MODEL_LEN

__all__ = ["BATCHES", "DEPTH", "DRAFTERS", "MODEL_LEN", "ArcticBatch", "arctic"]


class PythonBatch:
    """Rows of the article's automaton in plain Python."""

    def __init__(self, table, size):
        self.table, self.columns, self.at = table, table.T.tolist(), size
        self.rows = [Automaton() for _ in table]
        for sam, row in zip(self.rows, table[:, :size].tolist(), strict=True):
            for token in row:
                sam.append(token)

    def append(self):
        for sam, token in zip(self.rows, self.columns[self.at], strict=True):
            sam.append(token)
        self.at += 1

    def draft(self, k):
        return [sam.draft(k) for sam in self.rows]


BATCHES = {"python": PythonBatch, "arctic": ArcticBatch, "ngram": NgramBatch, "sglang": SglangBatch}
DRAFTERS = {
    "python": lambda k, private: AutomatonDrafter(),
    "arctic": lambda k, private: ArcticDrafter(private),
    "ngram": lambda k, private: NgramDrafter(),
    "sglang": SglangDrafter,
}
