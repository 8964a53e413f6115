# SPDX-License-Identifier: Apache-2.0
"""Mode rejection gives, bit by bit, what the loops give for the same draws."""

import random

import hypothesis.strategies as st
import loops
import torch
from batches import batches
from hypothesis import given, settings

from sam_core import verify

many = settings(max_examples=120, deadline=None)


def given_draws(batch, draws, is_greedy=None):
    return verify.rejection_sample(
        batch.drafts,
        batch.counts,
        batch.draft_probs,
        batch.target_probs,
        batch.bonus,
        batch.is_greedy if is_greedy is None else is_greedy,
        draws,
    )


@many
@given(batches(), st.sampled_from([torch.int32, torch.int64, torch.float32]))
def test_values_of_requests_for_each_draft(batch, dtype):
    values = (torch.arange(len(batch.counts)) * (2**26 + 1)).to(dtype)
    wanted = torch.empty(sum(batch.counts), dtype=dtype)
    loops.expand(wanted, values, batch.ends, -1, 0)
    assert torch.equal(verify.per_draft(values, batch.counts), wanted)


@many
@given(batches(), st.booleans(), st.integers(0, 2**31))
def test_step_for_given_draws(batch, some_rows, shuffle):
    """One recovered row a request is enough, and it is enough to have noise for those that draft, in any order."""
    draws = verify.Draws(batch.uniform, batch.q, None)
    if some_rows:
        rows = [request for request, count in enumerate(batch.counts) if count]
        random.Random(shuffle).shuffle(rows)
        draws = verify.Draws(batch.uniform, batch.q[rows], torch.tensor(rows, dtype=torch.int64))
    wanted = loops.rejection_sample(batch, batch.uniform, batch.q)
    before = batch.target_probs.clone()
    found = given_draws(batch, draws)
    assert torch.equal(batch.target_probs, before)
    assert found.dtype == torch.int32
    assert torch.equal(found, wanted)
    if batch.is_greedy.all():
        assert torch.equal(given_draws(batch, None, True), wanted)
    if not batch.is_greedy.any():
        assert torch.equal(given_draws(batch, draws, False), wanted)


@many
@given(batches(), st.sampled_from(["none", "some", "all"]), st.integers(0, 2**31))
def test_step_that_draws(batch, owned, seed):
    """Requests with a generator get what they got and leave it where it was; the others too if all of them draft."""

    def own():
        chosen = [i for i in range(len(batch.counts)) if owned == "all" or (owned == "some" and (seed >> i) % 2)]
        return {i: torch.Generator().manual_seed(seed + i) for i in chosen}

    before, after = own(), own()
    torch.manual_seed(seed)
    wanted = loops.rejection_sample(batch, *loops.draw(batch.counts, before, batch.vocabulary))
    torch.manual_seed(seed)
    found = given_draws(batch, verify.draw(batch.counts, after, batch.vocabulary, torch.device("cpu")))
    same = [*before] if before or 0 in batch.counts else slice(None)
    assert torch.equal(found[same], wanted[same])
    for i, generator in before.items():
        assert torch.equal(generator.get_state(), after[i].get_state())


def test_a_request_without_drafts_keeps_its_generator():
    """However much its neighbours draft."""
    generators = {i: torch.Generator().manual_seed(i) for i in range(3)}
    before = generators[1].get_state()
    draws = verify.draw([2, 0, 1], generators, 16, torch.device("cpu"))
    assert torch.equal(generators[1].get_state(), before)
    assert draws.exponential.shape == (2, 16)
    assert draws.rows.tolist() == [0, 2]


def test_no_drafts_at_all():
    bonus = torch.tensor([[4], [5]])
    nothing = torch.empty(0, dtype=torch.int64)
    draws = verify.draw([0, 0], {}, 8, torch.device("cpu"))
    for greedy in (True, False, torch.tensor([True, False])):
        found = verify.rejection_sample(nothing, [0, 0], None, torch.empty(0, 8), bonus, greedy, draws)
        assert found.tolist() == [[4], [5]]
