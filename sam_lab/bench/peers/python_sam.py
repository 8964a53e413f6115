# SPDX-License-Identifier: Apache-2.0
"""The article's automaton as one writes it in Python: a suffix automaton whose states are dicts."""

from sam_lab.replay import OneByOne


class PythonSam:
    """A suffix automaton whose states are dicts; a draft copies what followed the first occurrence."""

    def __init__(self):
        self.next = [{}]
        self.link = [-1]
        self.length = [0]
        self.first = [0]  # min_endpos: where the state's strings ended first
        self.last = 0
        self.tokens = []

    def append(self, token):
        self.tokens.append(token)
        state, at = len(self.next), self.last
        self.next.append({})
        self.length.append(len(self.tokens))
        self.first.append(len(self.tokens))
        self.link.append(0)
        self.last = state
        while at >= 0 and token not in self.next[at]:
            self.next[at][token] = state
            at = self.link[at]
        if at < 0:
            return
        old = self.next[at][token]
        if self.length[old] == self.length[at] + 1:
            self.link[state] = old
            return
        clone = len(self.next)
        self.next.append(self.next[old].copy())
        self.length.append(self.length[at] + 1)
        self.first.append(self.first[old])
        self.link.append(self.link[old])
        while at >= 0 and self.next[at].get(token) == old:
            self.next[at][token] = clone
            at = self.link[at]
        self.link[old] = self.link[state] = clone

    def draft(self, k):
        state = self.link[self.last]
        return self.tokens[self.first[state] : self.first[state] + k] if state > 0 else []


class PythonDrafter(OneByOne):
    """PythonSam in the replay; it has no groups."""

    def __init__(self):
        self.texts = {}

    def start(self, request, prompt_ids, group):
        self.texts[request] = PythonSam()
        self.append(request, prompt_ids)

    def append(self, request, tokens):
        add = self.texts[request].append
        for token in tokens:
            add(token)

    def propose(self, request, k):
        return self.texts[request].draft(k)

    def finish(self, request):
        del self.texts[request]


class PythonBatch:
    """Rows of PythonSam."""

    def __init__(self, table, size):
        self.table, self.columns, self.at = table, table.T.tolist(), size
        self.rows = [PythonSam() for _ in table]
        for sam, row in zip(self.rows, table[:, :size].tolist()):
            for token in row:
                sam.append(token)

    def append(self):
        for sam, token in zip(self.rows, self.columns[self.at]):
            sam.append(token)
        self.at += 1

    def draft(self, k):
        return [sam.draft(k) for sam in self.rows]
