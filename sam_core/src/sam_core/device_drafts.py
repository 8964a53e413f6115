# SPDX-License-Identifier: Apache-2.0
"""Drafts for engines that schedule asynchronously: the device completes what the host drafted from older text.

The host drafts while a step still runs on the device, so it does not know the tokens that the step will sample. Its
chain continues the last token that it knows. On the device, `sam_core.kernels` compares the sampled tokens with the
beginning of the chain. If they agree, the draft is the rest of the chain. If they differ, or the chain is too short,
the kernel looks up the last tokens (n-grams of each length in NGRAMS) in the texts of the request's group and in those
of all requests, and copies what followed the best match. A copy that reaches the end of a text is continued by one more
look-up. Without a match the draft is the most frequent token. The host keeps the texts in an `NgramTable`; the device
receives the table's changes together with the chains, one step late.

Each draft token has a class: for a chain, by the probability that the host's pool gives the token; for the table, by
the kind of match; for the model drafter, by its place in the draft; or a filler. The kernels learn how often tokens of
each class are accepted.

Neither side waits for the other. Every draft is verified, so a wrong one costs only speed, and the table may forget.
The hashes are sums of products below 2**63, so no integer overflows.

Shapes: B requests of a step, at most k draft tokens per request, E changed entries of the table.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core import _sam
from sam_core.budget import Calibration
from sam_core.options import MAX_K

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

NGRAMS = (1, 2, 3, 5, 8)
"""Lengths of the n-grams that are looked up."""
MAX_NGRAM = NGRAMS[-1]
MAX_TOKEN = 1 << 20
"""Token ids and group numbers are below it; the hashes rely on that."""
CHECK = 0x7FFFFFFF
COMMON = 1
"""Number of the group of all texts; each text also belongs to a group of its own."""
NO_GROUP = 0
"""Group number of texts outside the table. Nothing is looked up for them: an empty slot would match its token 0."""
NO_TOKEN = -1
"""Follows the last token of a text."""
TEXTS = 2
"""Where the texts begin in a table's memory, after the most frequent token and its NO_TOKEN."""
PAGE = 256
"""Tokens of a page. A copy ends with its page; the next look-up continues it."""
UNIT = 1 << 29
"""Positions are below it; priorities are multiples of it."""
MAX_CONFIRMED = 3
"""Maximum confirmations of a successor: a position plus three times UNIT fits in an int32."""
OF_TOKEN, OF_GROUP = 4 * UNIT, 6 * UNIT
"""Priority of a match: OF_TOKEN per token, OF_GROUP if it is in the group, UNIT per confirmation of its successor. The
match with the highest priority is copied; among equals, the one at the highest position."""
LOOK_UPS = 2
"""Look-ups per draft."""


@functools.cache
def factors() -> Int64:
    """Factors of the hashes, [MAX_NGRAM + 1, 2 * len(NGRAMS)].

    Rows: the group's number, then the last MAX_NGRAM tokens, oldest first. Columns: the slot of each of NGRAMS, then
    the check of each. A token that is not part of the n-gram has factor 0.
    """
    factors = np.random.default_rng(0).integers(1 << 37, 1 << 39, (MAX_NGRAM + 1, 2 * len(NGRAMS))) | 1
    for i, n in enumerate(NGRAMS):
        factors[1 : 1 + MAX_NGRAM - n, [i, len(NGRAMS) + i]] = 0
    return factors


def priorities() -> Int64:
    """Priorities of unconfirmed matches: of each of NGRAMS in the group, then in all texts, [2 * len(NGRAMS)]."""
    lengths = OF_TOKEN * np.array(NGRAMS, np.int64)
    return np.concatenate([lengths + OF_GROUP, lengths])


class NgramTable:
    """Maps each n-gram in the texts of a group to its successor, the token that followed it. Tracks its changes.

    `memory` is one int32 array: the most frequent token, the texts in pages that NO_TOKEN ends, then per slot a
    position and a check. A position is the index in `memory` of the successor at the newest occurrence. When the same
    token follows again it is confirmed: UNIT is added to the position, at most MAX_CONFIRMED times. Another token
    subtracts UNIT, or replaces the position if no UNIT is left. N-grams share slots; the newest one owns its slot. A
    new page replaces the oldest one of any text.

    Args:
        num_tokens: tokens of all texts, rounded up to whole pages.
        num_slots: a power of two. An n-gram loses its slot after about `num_slots` further tokens.
        vocab_size: tokens of the model's vocabulary.
        of_groups, of_all: whether drafts come from the texts of the request's group, and from those of all requests,
            which also determine the most frequent token (otherwise token 0).

    Raises:
        ValueError: num_tokens exceeds the range of positions.
    """

    def __init__(
        self, num_tokens: int, num_slots: int, vocab_size: int, of_groups: bool = True, of_all: bool = True
    ) -> None:
        self.num_pages = max(1, -(-num_tokens // PAGE))
        self.base = TEXTS + self.num_pages * (PAGE + 1)
        if self.base > UNIT:
            raise ValueError(f"{num_tokens} tokens are more than a table holds: {UNIT}")
        self.num_slots = num_slots
        self._table = _sam.NgramTable(self.num_pages, num_slots, vocab_size, factors(), of_groups, of_all)
        self.memory = np.frombuffer(memoryview(self._table), np.int32)

    def append(self, pages: Int64, groups: Int32, token_rows: Int32, starts: Int32, ends: Int32) -> None:
        """Add the tokens `starts` to `ends` of each of B texts, text by text.

        Args:
            pages: int64 [B], the page that each text ends in. It is updated for the next call; arbitrary for a new
                text.
            groups: int32 [B], the number of each text's group, COMMON + 1 .. MAX_TOKEN - 1.
            token_rows: int32 [B or more, W], the texts from their first token. Tokens outside the vocabulary
                are never drafted.
            starts, ends: int32 [B], 0 .. W.

        Raises:
            ValueError: a wrong shape, or a start or an end outside its row.
            TypeError, BufferError: an array of another type, or not C-contiguous. Nothing has changed then.
        """
        self._table.append(pages, groups, token_rows, starts, ends)

    def changes(self) -> tuple[Int64, Int32]:
        """Indices of `memory` that changed since the previous call, int64 [E], each once, and their values."""
        indices = np.empty(self._table.num_changed, np.int64)
        values = np.empty(len(indices), np.int32)
        self._table.take_changes(indices, values)
        return indices, values


NUM_BINS = Calibration.NUM_BINS
"""Number of classes of chain tokens, by probability."""
NUM_MATCHES = (MAX_CONFIRMED + 1) * 2 * len(NGRAMS)
"""Number of classes of matches: by confirmations of the successor, in the group or in all texts, by length."""
FILLER = NUM_BINS + 2 * NUM_MATCHES
"""Class of a token after the end of a draft. Before it are NUM_MATCHES classes for the first token of a copy, and
NUM_MATCHES for later ones."""
MODEL = FILLER + 1
"""Class of the first token of the model drafter; those of its later tokens follow."""
NUM_CLASSES = MODEL + MAX_K
SCALE = (1 << 16) - 1
"""Scale of a probability that is packed with its token: token + round(probability * SCALE) * MAX_TOKEN."""


def pack(tokens: npt.NDArray[np.integer], probabilities: npt.NDArray[np.floating]) -> Int64:
    """Pack each token and its probability, 0 to 1, into one int64."""
    packed: Int64 = tokens + np.rint(probabilities * SCALE).astype(np.int64) * MAX_TOKEN
    return packed


def step_probabilities(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The conditional probability of each token, from the scores of `Pool.step`, the path probabilities [B, k]."""
    before = np.concatenate([np.ones((len(scores), 1), np.float32), scores[:, :-1]], 1)
    probabilities: npt.NDArray[np.float32] = np.minimum(scores / np.maximum(before, 1e-30), 1)
    return probabilities


def unpack(packed: Any) -> tuple[Any, Any]:
    """Tokens, and probabilities times SCALE, of `packed` int64, an array or a tensor."""
    return packed % MAX_TOKEN, packed // MAX_TOKEN


MATCH_PRIOR = (0.15, 0.3, 0.45, 0.55, 0.65)
"""Prior acceptance rate of the first token of a copy, by length of the match."""
MODEL_PRIOR = 0.6
"""Prior acceptance rate of a token of the model drafter."""
LATER_PRIOR, CONFIRMED_PRIOR = 0.15, (0.0, 0.1, 0.15, 0.2)
"""Added for later tokens of a copy, and for each number of confirmations of the successor."""


def class_priors() -> npt.NDArray[np.float32]:
    """Prior acceptance rate of each class, float32 [NUM_CLASSES]."""
    assert len(MATCH_PRIOR) == len(NGRAMS)
    bins = (np.arange(NUM_BINS) + 0.5) / NUM_BINS
    later, confirmed, _, match = np.meshgrid((0, 1), CONFIRMED_PRIOR, (0, 1), MATCH_PRIOR, indexing="ij")
    matches = np.minimum(match + LATER_PRIOR * later + confirmed, 0.95)
    return np.concatenate([bins, matches.flatten(), [0.0], [MODEL_PRIOR] * MAX_K]).astype(np.float32)
