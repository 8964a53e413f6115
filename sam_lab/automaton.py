# SPDX-License-Identifier: Apache-2.0
"""The article's suffix automaton in plain Python, with dicts.

As the published code (cann-recipes-train v0.1.0, llm_rl/qwen3/patches/vllm/v1/spec_decode/sam.py) and sam_core's rule
`oldest`, it copies what followed the first occurrence of the longest suffix that occurred before.
"""

from __future__ import annotations

from collections.abc import Sequence

from sam_lab.replay import OneByOne


class Automaton:
    """The suffix automaton of one text. State 0 is the empty string.

    Attributes:
        tokens: the text.
        next: for each state, {token: next state}.
        link: for each state, the state of the next shorter suffixes.
        length: length of each state's longest string.
        first: position at which each state's strings first ended (min_endpos).
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.first = [0]
        self.last = 0
        self.tokens: list[int] = []

    def append(self, token: int) -> None:
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

    def draft(self, k: int) -> list[int]:
        """At most k tokens that followed the first occurrence of the longest suffix."""
        state = self.link[self.last]
        return self.tokens[self.first[state] : self.first[state] + k] if state > 0 else []


class AutomatonDrafter(OneByOne):
    """Automata as a drafter for the replay; each request drafts from its own text."""

    def __init__(self) -> None:
        self.texts: dict[int, Automaton] = {}

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        self.texts[request] = Automaton()
        self.append(request, prompt_ids)

    def append(self, request: int, tokens: Sequence[int]) -> None:
        append = self.texts[request].append
        for token in tokens:
            append(token)

    def propose(self, request: int, k: int) -> list[int]:
        return self.texts[request].draft(k)

    def finish(self, request: int) -> None:
        del self.texts[request]
