# SPDX-License-Identifier: Apache-2.0
"""Mode rejection gives bit-identical results to the loops in loops.py for the same draws."""

import hypothesis.strategies as st
import loops
import torch
from batches import batches
from hypothesis import given, settings

from sam_core import verify

many = settings(max_examples=60)


def given_draws(batch, draws, is_greedy=None):
    best = None if is_greedy is None else batch.probs.argmax(1)
    return verify.rejection_sample(batch.probs.clone(), batch.drafts, batch.counts, draws, is_greedy, best)


@many
@given(batches(), st.sampled_from([torch.int32, torch.int64, torch.float32]))
def test_values_of_requests_for_each_row(batch, dtype):
    values = (torch.arange(len(batch.counts)) * (2**26 + 1)).to(dtype)
    wanted = [value for value, count in zip(values.tolist(), batch.counts, strict=True) for _ in range(count + 1)]
    assert verify.per_row(values, batch.counts).tolist() == wanted


@many
@given(batches())
def test_step_for_given_draws(batch):
    draws = verify.Draws(batch.uniform, batch.q)
    wanted = loops.rejection_sample(batch, batch.uniform, batch.q)
    found = given_draws(batch, draws, batch.is_greedy)
    assert found.dtype == torch.int32
    assert torch.equal(found, wanted)
    if batch.is_greedy.all():
        assert torch.equal(verify.keep_equal(batch.probs.argmax(1), batch.drafts, batch.counts), wanted)
    if not batch.is_greedy.any():
        assert torch.equal(given_draws(batch, draws), wanted)


@many
@given(batches(), st.sampled_from(["none", "some", "all"]), st.integers(0, 2**31))
def test_step_that_draws(batch, owned, seed):
    """Requests with a generator get the same draws as in the loop, and leave the generator in the same state."""

    def own():
        chosen = [i for i in range(len(batch.counts)) if owned == "all" or (owned == "some" and (seed >> i) % 2)]
        return {i: torch.Generator().manual_seed(seed + i) for i in chosen}

    before, after = own(), own()
    torch.manual_seed(seed)
    wanted = loops.rejection_sample(batch, *loops.draw(batch.counts, before, batch.probs.shape[1]))
    torch.manual_seed(seed)
    draws = verify.draw(batch.counts, after, batch.probs.shape[1], torch.device("cpu"))
    assert torch.equal(given_draws(batch, draws, batch.is_greedy), wanted)
    for i, generator in before.items():
        assert torch.equal(generator.get_state(), after[i].get_state())
