# SPDX-License-Identifier: Apache-2.0
"""Mode rejection gives, bit by bit, what the loops give for the same draws."""

import random

import hypothesis.strategies as st
import loops
import pytest
import torch
from batches import batches
from hypothesis import given, settings

from sam_core import verify

many = settings(max_examples=120, deadline=None)


def output(batch, fill=-1):
    return torch.full((len(batch.counts), batch.k + 1), fill, dtype=torch.int32)


def given_draws(batch, draws, is_greedy=None):
    return verify.rejection_sample(
        batch.drafts,
        batch.k,
        batch.ends,
        batch.draft_probs,
        batch.target_probs,
        batch.bonus,
        batch.is_greedy if is_greedy is None else is_greedy,
        draws,
    )


@many
@given(batches(), st.sampled_from([torch.int32, torch.int64, torch.float32]))
def test_expand(batch, dtype):
    values = torch.arange(len(batch.counts)) % 3 - 1
    if dtype != torch.float32:
        values = values * (2**31 - 1)  # more than float32 can tell apart
    found, wanted = (torch.full((sum(batch.counts) + 1,), 7, dtype=dtype) for _ in range(2))
    verify.expand(found, values.to(dtype), batch.ends, 0, 5)
    loops.expand(wanted, values.to(dtype), batch.ends, 0, 5)
    assert torch.equal(found, wanted)
    assert found[-1] == 7


@many
@given(batches())
def test_recovered_tokens(batch):
    found, wanted, before = torch.empty_like(batch.drafts), torch.empty_like(batch.drafts), batch.target_probs.clone()
    arguments = batch.ends, batch.drafts, batch.draft_probs, batch.target_probs, batch.q
    if sum(batch.counts):
        verify.recover(found, *arguments)
    loops.recover(wanted, *arguments)
    assert torch.equal(found, wanted)
    assert torch.equal(batch.target_probs, before)


@many
@given(batches())
def test_random_and_greedy_rows(batch):
    if sum(batch.counts) == 0:
        return
    recovered = torch.arange(len(batch.drafts), dtype=batch.drafts.dtype) % batch.vocabulary
    found, wanted = output(batch, -9), output(batch, -9)
    for where, out in (verify, found), (loops, wanted):
        where.verify_random(
            out,
            batch.ends,
            batch.drafts,
            batch.draft_probs,
            batch.target_probs,
            batch.bonus,
            recovered,
            batch.uniform,
            batch.is_greedy,
        )
        best = batch.target_probs.argmax(1)
        where.verify_greedy(out, batch.ends, batch.drafts, best, batch.bonus, batch.is_greedy)
    assert torch.equal(found, wanted)
    found, wanted = output(batch), output(batch)
    verify.verify_greedy(found, batch.ends, batch.drafts, best, batch.bonus, None)
    loops.verify_greedy(wanted, batch.ends, batch.drafts, best, batch.bonus, torch.ones_like(batch.is_greedy))
    assert torch.equal(found, wanted)


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
    found = given_draws(batch, draws)
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
        ends = torch.zeros(2, dtype=torch.int32)
        found = verify.rejection_sample(nothing, 0, ends, None, torch.empty(0, 8), bonus, greedy, draws)
        assert found.tolist() == [[4], [5]]


@pytest.mark.parametrize("ends", [[2, 1], [1, 1], [0, 0]])
def test_ends_that_no_engine_sends(ends):
    """They raise nothing, and rows that are sound come out right."""
    ends, drafts = torch.tensor(ends), torch.tensor([1, 0])
    probs = torch.eye(4)[drafts]
    tokens = torch.empty(2, dtype=torch.int64)
    verify.expand(tokens, torch.tensor([7, 8]), ends, 0, 0)
    verify.recover(tokens, ends, drafts, None, probs, torch.ones(2, 4))
    out = torch.full((2, 3), -1)
    verify.verify_random(
        out, ends, drafts, None, probs, torch.tensor([[9], [9]]), tokens, torch.zeros(2), torch.zeros(2).bool()
    )
    assert out[0].tolist() == [*drafts[: ends[0]].tolist(), 9, *[-1] * (2 - ends[0])]
