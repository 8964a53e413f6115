# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts on the device: two exact modes, vectorized, without host synchronisation.

All rows of a step are processed in one pass. Then each request keeps its draft tokens before the first refused one, and
the token of that row.

`rejection` accepts a draft token with the probability that the model gives it. It draws the last token from the model's
distribution, without the refused draft token if there is one: one row of noise per request.

`seeded` samples every row with noise that depends only on (request key, position, token), see `noise`, and accepts
draft tokens while they equal the sampled ones. The text is then the same with any drafts, without drafts, and in any
batch.

Shapes: B requests of a step, N >= 1 draft tokens of all requests in order, R = N + B rows of logits (each request has
one per draft token and one more), V tokens of the vocabulary, K the length of the longest draft. `num_draft_tokens`
holds each request's number of draft tokens, on the host. Everything that follows from it alone is computed there, since
each operator on the device costs a launch. Token ids are int32 or int64. A row of probabilities sums to 1. Drafts are
deterministic, as a suffix automaton's are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

PLACEHOLDER = -1
"""Fills the columns of an output after a request's last token."""


class Rows:
    """The request and the draft token that each row of logits belongs to; computed on the host, copied in one transfer.

    owner: int64 [R], the request of each row.
    draft: int64 [R], index of the draft token that each row decides on; arbitrary in a request's last row.
    of_draft: bool [R], False in a request's last row.
    index: int64 [B, K + 1], the row of each output column; columns beyond a request's rows hold its last row.
    last: int64 [B], each request's last row.
    count: int64 [B, 1], each request's draft tokens.
    column: int64 [K + 1], 0, 1, ..., K.
    owner_array, column_array: int64 [R] on the host, owner and column of each row.
    """

    def __init__(self, num_draft_tokens: tuple[int, ...], device: torch.device) -> None:
        counts = np.array(num_draft_tokens, np.int64)
        batch, width, num_tokens = len(counts), max(num_draft_tokens) + 1, sum(num_draft_tokens)
        last = (counts + 1).cumsum() - 1
        columns, rows = np.arange(width), np.arange(num_tokens + batch)
        self.owner_array = np.repeat(np.arange(batch), counts + 1)
        self.column_array = rows - (last - counts)[self.owner_array]
        draft = np.minimum(rows - self.owner_array, num_tokens - 1)
        index = (last - counts)[:, None] + np.minimum(columns, counts[:, None])
        of_draft = self.column_array < counts[self.owner_array]
        arrays = [self.owner_array, draft, of_draft, index.ravel(), last, counts, columns]
        parts = to_device(np.concatenate(arrays), device).split(list(map(len, arrays)))
        self.owner, self.draft, of_draft, index, self.last, count, self.column = parts
        self.of_draft, self.index, self.count = of_draft.bool(), index.view(batch, width), count.view(batch, 1)

    def drafted(self, draft_token_ids: torch.Tensor) -> torch.Tensor:
        """The draft token that each row decides on: int32 [R]."""
        return draft_token_ids.int().index_select(0, self.draft)

    def accepted(self, accept: torch.Tensor) -> torch.Tensor:
        """Draft tokens of each request before the first that `accept` bool [R] refuses: int64 [B, 1]."""
        return torch.where(accept[self.index], self.count, self.column).amin(1, keepdim=True)

    def tokens(self, emitted: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        """`emitted` [B, K + 1] with PLACEHOLDER after the token that follows the `accepted` ones; changed in place."""
        return emitted.masked_fill_(self.column > accepted, PLACEHOLDER)


@functools.lru_cache(64)
def rows_of(num_draft_tokens: tuple[int, ...], device: torch.device) -> Rows:
    """The Rows of a step, cached."""
    return Rows(num_draft_tokens, device)


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy on the device that the host does not wait for."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def per_row(values: torch.Tensor, num_draft_tokens: Sequence[int]) -> torch.Tensor:
    """Each request's value of `values` [B], repeated for each of its rows of logits: [R]."""
    return values.index_select(0, rows_of(tuple(num_draft_tokens), values.device).owner)


def keep_equal(sampled: torch.Tensor, draft_token_ids: torch.Tensor, num_draft_tokens: Sequence[int]) -> torch.Tensor:
    """Accept draft tokens while they equal their rows' `sampled` tokens, int64 [R]; the next row's token ends the step.

    Returns int32 [B, K + 1], PLACEHOLDER after a request's last token.
    """
    rows = rows_of(tuple(num_draft_tokens), sampled.device)
    sampled = sampled.int()
    accepted = rows.accepted(rows.drafted(draft_token_ids) == sampled)
    return rows.tokens(sampled[rows.index], accepted)  # an accepted draft token is the sampled one


REFUSED_WEIGHT = 2.0**-100
"""Weight of a refused draft token: it wins only if all others have weight 0, which is possible after rounding."""


class Draws(NamedTuple):
    """Random numbers of a step: uniform float32 [R] in [0, 1), exponential float32 [B, V]."""

    uniform: torch.Tensor
    exponential: torch.Tensor


def draw(
    num_draft_tokens: Sequence[int], generators: Mapping[int, torch.Generator], vocabulary: int, device: torch.device
) -> Draws:
    """Draw the random numbers of a step.

    A request's own generator draws one uniform number per draft token, then V exponential ones: without drafts exactly
    what the engine draws.

    Args:
        num_draft_tokens: the number of each request.
        generators: by index of the request, for requests with a generator of their own.
        vocabulary: V.
        device: that of the result.
    """
    batch = len(num_draft_tokens)
    uniform = torch.rand(sum(num_draft_tokens) + batch, device=device)
    exponential = torch.empty(batch, vocabulary, dtype=torch.float32, device=device)
    if len(generators) < batch:
        exponential.exponential_()
    if generators:
        parts = uniform.split([n + 1 for n in num_draft_tokens])
        for i, generator in generators.items():
            if num_draft_tokens[i]:
                parts[i][:-1].uniform_(generator=generator)
            exponential[i].exponential_(generator=generator)
    return Draws(uniform, exponential)


def rejection_sample(
    probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    num_draft_tokens: Sequence[int],
    draws: Draws,
    is_greedy: torch.Tensor | None = None,
    best: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of rejection sampling (Leviathan, Kalman and Matias 2023) for deterministic drafts.

    A uniform float32 draw has 2**24 equally probable values, so a token is accepted with its probability to within
    2**-24, and never at probability 0.

    Args:
        probs: float32 [R, V], changed in place.
        draft_token_ids: [N].
        num_draft_tokens: the number of each request.
        draws: what `draw` returned.
        is_greedy: bool [B], requests that use `best` in each row; None: no request does.
        best: int64 [R], needed with `is_greedy`.

    Returns:
        int32 [B, K + 1], PLACEHOLDER after a request's last token.
    """
    rows = rows_of(tuple(num_draft_tokens), probs.device)
    drafted = rows.drafted(draft_token_ids)
    at = drafted.long().unsqueeze(1)
    p = probs.gather(1, at).squeeze(1)
    accept = draws.uniform < p
    if is_greedy is not None:
        assert best is not None
        best = best.int()
        accept = torch.where(per_row(is_greedy, num_draft_tokens), drafted == best, accept)
    accepted = rows.accepted(accept)
    ends = rows.index.gather(1, accepted)
    # a request that ends before its last row has refused the draft token of that row
    probs.scatter_(1, at, p.masked_fill(rows.of_draft, REFUSED_WEIGHT).unsqueeze(1))
    weights = probs.index_select(0, ends.squeeze(1))
    last = weights.div_(draws.exponential).argmax(1, keepdim=True).int()
    if is_greedy is not None and best is not None:
        last = torch.where(is_greedy.unsqueeze(1), best[ends], last)
    return rows.tokens(drafted[rows.index].scatter_(1, accepted, last), accepted)
