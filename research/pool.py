# SPDX-License-Identifier: Apache-2.0
"""The article's chains and SuffixDecoding on `sam_core.Pool`; and what the hybrid method needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from sam_lab.drafters import SamDrafter
from sam_lab.recordings import temporary_corpus
from sam_lab.replay import Tree, accept_tree

GLOBAL = "global"
SCORED_NODES = 16
TREES = {"both": ("request", "group", "history"), "global": ("group", "history"), "request": ("request",)}
"""SuffixDecoding's trees, and the sources that stand for them: the global one outlives its requests."""


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
    """SuffixDecoding: all requests are one group, whose index is the global tree; `trees` as of TREES.

    It begins with `outputs` of earlier requests. The paper's global tree has the outputs of requests that have ended.
    This one also has the prompts and outputs of the requests that run.
    """

    def __init__(self, trees: str = "both", outputs: Iterable[Sequence[int]] = (), rule: str = "suffix") -> None:
        super().__init__(rule=rule, sources=TREES[trees])
        self.learn(outputs)

    def learn(self, outputs: Iterable[Sequence[int]]) -> None:
        """Put outputs of earlier requests into the global tree, without their prompts."""
        for output in outputs:
            super().start(-1, [], GLOBAL)
            self.append_many([-1], [output])
            self.finish(-1)

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        super().start(request, prompt_ids, GLOBAL)

    def drop(self, group: str) -> None:
        """The global tree outlives every group."""


class Frozen(SamDrafter):
    """SuffixDecoding with a global tree of these outputs, a corpus, that learns nothing; `trees` as of TREES."""

    def __init__(self, outputs: Sequence[Sequence[int]], trees: str = "both") -> None:
        known = temporary_corpus(outputs) if outputs and trees != "request" else contextlib.nullcontext()
        with known as corpus:
            super().__init__(rule="suffix", sources=TREES[trees], corpus=corpus)

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        super().start(request, prompt_ids, None)


class Linear(Global):
    """SuffixDecoding's chains (SD-L), also where a tree is asked for."""

    def propose_tree_many(self, requests: Sequence[int], n: int) -> list[Tree]:
        return [chain_tree(tokens) for tokens in self.propose_many(requests, n)]


class Scored(Global):
    """The pool's trees, of at most SCORED_NODES nodes, and how many of their tokens it expects to be accepted."""

    def learn(self, outputs: Iterable[Sequence[int]]) -> None:
        """As Global's, with drafts for each output as it is read: the pool learns how often they are accepted."""
        for output in outputs:
            self.start(-1, [], None)
            at = 0
            while at < len(output):
                ((tree, _),) = self.propose_scored([-1], SCORED_NODES)
                row = output[at : at + accept_tree(*tree, output, at) + 1]
                self.append_many([-1], [row])
                at += len(row)
            self.finish(-1)

    def propose_scored(self, requests: Sequence[int], n: int) -> list[tuple[Tree, float]]:
        rows = zip(*self.draft(requests, min(n, SCORED_NODES), "scores", "parents"), strict=True)
        return [
            ((tokens[:length].tolist(), parents[:length].tolist()), float(scores[:length].sum()))
            for tokens, length, scores, parents in rows
        ]
