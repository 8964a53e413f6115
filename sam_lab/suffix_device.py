# SPDX-License-Identifier: Apache-2.0
"""vLLM's suffix decoding on the second model runner, by its rules (vllm-project/vllm 05084858), in numpy.

A request drafts what followed the longest suffix of its text, at most `depth` tokens, that occurred before in this
text, or in an answer that has ended if the suffix is longer there. Of its own text the latest occurrence counts; of
ended answers several vote. How often tokens of such drafts were accepted says how probable they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NAME = "suffix-device"
DEPTH = 24
"""vLLM's suffix_decoding_max_tree_depth."""
CAPACITY = 1 << 20
"""Tokens of the corpus: vLLM's suffix_decoding_corpus_tokens."""
KEYS = (4, 2)
"""Tokens by which answers are looked up."""
SLOTS = 8
"""Answers per bucket: answer number i is at i modulo SLOTS and overwrites the earlier one there."""
PROMPT_TAIL = max(KEYS) - 1
"""Tokens of the prompt that are kept before an answer, so that its first token has a key."""
LENGTHS = (1, 2, 3, 4, 5, 6, 10, 20)
"""Longest match of each class; tokens are rated by the acceptance in their class. The last class has no upper bound."""
HALF_LIFE = 1024
"""Steps after which counts of accepted tokens are halved."""
END, BEFORE = -1, -2
"""Tokens that mark the end of an answer in the corpus, and the positions before the beginning of a text."""

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class SuffixDraft(NamedTuple):
    """A draft's tokens, the length of the match that they follow, and whether the match is in the corpus."""

    tokens: list[int]
    match: int
    from_corpus: bool


def own_match(text: Int32, depth: int) -> tuple[int, int]:
    """Length (at most `depth`) of the longest suffix that occurred before, and the end of its latest occurrence."""
    length, ends = 0, np.arange(1, len(text))
    while length < depth:
        found = ends[np.searchsorted(ends, length, "right") :]
        found = found[text[found - 1 - length] == text[len(text) - 1 - length]]
        if not len(found):
            break
        length, ends = length + 1, found
    return length, int(ends[-1]) if length else 0


class Corpus:
    """Answers that have ended, in a ring of tokens; the oldest are overwritten.

    The entry of a token, its answer's number and its place in the ring, is in one bucket for each length in KEYS.
    """

    def __init__(self, capacity: int) -> None:
        self.ring = np.full(capacity, END, np.int32)
        self.bits = max(15, capacity // 4 - 1).bit_length()
        self.tables = {width: np.full((1 << self.bits, SLOTS), -1, np.int64) for width in KEYS}
        self.head = self.answers = 0

    def add(self, text: Int32) -> None:
        text = text[-(len(self.ring) - 1) :]
        if self.head + len(text) + 1 > len(self.ring):
            self.head = 0
        self.ring[self.head : self.head + len(text)] = text
        self.ring[self.head + len(text)] = END
        for width, table in self.tables.items():
            if len(text) > width:
                before = np.lib.stride_tricks.sliding_window_view(text[:-1], width)[:, ::-1]
                at = np.arange(width, len(text)) + self.head
                table[self._buckets(before), self.answers % SLOTS] = self.answers << 32 | at  # the latest place stays
        self.head += len(text) + 1
        self.answers += 1

    def _buckets(self, keys: Int32) -> Int64:
        """The bucket of each of the keys [N, width], latest token first."""
        mixed = np.zeros(len(keys), np.uint64)
        for token in keys.T:
            mixed = (mixed + token.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
            mixed ^= mixed >> np.uint64(32)
        return (mixed >> np.uint64(64 - self.bits)).astype(np.int64)

    def look_up(self, tails: Int32) -> tuple[Int64, Int64]:
        """Entries [B, C] that may continue texts, and lengths of their matches [B, C], 0 where there is none.

        tails: the last tokens of each text [B, depth], latest first.
        """
        entries = np.concatenate([table[self._buckets(tails[:, :n])] for n, table in self.tables.items()], 1)
        at = np.where(entries >= 0, entries & 0xFFFFFFFF, 0)
        places = at[..., None] - 1 - np.arange(tails.shape[1])
        same = np.where(places >= 0, self.ring[np.maximum(places, 0)], END) == tails[:, None]
        lengths = np.logical_and.accumulate(same, 2).sum(2)
        goes_on = (entries >= 0) & (self.ring[at] != END) & (lengths >= np.repeat(KEYS, SLOTS))
        return entries, np.where(goes_on, lengths, 0)

    def vote(self, entries: Int64, lengths: Int64, k: int) -> tuple[list[int], int]:
        """At most k tokens and the length of their match, from what `look_up` found for a text.

        For each match length, the entries whose match has at least this length vote token by token. The most frequent
        token wins, on a tie that of the latest entry; entries that continue with another token drop out. A token's
        probability is the product of the winners' shares of the votes so far. The tokens with the highest sum of
        probabilities are returned, on a tie those of the longer match.
        """
        found = {}
        for entry, length in zip(entries[::-1].tolist(), lengths[::-1].tolist(), strict=True):
            if length:
                found[entry & 0xFFFFFFFF] = length, entry
        rows = []
        for at, (length, entry) in found.items():
            text = self.ring[at : at + k].tolist()
            rows.append((length, entry, text[: text.index(END)] if END in text else text))
        best: tuple[float | np.float32, int, list[int]] = 0.0, 0, []
        for least in {length for length, *_ in rows}:
            voters = [(entry, text) for length, entry, text in rows if length >= least]
            share, score, tokens = np.float32(1), np.float32(0), []  # rounded as on the device, which decides ties
            for place in range(k):
                going = [(entry, text) for entry, text in voters if len(text) > place]
                if not going:
                    break
                votes = Counter(text[place] for _, text in going)
                most = max(votes.values())
                token = max((entry, text[place]) for entry, text in going if votes[text[place]] == most)[1]
                share = share * most / len(voters)
                score += share
                tokens.append(token)
                voters = [(entry, text) for entry, text in going if text[place] == token]
            best = max(best, (score, least, tokens))
        return best[2], best[1]


class SuffixDevice:
    """vLLM's suffix decoding on the second model runner, see the module."""

    def __init__(self, depth: int = DEPTH, capacity: int = CAPACITY) -> None:
        self.depth, self.corpus = depth, Corpus(capacity)

    def draft(self, texts: Sequence[Int32], k: int) -> list[SuffixDraft]:
        tails = np.full((len(texts), self.depth), BEFORE, np.int32)
        for tail, text in zip(tails, texts, strict=True):
            last = text[-self.depth :][::-1]
            tail[: len(last)] = last
        entries, lengths = self.corpus.look_up(tails)
        drafts = []
        for text, places, found in zip(texts, entries, lengths, strict=True):
            own, end = own_match(text, self.depth)
            draft = SuffixDraft(text[end : end + k].tolist() if own else [], own, False)
            if found.max() > own:
                tokens, match = self.corpus.vote(places, found, k)
                draft = SuffixDraft(tokens, match, True) if match > own else draft
            drafts.append(draft)
        return drafts

    def end(self, text: Int32, prompt: int) -> None:
        """Add a text that has ended to the corpus; `prompt` is the number of its prompt tokens."""
        self.corpus.add(text[max(prompt - PROMPT_TAIL, 0) :])


class AcceptedByClass:
    """Counts accepted tokens by source, length of the match, and place in the draft."""

    def __init__(self, k: int) -> None:
        self.accepted, self.verified = np.zeros((2, 2, len(LENGTHS) + 1, k), np.int64)
        self.steps = 0

    def probabilities(self, draft: SuffixDraft) -> npt.NDArray[np.float64]:
        """Return each token's probability of acceptance if all tokens before it are accepted."""
        at = self._class(draft)
        accepted, verified = (counts[at][: len(draft.tokens)] for counts in (self.accepted, self.verified))
        return np.asarray((accepted + 1) / (verified + 2))

    def add(self, draft: SuffixDraft, verified: int, accepted: int) -> None:
        """Add the numbers of verified and accepted tokens of a draft to the counts."""
        at = self._class(draft)
        self.accepted[at][:accepted] += 1
        self.verified[at][: min(accepted + 1, verified)] += 1

    def step(self) -> None:
        self.steps += 1
        if self.steps % HALF_LIFE == 0:
            self.accepted >>= 1
            self.verified >>= 1

    @staticmethod
    def _class(draft: SuffixDraft) -> Any:
        return int(draft.from_corpus), int(np.searchsorted(LENGTHS, draft.match))
