# SPDX-License-Identifier: Apache-2.0
"""REST: drafts retrieved from a datastore of texts (He et al. 2023, sections 3.2, algorithms 1 and 2).

The datastore is sam_core's corpus file, a suffix array: the contexts that end in a given suffix are an interval of it,
and their continuations stand there side by side, sorted, so the trie of the continuations need not be built: its nodes
are intervals again, and its weights are their sizes.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt
from sam_core.corpus import Corpus

from research.settings import Settings
from sam_lab.replay import Tree

SAMPLE = 1024
"""Continuations that are looked at; of more, so many at even distances. The paper does not bound them."""


@numba.njit(cache=True)
def _bound(tokens, suffixes, query, upper):
    """Number of suffixes less than the query; with `upper` also those that begin with it."""
    low, high = 0, len(suffixes)
    while low < high:
        middle = (low + high) // 2
        order, at = 0, np.int64(suffixes[middle])
        for i in range(len(query)):
            token = tokens[at + i]
            if token != query[i]:
                order = -1 if token < query[i] else 1
                break
        if order < 0 or (upper and order == 0):
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=True)
def _end_of(tokens, rows, low, high, depth):
    """The end of the run of rows from `low` on with one token at `depth`."""
    token, step, known = tokens[rows[low] + depth], 1, low
    while known + step < high and tokens[rows[known + step] + depth] == token:
        known += step
        step *= 2
    end = min(known + step, high)
    while known + 1 < end:
        middle = (known + end) // 2
        if tokens[rows[middle] + depth] == token:
            known = middle
        else:
            end = middle
    return known + 1


@numba.njit(cache=True)
def _seed(number):
    np.random.seed(number)


@numba.njit(cache=True)
def retrieve(tokens, suffixes, context, n_max, m, c, max_looked_at, random, out, parents):
    """Draft from a corpus: fill out, parents int32[c]; return the number of nodes and the length of the match.

    tokens int32, texts with -1 behind each; suffixes uint32; context int32, the end of the text. A context without a
    continuation, as at the end of a text, is no match. Of more than `max_looked_at` continuations so many are looked
    at, at even distances or `random` ones.
    """
    shortest, longest, length, low, high = 1, min(n_max, len(context)), 0, 0, 0
    while shortest <= longest:  # halves what is left: if a suffix occurs, so do all shorter ones
        n = (shortest + longest) // 2
        query = context[len(context) - n :]
        begin, end = _bound(tokens, suffixes, query, False), _bound(tokens, suffixes, query, True)
        if begin < end and tokens[np.int64(suffixes[end - 1]) + n] >= 0:
            shortest, length, low, high = n + 1, n, begin, end
        else:
            longest = n - 1
    if length == 0:
        return 0, 0
    count = min(high - low, max_looked_at)
    rows = np.empty(count, np.int64)
    chosen = rows[:0]
    if random and count < high - low:
        chosen = np.sort(np.random.choice(high - low, count, False))
    for i in range(count):
        place = chosen[i] if len(chosen) else i * (high - low) // count
        rows[i] = np.int64(suffixes[low + place]) + length
    offered = 0
    heap = [(0, 0, 0, 0, 0, 0)]  # minus the weight, order of offering, rows from .. to, depth, parent
    heapq.heappop(heap)
    size, begin, end, depth, parent = 0, 0, count, 0, -1
    while True:
        at = begin
        while at < end and depth < m:
            stop = _end_of(tokens, rows, at, end, depth)
            if tokens[rows[at] + depth] >= 0:
                heapq.heappush(heap, (at - stop, offered, at, stop, depth, parent))
                offered += 1
            at = stop
        if size == c or not heap:
            return size, length
        _, _, begin, end, depth, parent = heapq.heappop(heap)
        out[size], parents[size] = tokens[rows[begin] + depth], parent
        parent = size
        depth += 1
        size += 1


class Rest:
    """REST as a drafter; `corpus` is a file that sam_core.build_corpus wrote.

    n_max: longest suffix that is matched; m: tokens of a continuation; c: nodes of the trie that are drafted; seed: of
    a random choice among more than `max_looked_at` continuations, instead of one at even distances. It is the state of
    numba's generator: drafters that choose at random are used one after another.
    """

    def __init__(
        self,
        corpus: str | os.PathLike[str],
        n_max: int = Settings.n_max,
        m: int = Settings.m,
        c: int = Settings.c,
        max_looked_at: int = SAMPLE,
        seed: int | None = None,
    ) -> None:
        store = Corpus(corpus)
        self._tokens, self._suffixes = np.asarray(store.tokens), np.asarray(store.suffixes)
        self.n_max, self.m, self.c, self.max_looked_at, self._random = n_max, m, c, max_looked_at, seed is not None
        if seed is not None:
            _seed(seed)
        self._contexts: dict[int, list[int]] = {}
        self.match_length = 0
        self.retrieve([], 1)  # compiles

    def retrieve(self, context: Sequence[int] | npt.NDArray[np.int32], c: int) -> Tree:
        """At most `c` nodes behind the context; `match_length` gets the length of the suffix that was found."""
        out, parents = np.empty(c, np.int32), np.empty(c, np.int32)
        query = np.asarray(context[-self.n_max :], np.int32)
        limits = self.n_max, self.m, c, self.max_looked_at, self._random
        size, self.match_length = retrieve(self._tokens, self._suffixes, query, *limits, out, parents)
        return out[:size].tolist(), parents[:size].tolist()

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self._contexts[request] = list(prompt_ids[-self.n_max :])

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, row in zip(requests, rows, strict=True):
            self._contexts[request] = [*self._contexts[request], *row][-self.n_max :]

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        return [self.retrieve(self._contexts[request], min(n, self.c)) for request in requests]

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        """The most frequent path of each tree."""
        return [_first_path(*tree)[:k] for tree in self.propose_tree_many(requests, self.c)]

    def finish(self, request: int) -> None:
        del self._contexts[request]


def _first_path(tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
    """From the root down, always to the child that comes first."""
    path, node = [], -1
    for child, parent in enumerate(parents):
        if parent == node:
            path.append(tokens[child])
            node = child
    return path
