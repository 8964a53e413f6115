# SPDX-License-Identifier: Apache-2.0
"""Drafts for engines that schedule asynchronously: the device completes what the host drafted from older text.

While the host drafts, a step still runs on the device, so the host does not know the tokens that the step will sample.
The host's chain begins behind the last token that it knows. On the device `sam_core.kernels` takes what follows in the
chain where the sampled tokens are its beginning. Else, and where the chain is too short, it looks up what followed the
last tokens, as many as NGRAMS says, in the texts of the request's group and in those of all requests, and copies from
the best match; where the copy reaches the end of a text, it looks up once more. Where even the last token is new, it
drafts the most frequent one. The host keeps the texts in an `NgramTable`; the device gets what changed together with
the chains, one step late.

Each draft token has a class, which says where it is from: of the chain, by the probability that the host's pool gives
it; of the table, by the match; or a filler. The kernels learn how often tokens of a class are accepted.

Neither side waits for the other. A wrong draft costs speed only, as every draft is verified: the table may forget. Its
hashes are sums of products below 2**63, so that no integer overflows, whatever a device does then.

Shapes: B requests of a step, k draft tokens a request, at most; E cells of the table that changed.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core._sam import append_ngrams
from sam_core.budget import Calibration

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

NGRAMS = (1, 2, 3, 5, 8)
"""Tokens of the n-grams that are looked up."""
MAX_NGRAM = NGRAMS[-1]
MAX_TOKEN = 1 << 20
"""Token ids and numbers of groups are below it: the hashes rely on it."""
CHECK = 0x7FFFFFFF
COMMON = 1
"""The group of all texts; each text also has its own."""
NO_GROUP = 0
"""The group of texts that are not in the table: nothing is looked up for them. An empty slot looks like its token 0."""
NO_TOKEN = -1
"""Stands behind the last token of a text."""
TEXTS = 2
"""Where the texts begin in a table's memory, behind the most frequent token and NO_TOKEN: a text of its own."""
PAGE = 256
"""Tokens of a text that stand side by side; a copy ends there, and is continued by the next look-up."""
UNIT = 1 << 29
"""Positions are below it, priorities are multiples of it."""
MAX_CONFIRMED = 3
"""Times that a follower is confirmed at most: a position and three times UNIT are an int32."""
OF_TOKEN, OF_GROUP = 4 * UNIT, 6 * UNIT
"""Priority of a match: for each token, and in the group; UNIT for each time that its follower is confirmed. The highest
is copied, of equals the one behind the others."""
LOOK_UPS = 2
"""For a draft."""


@functools.cache
def factors() -> Int64:
    """Of the hashes, [MAX_NGRAM + 1, 2 * len(NGRAMS)]: what each column of a key, the group's number and the last
    tokens, oldest first, is multiplied by, for the slots of each of NGRAMS, then for their checks; 0: not part."""
    factors = np.random.default_rng(0).integers(1 << 37, 1 << 39, (MAX_NGRAM + 1, 2 * len(NGRAMS))) | 1
    for i, n in enumerate(NGRAMS):
        factors[1 : 1 + MAX_NGRAM - n, [i, len(NGRAMS) + i]] = 0
    return factors


def priorities() -> Int64:
    """Of unconfirmed matches of each of NGRAMS: in the group, then anywhere, [2 * len(NGRAMS)]."""
    lengths = OF_TOKEN * np.array(NGRAMS, np.int64)
    return np.concatenate([lengths + OF_GROUP, lengths])


class NgramTable:
    """What followed each n-gram in the texts of a group: one array of int32, and its changes.

    `memory` holds the most frequent token, the texts in pages, each ended by NO_TOKEN, then pairs of a position and a
    check, one a slot. A position is the index in `memory` of the token that followed the newest occurrence. Each time
    that this token comes again it is confirmed, which adds UNIT to the position, MAX_CONFIRMED times at most; another
    token takes a UNIT away, and the place where none is left. N-grams share slots, of which the newest has it. A new
    page takes the place of the oldest one, whosever that is.

    Args:
        num_tokens: of the texts; more are kept up to a whole page.
        num_slots: a power of two. A text's n-grams lose their slots after about as many tokens as there are slots.
        vocab_size: tokens of the model's vocabulary.
        of_groups, of_all: whether drafts come from the texts of the request's group, and from those of all requests,
            which also give the most frequent token, else token 0.

    Raises:
        ValueError: more tokens than positions.
    """

    def __init__(
        self, num_tokens: int, num_slots: int, vocab_size: int, of_groups: bool = True, of_all: bool = True
    ) -> None:
        self.num_pages = max(1, -(-num_tokens // PAGE))
        self.base = TEXTS + self.num_pages * (PAGE + 1)
        if self.base > UNIT:
            raise ValueError(f"{num_tokens} tokens are more than a table holds: {UNIT}")
        self.num_slots = num_slots
        self.of_groups, self.of_all = of_groups, of_all
        self.memory = np.zeros(self.base + 2 * num_slots, np.int32)
        self.memory[TEXTS - 1] = NO_TOKEN
        self._counts = np.zeros(vocab_size, np.int64)
        self._totals = np.zeros(2, np.int64)  # pages so far, changed cells
        self._changed = np.empty(len(self.memory), np.int32)
        self._is_changed = np.zeros(len(self.memory), np.uint8)

    def append(self, pages: Int64, groups: Int32, token_rows: Int32, starts: Int32, ends: Int32) -> None:
        """Add the tokens `starts` to `ends` of each of B texts, one after the other.

        Args:
            pages: int64 [B], the page that each text ends in, as the last call for it has left it here; anything at
                first.
            groups: int32 [B], the number of the group it belongs to, COMMON + 1 .. MAX_TOKEN - 1.
            token_rows: int32 [B or more, W], the tokens of each text from its first on. Those outside the vocabulary
                are never drafted.
            starts, ends: int32 [B], 0 .. W.

        Raises:
            ValueError: a wrong shape, or a start or an end outside of its row.
            TypeError, BufferError: an array of another type, or not C-contiguous. Nothing has changed then.
        """
        append_ngrams(
            self.memory,
            self._changed,
            self._is_changed,
            self._totals,
            self._counts,
            factors(),
            pages,
            groups,
            token_rows,
            starts,
            ends,
            self.num_slots,
            self.of_groups,
            self.of_all,
        )

    def changes(self) -> tuple[Int64, Int32]:
        """The cells that changed since the last call, int64 [E], each once, and what they hold, int32 [E]."""
        cells = self._changed[: self._totals[1]].astype(np.int64)
        self._totals[1] = 0
        self._is_changed[cells] = 0
        return cells, self.memory[cells]


NUM_BINS = Calibration.NUM_BINS
"""Classes of chain tokens, by probability."""
NUM_MATCHES = (MAX_CONFIRMED + 1) * 2 * len(NGRAMS)
"""Classes of a match: by the times that its follower is confirmed, in the group or anywhere, by its tokens."""
FILLER = NUM_BINS + 2 * NUM_MATCHES
"""Class of a token that stands behind a draft's end. Matches have classes for the first token of a copy, then as many
for later ones."""
NUM_CLASSES = FILLER + 1
SCALE = (1 << 16) - 1
"""Of probabilities stored with chain tokens, both in one number, token + probability * SCALE * MAX_TOKEN."""


def pack(tokens: npt.NDArray[np.integer], probabilities: npt.NDArray[np.floating]) -> Int64:
    """Tokens and probabilities, 0 to 1, in one int64 each."""
    packed: Int64 = tokens + np.rint(probabilities * SCALE).astype(np.int64) * MAX_TOKEN
    return packed


def step_probabilities(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Of each token behind the one before it, from the scores of `Pool.step`, those of whole paths [B, k]."""
    before = np.concatenate([np.ones((len(scores), 1), np.float32), scores[:, :-1]], 1)
    probabilities: npt.NDArray[np.float32] = np.minimum(scores / np.maximum(before, 1e-30), 1)
    return probabilities


def unpack(packed: Any) -> tuple[Any, Any]:
    """Tokens and probabilities times SCALE, int64 as `packed`, an array or a tensor."""
    return packed % MAX_TOKEN, packed // MAX_TOKEN


MATCH_PRIOR = (0.15, 0.3, 0.45, 0.55, 0.65)
"""Acceptance of the first token behind a match before anything is known, by the tokens of the match."""
LATER_PRIOR, CONFIRMED_PRIOR = 0.15, (0.0, 0.1, 0.15, 0.2)
"""What is added for later tokens of a copy, and for a follower by the times that it is confirmed."""


def class_priors() -> npt.NDArray[np.float32]:
    """Acceptance of each class before anything is known, float32 [NUM_CLASSES]."""
    assert len(MATCH_PRIOR) == len(NGRAMS)
    bins = (np.arange(NUM_BINS) + 0.5) / NUM_BINS
    later, confirmed, _, match = np.meshgrid((0, 1), CONFIRMED_PRIOR, (0, 1), MATCH_PRIOR, indexing="ij")
    matches = np.minimum(match + LATER_PRIOR * later + confirmed, 0.95)
    return np.concatenate([bins, matches.flatten(), [0.0]]).astype(np.float32)
