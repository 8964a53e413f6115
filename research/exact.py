# SPDX-License-Identifier: Apache-2.0
"""SuffixDecoding as in its paper (section 3, algorithm 1), plain Python: the global tree has every occurrence.

`sam_core`'s rule `suffix`, which serves engines, is an approximation: it asks a string for a bounded number of
children, follows matches up to a bounded length, and counts ends of texts among what followed. This module has none of
these bounds, except that patterns have at most LONGEST tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sam_lab.replay import OneByOne, Tree

ALPHA = 4
"""SuffixDecoding's alpha, as sam_core's rule `suffix` has it: a match of p tokens drafts at most alpha * p."""
LONGEST = 64
"""Maximum tokens of a pattern; with alpha = 4 and drafts of 64 tokens, MAX_SPEC no longer grows from 16 on."""
TREES = {"both": (True, True), "global": (False, True), "request": (True, False)}
"""Whether the request's tree and the global one are used."""
END = -1
MANY = 256

Int64 = npt.NDArray[np.int64]


class Texts:
    """Texts one after another, END behind each, and where each token stands."""

    def __init__(self) -> None:
        self.tokens = np.empty(256, np.int64)
        self.size = 0
        self.places: dict[int, list[int]] = {}
        self.sorted: dict[int, Int64] = {}  # the same as arrays
        self.known: dict[tuple[int, int, int], tuple[list[tuple[int, int, Int64]], int]] = {}  # children of many places

    def append(self, tokens: Iterable[int]) -> None:
        self.known.clear()
        for token in tokens:
            if self.size == len(self.tokens):
                self.tokens = np.concatenate([self.tokens, np.empty_like(self.tokens)])
            self.tokens[self.size] = token
            if token != END:
                self.places.setdefault(token, []).append(self.size)
                self.sorted.pop(token, None)
            self.size += 1

    def of(self, token: int) -> Int64:
        """Places of a token, ascending."""
        if token not in self.sorted:
            self.sorted[token] = np.array(self.places.get(token, ()), np.int64)
        return self.sorted[token]

    def children(self, after: Int64) -> tuple[list[tuple[int, int, Int64]], int]:
        """(token, count, places after it) of what stands at `after`, the most frequent first, and the counts' sum."""
        if len(after) < MANY:
            return self._children(after)
        key = len(after), int(after[0]), hash(after.tobytes())
        if key not in self.known:
            self.known[key] = self._children(after)
        return self.known[key]

    def _children(self, after: Int64) -> tuple[list[tuple[int, int, Int64]], int]:
        after = after[after < self.size]
        tokens = self.tokens[after]
        after, tokens = after[tokens != END], tokens[tokens != END]
        if len(after) == 1:
            return [(int(tokens[0]), 1, after + 1)], 1
        order = np.argsort(tokens, kind="stable")
        starts = np.flatnonzero(np.diff(tokens[order], prepend=END))
        parts = np.split(after[order], starts[1:]) if len(starts) else []
        found = [(int(tokens[order[start]]), len(part), part + 1) for start, part in zip(starts, parts, strict=True)]
        found.sort(key=lambda child: (-child[1], child[2][0]))
        return found, len(after)


class Match:
    """Where suffixes of a request's text stand in Texts, followed token by token.

    Attributes:
        ends: places behind each occurrence of the last token.
        lengths: [ends], of the longest suffix that ends there, at most LONGEST.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.ends = self.lengths = np.empty(0, np.int64)

    def advance(self, token: int) -> None:
        places = self.texts.of(token)
        before = np.searchsorted(self.ends, places)
        before[before == len(self.ends)] = 0
        known = self.ends[before] == places if len(self.ends) else np.zeros(len(places), bool)
        lengths = np.ones(len(places), np.int64)
        if known.any():
            lengths[known] += self.lengths[before[known]]
        self.ends, self.lengths = places + 1, np.minimum(lengths, LONGEST)

    def patterns(self) -> list[tuple[int, Int64]]:
        """The suffixes that stand in the texts, the longest first, as (length, the places behind its occurrences).

        Of suffixes with the same occurrences only the longest is returned: it has the largest MAX_SPEC."""
        return [(int(p), self.ends[self.lengths >= p]) for p in np.unique(self.lengths)[::-1]]


def expand(texts: Texts, after: Int64, most: int, tree: bool) -> tuple[float, list[int], list[int]]:
    """Greedy expansion from one pattern: score (the sum of D), tokens, parents; a chain never leaves its last token."""
    tokens: list[int] = []
    parents: list[int] = []
    score, share, offered = 0.0, 1.0, 0
    offers: list[tuple[float, int, int, int, Int64]] = []  # a heap: the largest D first, the first offered on a tie
    while True:
        if not tree:
            offers = []
        children, total = texts.children(after)
        for token, count, behind in children[: most - len(tokens) if tree else 1]:
            offered += 1
            heapq.heappush(offers, (-share * count / total, offered, token, len(tokens) - 1, behind))
        if len(tokens) == most or not offers:
            return score, tokens, parents
        negative, _, token, parent, after = heapq.heappop(offers)
        share = -negative
        score += share
        tokens.append(token)
        parents.append(parent)


class Exact(OneByOne):
    """SuffixDecoding as a drafter.

    Args:
        outputs: of earlier requests, the texts of the global tree.
        trees: of TREES.
        alpha: MAX_SPEC = alpha p; None: no limit but that of a draft.
        keep: an output joins the global tree when its request ends.
    """

    def __init__(
        self,
        outputs: Iterable[Sequence[int]] = (),
        trees: str = "both",
        alpha: int | None = ALPHA,
        keep: bool = False,
    ) -> None:
        self.uses, self.alpha, self.keep = TREES[trees], alpha, keep
        self.known = Texts()
        self.learn(outputs)
        self._requests: dict[int, tuple[Texts, Match, Match, int]] = {}

    def learn(self, outputs: Iterable[Sequence[int]]) -> None:
        """Put outputs of earlier requests into the global tree, without their prompts."""
        for output in outputs:
            self.known.append([*output, END])

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        own = Texts()
        self._requests[request] = own, Match(own), Match(self.known), len(prompt_ids)
        self._feed(request, prompt_ids)

    def _feed(self, request: int, tokens: Sequence[int]) -> None:
        own, own_match, known_match, _ = self._requests[request]
        for token in tokens:
            if self.uses[0]:
                own_match.advance(token)  # before it stands there itself
            if self.uses[1]:
                known_match.advance(token)
            own.append([token])

    def append(self, request: int, row: Sequence[int]) -> None:
        self._feed(request, row)

    def propose_tree(self, request: int, n: int) -> Tree:
        """SD-T."""
        return self._propose(request, n, True)

    def propose(self, request: int, k: int) -> list[int]:
        """SD-L."""
        return list(self._propose(request, k, False)[0])

    def _propose(self, request: int, n: int, tree: bool) -> Tree:
        own, own_match, known_match, _ = self._requests[request]
        best: tuple[float, list[int], list[int]] = 0.0, [], []
        for used, texts, match in zip(self.uses, (own, self.known), (own_match, known_match), strict=True):
            for p, after in match.patterns() if used else ():
                found = expand(texts, after, n if self.alpha is None else min(n, self.alpha * p), tree)
                if found[0] > best[0]:
                    best = found
        return best[1], best[2]

    def finish(self, request: int) -> None:
        own, _, _, prompt = self._requests.pop(request)
        if self.keep:
            self.known.append([*own.tokens[prompt : own.size].tolist(), END])
