# SPDX-License-Identifier: Apache-2.0
"""The drafts of `sam_core.kernels` in numpy: for the replay and for simulated engines, and the kernels' reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sam_core.device_drafts import (
    CHECK,
    COMMON,
    FILLER,
    LOOK_UPS,
    MAX_NGRAM,
    NGRAMS,
    NO_GROUP,
    NUM_BINS,
    NUM_MATCHES,
    SCALE,
    UNIT,
    factors,
    priorities,
    unpack,
)

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class Completed(NamedTuple):
    """Drafts of B requests.

    tokens: int64 [B, k]; after a draft's end its last token is repeated.
    lengths: int64 [B], 1 .. k.
    classes: int64 [B, k], FILLER after the end.
    probabilities: int64 [B, k], for tokens of the chain: the probability given the previous token, times SCALE.
    """

    tokens: Int64
    lengths: Int64
    classes: Int64
    probabilities: Int64


def draft(
    memory: Int32,
    num_slots: int,
    chains: Int64,
    chain_lengths: Int64,
    tails: Int64,
    groups: Int64,
    sampled: Int64,
    num_sampled: Int64,
    k: int,
) -> Completed:
    """Draft after the tokens that were sampled since the host last looked.

    Args:
        memory: that of an NgramTable of `num_slots`.
        chains: int64 [B, W + k], the host's drafts after the tokens that it knows, as `pack` returns them.
        chain_lengths: int64 [B].
        tails: int64 [B, MAX_NGRAM], the last tokens that the host knows, oldest first.
        groups: int64 [B].
        sampled: int64 [B, W], tokens that the host does not know: num_sampled in each row, then arbitrary values.
        num_sampled: int64 [B], 0 .. W.
    """
    width, count = sampled.shape[1], num_sampled[:, None]
    tokens, probabilities = unpack(chains)
    follows = ((tokens[:, :width] == sampled) | (np.arange(width) >= count)).all(1)
    text = np.concatenate([tails, np.where(follows[:, None], tokens[:, :width], sampled), tokens[:, width:]], 1)
    classes = probabilities * NUM_BINS // (SCALE + 1)
    ends = num_sampled + np.where(follows, (chain_lengths - num_sampled).clip(0, k), 0)
    extend(memory, num_slots, groups, text, classes, ends, num_sampled + k, k)
    index = count + np.arange(k)
    is_drafted = index < ends[:, None]
    index = np.minimum(index, ends[:, None] - 1)
    tokens, classes, probabilities = (
        np.take_along_axis(each, index, 1) for each in (text[:, MAX_NGRAM:], classes, probabilities)
    )
    return Completed(tokens, ends - num_sampled, np.where(is_drafted, classes, FILLER), probabilities)


def extend(
    memory: Int32,
    num_slots: int,
    groups: Int64,
    text: npt.NDArray[Any],
    classes: Int64,
    ends: npt.NDArray[Any],
    limits: Int64,
    k: int,
) -> None:
    """Copy what followed the last tokens of each text, LOOK_UPS times. Changes `text`, `classes` and `ends` in place.

    Args:
        memory, num_slots, groups: as for draft.
        text: [B, MAX_NGRAM + N], MAX_NGRAM known tokens, then those of the draft.
        classes: [B, N], of the draft's tokens.
        ends: [B], tokens of each draft, 0 .. limits.
        limits: [B], maximum tokens of each draft, 0 .. N.
        k: maximum tokens of a copy.
    """
    columns = np.arange(classes.shape[1])
    for _ in range(LOOK_UPS):
        rows = np.flatnonzero(ends < limits)
        if not len(rows):
            break
        last = np.take_along_axis(text[rows], ends[rows, None] + np.arange(MAX_NGRAM), 1).astype(np.int64)
        following, found, match = _look_up(memory, num_slots, groups[rows], last, k)
        ahead = columns - ends[rows, None]
        is_new = ahead >= 0
        copied = np.take_along_axis(following, ahead.clip(0, k - 1), 1)
        text[rows, MAX_NGRAM:] = np.where(is_new, copied, text[rows, MAX_NGRAM:])
        kinds = np.where(match[:, None] < 0, FILLER, NUM_BINS + match[:, None] + NUM_MATCHES * (ahead > 0))
        classes[rows] = np.where(is_new, kinds, classes[rows])
        ends[rows] = np.minimum(ends[rows] + found, limits[rows])


def _look_up(memory: Int32, num_slots: int, groups: Int64, last: Int64, k: int) -> tuple[Int32, Int64, Int64]:
    """Look up the successors of the last tokens, int64 [B, MAX_NGRAM], oldest first; other arguments as for draft.

    Returns the tokens that followed [B, k], their number [B], 1 .. k, and the class of the match [B],
    0 .. NUM_MATCHES - 1, or negative without a match.
    """
    n = len(NGRAMS)
    numbers = np.stack([groups, np.full_like(groups, COMMON)], 1)
    hashes = (last @ factors()[1:])[:, None] + numbers[..., None] * factors()[0]
    slots, checks = hashes[..., :n] & (num_slots - 1), hashes[..., n:] & CHECK
    entries = memory[-2 * num_slots :].reshape(num_slots, 2)[slots].astype(np.int64)
    known = (entries[..., 1] == checks) & (groups != NO_GROUP)[:, None, None]
    matches = np.where(known, entries[..., 0] + priorities().reshape(2, n), 0).reshape(len(groups), 2 * n)
    which = matches.argmax(1)
    best = matches[np.arange(len(groups)), which]
    confirmed = (best - priorities()[which]) // UNIT
    match = np.where(best > 0, confirmed * 2 * n + which, -2 * NUM_MATCHES)
    following = memory[(best % UNIT)[:, None] + np.arange(k)]  # position 0, the most frequent token, without a match
    found = np.where(following < 0, np.arange(k), k).min(1)
    # a position in a row that has a shorter text now may be its end
    return following.clip(min=0), found.clip(min=1), match
