# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling one token at a time, which sam_core.verify must reproduce bit by bit."""

import torch


def rejection_sample(batch, uniform, q):
    """Return the tokens of a step, int32 [B, K + 1], for the draws uniform, float [R], and q, float [B, V]."""
    output = torch.full((len(batch.counts), batch.k + 1), -1, dtype=torch.int32)
    row = draft = 0
    for request, count in enumerate(batch.counts):
        greedy = batch.is_greedy[request]
        for column in range(count + 1):
            weights = batch.probs[row + column].clone()
            if column < count:
                token = batch.drafts[draft + column].item()
                accepted = weights.argmax() == token if greedy else weights[token] > uniform[row + column]
                if accepted:
                    output[request, column] = token
                    continue
                weights[token] = weights[token] if greedy else 2.0**-100
            output[request, column] = (weights if greedy else weights / q[request]).argmax()
            break
        row, draft = row + count + 1, draft + count
    return output


def draw(counts, generators, vocabulary):
    """Return uniforms and exponentials. A generator draws a uniform per draft token, then a row of exponentials."""
    uniform = torch.rand(sum(counts) + len(counts))
    q = torch.empty(len(counts), vocabulary)
    if len(generators) < len(counts):
        q.exponential_()
    row = 0
    for request, count in enumerate(counts):
        if request in generators:
            if count:
                uniform[row : row + count].uniform_(generator=generators[request])
            q[request].exponential_(generator=generators[request])
        row += count + 1
    return uniform, q
