# SPDX-License-Identifier: Apache-2.0
"""The drafts of `sam_core.kernels` in torch operators, for the replay on a CPU and as the tests' reference."""

from __future__ import annotations

from typing import NamedTuple

import torch
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

FACTORS, PRIORITIES = torch.from_numpy(factors()), torch.from_numpy(priorities())


class Drafts(NamedTuple):
    """Drafts of B requests.

    tokens: int64 [B, k]; after a draft's end its last token is repeated.
    lengths: int64 [B], 1 .. k.
    classes: int64 [B, k], FILLER after the end.
    probabilities: int64 [B, k], for tokens of the chain: the probability given the previous token, times SCALE.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    classes: torch.Tensor
    probabilities: torch.Tensor


def draft(
    memory: torch.Tensor,
    num_slots: int,
    chains: torch.Tensor,
    chain_lengths: torch.Tensor,
    tails: torch.Tensor,
    groups: torch.Tensor,
    sampled: torch.Tensor,
    num_sampled: torch.Tensor,
    k: int,
) -> Drafts:
    """Draft after the tokens that were sampled since the host last looked.

    Args:
        memory: int32, that of an NgramTable of `num_slots`.
        chains: int64 [B, W + k], the host's drafts after the tokens that it knows, as `pack` returns them.
        chain_lengths: int64 [B].
        tails: int64 [B, MAX_NGRAM], the last tokens that the host knows, oldest first.
        groups: int64 [B].
        sampled: int64 [B, W], tokens that the host does not know: num_sampled in each row, then arbitrary values.
        num_sampled: int64 [B], 0 .. W.
    """
    width = sampled.shape[1]
    count = num_sampled.unsqueeze(1)
    columns = torch.arange(MAX_NGRAM + width + k)
    tokens, probabilities = unpack(chains)
    follows = ((tokens[:, :width] == sampled) | (columns[:width] >= count)).all(1, keepdim=True)
    text = torch.cat([tails, torch.where(follows, tokens[:, :width], sampled), tokens[:, width:]], 1)
    places = columns[: text.shape[1]] - MAX_NGRAM  # counted from the first token that the host does not know
    end = count + torch.where(follows, (chain_lengths - num_sampled).clamp(0, k).unsqueeze(1), 0)
    classes = torch.cat([torch.full_like(tails, FILLER), probabilities * NUM_BINS // (SCALE + 1)], 1)
    of_groups = torch.stack([groups, torch.full_like(groups, COMMON)], 1).unsqueeze(2) * FACTORS[0]
    for _ in range(LOOK_UPS):
        last = text.gather(1, end + columns[:MAX_NGRAM])
        following, found, match = _look_up(memory, num_slots, of_groups, last, k)
        ahead = places - end
        is_new = ahead >= 0
        text = torch.where(is_new, following.gather(1, ahead.clamp(0, k - 1)), text)
        copied = torch.where(match < 0, FILLER, NUM_BINS + match + NUM_MATCHES * (ahead > 0))
        classes = torch.where(is_new, copied, classes)
        end = torch.minimum(end + found, count + k)
    index = count + columns[:k]
    is_drafted = index < end
    index = torch.minimum(index, end - 1)
    at = index + MAX_NGRAM
    classes = torch.where(is_drafted, classes.gather(1, at), FILLER)
    return Drafts(text.gather(1, at), (end - count).squeeze(1), classes, probabilities.gather(1, index))


def _look_up(
    memory: torch.Tensor, num_slots: int, of_groups: torch.Tensor, last: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Look up the successors of the last tokens.

    Args:
        memory, num_slots: as for draft.
        of_groups: int64 [B, 2, 2 * len(NGRAMS)], terms of the hashes for the request's group and for all texts.
        last: int64 [B, MAX_NGRAM], tokens, oldest first.

    Returns:
        Tokens int64 [B, k]; their number, int64 [B, 1], 1 .. k; and the class of the match, int64 [B, 1],
        0 .. NUM_MATCHES - 1, or negative without a match.
    """
    columns = torch.arange(k)
    sums = of_groups + (last.unsqueeze(2) * FACTORS[1:]).sum(1).unsqueeze(1)
    slots, checks = sums.unflatten(2, (2, len(NGRAMS))).unbind(2)
    entries = memory[-2 * num_slots :].view(num_slots, 2)[slots & num_slots - 1]
    known = (entries[..., 1] == (checks & CHECK)) & (of_groups[:, :1, :1] != NO_GROUP)
    matches = torch.where(known, entries[..., 0] + PRIORITIES.view(2, -1), 0).flatten(1)
    best, which = matches.max(1, keepdim=True)
    confirmed = (best - PRIORITIES[which]) // UNIT
    match = torch.where(best > 0, confirmed * 2 * len(NGRAMS) + which, -2 * NUM_MATCHES)
    following = memory[(best & UNIT - 1) + columns].long()  # position 0, the most frequent token, without a match
    found = torch.where(following < 0, columns, k).amin(1, keepdim=True)
    # a position in a row that has a shorter text now may be its end
    return following.clamp(min=0), found.clamp(min=1), match
