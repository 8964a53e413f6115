# SPDX-License-Identifier: Apache-2.0
"""REST: drafts retrieved from a datastore of texts (He et al. 2023).

Claims: a larger datastore gains more (table 2). A trie of the continuations gains more than some of them chosen at
random (table 3). A limit of matches (n_max) below 6 tokens is slower than a higher one (figure 3).

Method (section 3.2): the longest suffix of the text, at most n_max = 16 tokens, that occurs in the datastore is the
match. What follows each occurrence, at most m = 10 tokens, goes into a trie, whose c = 64 most frequent nodes are the
draft. The datastore is sam_core's corpus, a suffix array: occurrences of a match are an interval of it.

Verdict, tokens per step on code, long reasoning, mathematics and RL answers: a datastore of all earlier outputs gains
1.03 to 1.35 times as much as one of 64, and the trie 1.077 to 1.115 times as much as a random choice. Longer matches
are not better: n_max = 16 gains 0.91 to 0.96 times as much as n_max = 2, and 0.971 to 0.995 times as much as n_max = 4.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from sam_core.corpus import END, Corpus

from sam_lab.papers.claims import Claim, Recording
from sam_lab.recordings import temporary_corpus
from sam_lab.replay import Tree, TreeDrafter

SAMPLE = 256
"""Maximum occurrences that are read, evenly spaced. The paper has no limit."""
RANDOM = 8
"""Number of randomly chosen continuations, and maximum tokens of each."""
FEW = 64
"""Earlier outputs in the small datastore."""


class Rest(TreeDrafter):
    """REST as a drafter.

    Args:
        outputs: the texts of the datastore.
        n_max: tokens of the longest suffix that is looked up.
        m: tokens of a continuation.
        chosen: draft this many continuations, chosen at random, instead of the most frequent nodes.
    """

    def __init__(
        self, outputs: Sequence[Sequence[int]], n_max: int = 16, m: int = 10, chosen: int | None = None
    ) -> None:
        super().__init__()
        with temporary_corpus(outputs) as path:
            store = Corpus(path)
        self.tokens, self.suffixes = np.array(store.tokens), np.array(store.suffixes, np.int64)
        self.n_max, self.m, self.chosen, self.random = n_max, m, chosen, random.Random(0)

    def after(self, suffix: list[int]) -> list[list[int]]:
        """The continuations of a suffix, at most m tokens each; occurrences at the end of a text have none."""

        def key(row: int) -> list[int]:
            at = self.suffixes[row]
            return self.tokens[at : at + len(suffix)].tolist()

        rows = range(len(self.suffixes))
        low = bisect_left(rows, suffix, key=key)
        high = bisect_right(rows, suffix, low, key=key)
        chosen = np.linspace(low, high - 1, min(high - low, SAMPLE)).astype(np.int64)
        texts = [self.tokens[at : at + self.m].tolist() for at in self.suffixes[chosen] + len(suffix)]
        return [text[: text.index(END)] if END in text else text for text in texts if text[0] != END]

    def continuations(self, text: list[int]) -> list[list[int]]:
        """The continuations of the longest suffix of a text that occurs; if a suffix occurs, so do all shorter ones."""
        found: list[list[int]] = []
        low, high = 0, min(self.n_max, len(text))
        while low < high:
            length = (low + high + 1) // 2
            if follow := self.after(text[-length:]):
                found, low = follow, length
            else:
                high = length - 1
        return found

    def propose_tree(self, request: int, n: int) -> Tree:
        found = self.continuations(self.texts[request][-self.n_max :])
        if self.chosen:
            found = self.random.sample(found, min(self.chosen, len(found)))
        trie = Counter(tuple(text[:end]) for text in found for end in range(1, len(text) + 1))
        drafted = sorted(trie, key=lambda path: (-trie[path], len(path)))[:n]  # a node comes after its parent
        place = {path: number for number, path in enumerate(drafted)} | {(): -1}
        return [path[-1] for path in drafted], [place[path[:-1]] for path in drafted]


def claims(recording: Recording) -> Iterator[Claim]:
    outputs = recording.outputs
    default = recording.counts(Rest(outputs))
    yield Claim(
        f"a datastore of all earlier outputs gains more than of {FEW}", default, recording.counts(Rest(outputs[:FEW]))
    )
    at_random = recording.counts(Rest(outputs, m=RANDOM, chosen=RANDOM))
    yield Claim("a trie gains more than continuations chosen at random", default, at_random)
    for n_max in (2, 4):
        shorter = recording.counts(Rest(outputs, n_max))
        yield Claim(f"n_max = 16 gains more than n_max = {n_max}", default, shorter)
