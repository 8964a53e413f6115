# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling one token at a time: what sam_core.verify must reproduce bit by bit."""

import torch


def draft_rows(ends):
    """(request, column, index among all drafts) of each draft."""
    start = 0
    for request, end in enumerate(ends.tolist()):
        for index in range(start, end):
            yield request, index - start, index
        start = max(start, end)


def expand(output, values, ends, replace_from, replace_to):
    for request, _, index in draft_rows(ends):
        value = values[request]
        output[index] = replace_to if value == replace_from else value


def recover(output, ends, drafts, draft_probs, target_probs, q):
    for request, _, index in draft_rows(ends):
        if draft_probs is None:
            residual = target_probs[index].clone()
            residual[drafts[index]] = 2.0**-100
        else:
            residual = torch.maximum(target_probs[index] - draft_probs[index], target_probs[index] * 2.0**-100)
        output[index] = torch.argmax(residual / q[request])


def verify_random(output, ends, drafts, draft_probs, target_probs, bonus, recovered, uniform, is_greedy):
    stopped = set(torch.nonzero(is_greedy).flatten().tolist())
    for request, column, index in draft_rows(ends):
        if request in stopped:
            continue
        token = drafts[index].item()
        q = 1.0 if draft_probs is None else draft_probs[index, token].item()
        if q > 0 and target_probs[index, token].item() / q > uniform[index].item():
            output[request, column] = token
        else:
            output[request, column] = recovered[index]
            stopped.add(request)
    add_bonus(output, ends, bonus, stopped)


def verify_greedy(output, ends, drafts, best, bonus, is_greedy):
    stopped = set(torch.nonzero(~is_greedy).flatten().tolist())
    for request, column, index in draft_rows(ends):
        if request in stopped:
            continue
        output[request, column] = best[index]
        if drafts[index] != best[index]:
            stopped.add(request)
    add_bonus(output, ends, bonus, stopped)


def add_bonus(output, ends, bonus, stopped):
    start = 0
    for request, end in enumerate(ends.tolist()):
        if request not in stopped:
            output[request, end - start] = bonus[request, 0]
        start = end


def draw(counts, generators, vocabulary):
    """Uniforms and exponentials, for all requests, in the engine's order and with its use of the generators."""
    uniform = torch.rand(sum(counts))
    start = 0
    for request, count in enumerate(counts):
        if count and request in generators:
            uniform[start : start + count].uniform_(generator=generators[request])
        start += count
    q = torch.empty(len(counts), vocabulary).exponential_()
    for request, generator in generators.items():
        if counts[request]:
            q[request].exponential_(generator=generator)
    return uniform, q


def rejection_sample(batch, uniform, q):
    """The whole step: greedy rows first, then the others; int32 [B, K + 1]."""
    output = torch.full((len(batch.counts), batch.k + 1), -1, dtype=torch.int32)
    probs = batch.target_probs
    verify_greedy(output, batch.ends, batch.drafts, probs.argmax(1), batch.bonus, batch.is_greedy)
    if not batch.is_greedy.all():
        recovered = torch.empty_like(batch.drafts)
        recover(recovered, batch.ends, batch.drafts, batch.draft_probs, probs, q)
        verify_random(
            output,
            batch.ends,
            batch.drafts,
            batch.draft_probs,
            probs,
            batch.bonus,
            recovered,
            uniform,
            batch.is_greedy,
        )
    return output
