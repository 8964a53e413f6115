# SPDX-License-Identifier: Apache-2.0
"""The article's automaton in plain Python, as rows of a batch."""

from sam_lab.automaton import Automaton


class PythonBatch:
    """Rows of Automaton."""

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
