# SPDX-License-Identifier: Apache-2.0
"""Tests of greedy requests, whose tokens have the largest logits in any batch, and of rows whose draft is refused."""

from types import SimpleNamespace

import pytest
import torch
from sam_core.engines.vllm import sampling

from sam_core import noise, verify

V, REQUESTS, K = 40, 300, 2


def close_logits(rows):
    """Return logits [rows, V] whose two largest values differ by one ulp; the last token has the largest."""
    generator = torch.Generator().manual_seed(3)
    logits = 0.1 * torch.rand(rows, V, generator=generator)
    high = 0.1 * (torch.rand(rows, generator=generator) + 1)
    logits[:, V - 1] = high.nextafter(torch.tensor(9.0))
    return logits.scatter_(1, torch.randint(0, V - 1, (rows, 1), generator=generator), high[:, None])


@pytest.mark.parametrize("mode", ["rejection", "seeded"])
def test_greedy_rows_with_a_sampled_one(mode):
    """Greedy requests get the same tokens in a mixed batch as in a batch of only greedy requests."""
    counts, rows = [K] * REQUESTS, REQUESTS * (K + 1)
    logits = close_logits(rows)
    best = logits.argmax(1)
    assert (best == V - 1).all() and (logits.softmax(1).argmax(1) != best).sum() > 100, "softmax tells them apart here"
    drafts = torch.full((REQUESTS * K,), V - 1, dtype=torch.int32)

    def step(greedy):
        torch.manual_seed(1)
        generators = {} if mode == "rejection" else noise.Noise(range(REQUESTS), [0] * REQUESTS, counts, "cpu")
        metadata = SimpleNamespace(
            all_greedy=bool(greedy.all()),
            all_random=not greedy.any(),
            temperature=torch.where(greedy, 0.0, 1.0),
            top_k=None,
            top_p=None,
            generators=generators,
            logitsprocs=SimpleNamespace(argmax_invariant=[]),
        )
        return sampling.verify_step(logits.clone(), drafts, counts, metadata, lambda logits, k, p: logits)[0]

    everyone, is_greedy = torch.ones(REQUESTS, dtype=torch.bool), torch.arange(REQUESTS) % 5 != 0
    alone, mixed, sampled = step(everyone), step(is_greedy), step(~everyone)
    assert alone.tolist() == [[V - 1] * (K + 1)] * REQUESTS
    assert torch.equal(mixed[is_greedy], alone[is_greedy])
    assert torch.equal(mixed[~is_greedy], sampled[~is_greedy]), "the others are drawn from the probabilities"


def test_a_refused_row_with_nothing_left():
    """Due to rounding, the only possible token may have a probability below 1. If it is refused, it is sampled."""
    only, requests = 5, 2000
    probs = torch.zeros(2 * requests, V)
    probs[:, only] = 1 - 2.0**-24
    uniform = torch.full((2 * requests,), 1 - 2.0**-40, dtype=torch.float64)
    draws = verify.Draws(uniform, torch.empty(requests, V).exponential_())
    output = verify.rejection_sample(probs, torch.full((requests,), only), [1] * requests, draws)
    assert output.tolist() == [[only, -1]] * requests
