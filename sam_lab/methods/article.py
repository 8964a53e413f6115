# SPDX-License-Identifier: Apache-2.0
"""The article's rule as its published code has it (cann-recipes-train v0.1.0, llm_rl/qwen3/patches/vllm/v1/spec_decode/sam.py).

Like `oldest` it copies what followed the first occurrence of the longest suffix that occurred before. Where fewer than k
tokens followed that, it goes on to shorter suffixes until k did (`to_anc`), to that of one token at most; `oldest` drafts
the fewer tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from sam_lab.replay import OneByOne

RULE = "oldest_full"
"""Its name, beside those of sam_core."""


class Automaton:
    """The suffix automaton of one text. State 0 is the empty string.

    Attributes:
        tokens: the text; edges: of each state, token -> state; link: state of the next shorter suffixes; length: of the
        longest string; end: where its strings ended first.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.edges: list[dict[int, int]] = [{}]
        self.link, self.length, self.end = [-1], [0], [0]
        self.last = 0

    def append(self, token: int) -> None:
        self.tokens.append(token)
        before, self.last = self.last, self._state({}, len(self.tokens), len(self.tokens))
        while before >= 0 and token not in self.edges[before]:
            self.edges[before][token] = self.last
            before = self.link[before]
        if before < 0:
            self.link[self.last] = 0
            return
        known = self.edges[before][token]
        if self.length[known] > self.length[before] + 1:
            shorter = self._state(dict(self.edges[known]), self.length[before] + 1, self.end[known])
            self.link[shorter], self.link[known] = self.link[known], shorter
            while before >= 0 and self.edges[before].get(token) == known:
                self.edges[before][token] = shorter
                before = self.link[before]
            known = shorter
        self.link[self.last] = known

    def _state(self, edges: dict[int, int], length: int, end: int) -> int:
        self.edges.append(edges)
        self.link.append(-1)
        self.length.append(length)
        self.end.append(end)
        return len(self.edges) - 1

    def draft(self, k: int) -> list[int]:
        """At most k tokens."""
        state = max(self.link[self.last], 0)
        while state and self.link[state] and len(self.tokens) - self.end[state] < k:
            state = self.link[state]
        return self.tokens[self.end[state] : self.end[state] + k] if state else []


class OldestFull(OneByOne):
    """A drafter for the replay; each request drafts from its own text."""

    def __init__(self) -> None:
        self.texts: dict[int, Automaton] = {}

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self.texts[request] = Automaton()
        self.append(request, prompt_ids)

    def append(self, request: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.texts[request].append(token)

    def propose(self, request: int, k: int) -> list[int]:
        return self.texts[request].draft(k)

    def finish(self, request: int) -> None:
        del self.texts[request]
