# SPDX-License-Identifier: Apache-2.0
"""Drafts from `sam_core.Pool`: chains, SuffixDecoding, and what the hybrid method asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sam_core.replay import SamDrafter, accept_tree

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
    their prompts, as they go: each is found by the others at once. online: requests stay in it when they end.
    """

    def __init__(self, trees: str = "both", rule: str = "suffix", online: bool = True) -> None:
        super().__init__(rule=rule, sources=TREES[trees])
        self._online = online

    def learn(self, outputs: Iterable[Sequence[int]]) -> None:
        """Put outputs of earlier requests into the global tree, without their prompts."""
        for output in outputs:
            self._slots[-1] = self._pool.open([], GLOBAL)
            self.append(-1, output)
            super().finish(-1)

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self._slots[request] = self._pool.open(prompt_ids, GLOBAL)

    def finish(self, request: int) -> None:
        self._pool.close(self._slots.pop(request), keep=self._online)

    def drop(self, group: str) -> None:
        """The global tree outlives every group."""


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
            SamDrafter.finish(self, -1)

    def propose_scored(self, requests: Sequence[int], n: int) -> list[tuple[Tree, float]]:
        n = min(n, SCORED_NODES)
        slots, zeros, out, lengths, scores, parents = self._arrays(requests, n)
        self._pool.step(slots, self._nothing, zeros, n, out, lengths, scores, parents)
        return [
            ((tokens[:length].tolist(), above[:length].tolist()), float(probability[:length].sum()))
            for tokens, above, probability, length in zip(out, parents, scores, lengths.tolist(), strict=True)
        ]


class Twin(Global):
    """SuffixDecoding by the plain-Python twin of the pool, whose factor alpha can be set: slow, to measure alpha."""

    def __init__(self, alpha: int, trees: str = "both", online: bool = True) -> None:
        super().__init__(trees, online=online)
        self._pool, self._alpha = reference.Pool(rule="suffix", sources=TREES[trees]), alpha

    def _with_alpha(self, call: Any, *args: Any) -> Any:
        kept, reference.rules.ALPHA = reference.rules.ALPHA, self._alpha
        try:
            return call(*args)
        finally:
            reference.rules.ALPHA = kept

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        return self._with_alpha(super().propose_many, requests, k)

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        return self._with_alpha(super().propose_tree_many, requests, n)
