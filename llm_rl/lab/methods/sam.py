# SPDX-License-Identifier: Apache-2.0
"""Drafts from `sam_core.Pool`: chains, SuffixDecoding, and what the hybrid method asks of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sam_core.replay import SamDrafter, accept_tree, build_corpus

from llm_rl.lab.tree import Tree
from sam_core import reference

GLOBAL = b"global"
SCORED_NODES = 16
ALPHA = reference.rules.ALPHA
TREES = {"both": ("request", "group"), "global": ("group",), "request": ("request",)}


def chain_tree(tokens: Sequence[int]) -> Tree:
    """A chain as a tree of width one."""
    return tokens, range(-1, len(tokens) - 1)


class Chains(SamDrafter):
    """The pool's chains, of at most k tokens, also where a tree is asked for."""

    def __init__(self, k: int, **options: Any) -> None:
        super().__init__(**options)
        self.k = k

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        return [chain_tree(tokens) for tokens in self.propose_many(requests, min(n, self.k))]


class Global(SamDrafter):
    """All requests in one group, whose index is SuffixDecoding's global tree; by default with the tree of the request.

    The paper's global tree has the outputs of requests that have ended. This one also has the requests that run, with
    their prompts, as they go: each is found by the others at once.
    """

    def __init__(self, trees: str = "both", rule: str = "suffix") -> None:
        super().__init__(rule=rule, sources=TREES[trees])

    def learn(self, outputs: Iterable[Sequence[int]]) -> None:
        """Put outputs of earlier requests into the global tree, without their prompts."""
        for output in outputs:
            self._slots[-1] = self._pool.open([], GLOBAL)
            self.append(-1, output)
            self.finish(-1)

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self._slots[request] = self._pool.open(prompt_ids, GLOBAL)

    def drop(self, group: str) -> None:
        """The global tree outlives every group."""


class Frozen(SamDrafter):
    """SuffixDecoding with a global tree of these outputs, a corpus, that learns nothing; `trees` as of Global."""

    def __init__(self, outputs: Sequence[Sequence[int]], trees: str = "both") -> None:
        super().__init__(rule="suffix", sources=TREES[trees])
        if outputs and trees != "request":
            self.warm(outputs)

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        super().start(request, prompt_ids, None)


class Linear(Global):
    """SuffixDecoding's chains (SD-L) also where a tree is asked for."""

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        return [chain_tree(tokens) for tokens in self.propose_many(requests, n)]


class Scored(Global):
    """The pool's trees, of at most SCORED_NODES nodes, and how many of their tokens it expects to be accepted."""

    def learn(self, outputs: Iterable[Sequence[int]]) -> None:
        """As Global's, but each output is drafted as it is read, which is how the pool learns what its drafts are worth."""
        for output in outputs:
            self._slots[-1], at = self._pool.open([], GLOBAL), 0
            while at < len(output):
                ((tree, _),) = self.propose_scored([-1], SCORED_NODES)
                row = output[at : at + accept_tree(*tree, output, at) + 1]
                self.append(-1, row)
                at += len(row)
            self.finish(-1)

    def propose_scored(self, requests: Sequence[int], n: int) -> list[tuple[Tree, float]]:
        n = min(n, SCORED_NODES)
        slots, zeros, out, lengths, scores, parents = self._arrays(requests, n)
        self._pool.step(slots, self._nothing, zeros, n, out, lengths, scores, parents)
        return [
            ((tokens[:length].tolist(), above[:length].tolist()), float(probability[:length].sum()))
            for tokens, above, probability, length in zip(out, parents, scores, lengths.tolist(), strict=True)
        ]


class Twin(Global):
    """SuffixDecoding by the plain-Python twin of the pool: slower, to measure what the pool fixes or does not tell.

    alpha: tokens of a draft for each token of its match; None: no limit but that of a draft. frozen: outputs that the
    global tree has, and then learns nothing, as Frozen's.

    Attributes:
        matches: how many drafts stood on a match of so many tokens, int64[LONGEST + 1]; longer ones count as LONGEST.
        drafted, accepted: how many tokens these drafts had, and how many of them became text, int64[LONGEST + 1].
    """

    LONGEST = 64

    def __init__(self, alpha: int | None, trees: str = "both", frozen: Sequence[Sequence[int]] | None = None) -> None:
        super().__init__(trees)
        self._group = GLOBAL if frozen is None else None
        with tempfile.TemporaryDirectory(prefix="lab-twin-") as folder:
            corpus = build_corpus(frozen, folder) if frozen and trees != "request" else None
            self._pool = reference.Pool(rule="suffix", sources=TREES[trees], corpus=corpus)
        self._alpha = alpha or 1 << 30
        self.matches, self.drafted, self.accepted = np.zeros((3, self.LONGEST + 1), np.int64)
        self._last: dict[int, tuple[int, Tree]] = {}  # of each request: match and draft

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self._slots[request] = self._pool.open(prompt_ids, self._group)

    def _drafted(self, propose: Any, requests: Sequence[int], most: int) -> list[Any]:
        """Draft with this alpha, and note the matches."""
        kept, reference.rules.ALPHA = reference.rules.ALPHA, self._alpha
        try:
            drafts = propose(requests, most)
        finally:
            reference.rules.ALPHA = kept
        for request in requests:
            record = self._pool._slots[self._slots[request]].record
            self._last[request] = min(record.length, self.LONGEST), (record.tokens, record.parents)
        return drafts

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        return self._drafted(super().propose_many, requests, k)

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        return self._drafted(super().propose_tree_many, requests, n)

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, row in zip(requests, rows, strict=True):
            if request in self._last:
                length, draft = self._last.pop(request)
                self.matches[length] += 1
                self.drafted[length] += len(draft[0])
                self.accepted[length] += accept_tree(*draft, row, 0)
        super().append_many(requests, rows)
