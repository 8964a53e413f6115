# SPDX-License-Identifier: Apache-2.0
"""A greedy request's tokens are the best by the logits, whoever shares its batch; and what is left of a refused row."""

import pytest
import torch

from sam_core import verify

V, REQUESTS, K = 40, 300, 2


def close_logits(rows):
    """Logits [rows, V] whose two best tokens are an ulp apart, the better one last."""
    generator = torch.Generator().manual_seed(3)
    logits = 0.1 * torch.rand(rows, V, generator=generator)
    high = 0.1 * (torch.rand(rows, generator=generator) + 1)
    logits[:, V - 1] = high.nextafter(torch.tensor(9.0))
    return logits.scatter_(1, torch.randint(0, V - 1, (rows, 1), generator=generator), high[:, None])


@pytest.mark.parametrize("mode", ["rejection", "seeded"])
def test_greedy_rows_beside_a_sampled_one(mode):
    """Token for token what they are in a batch of greedy requests alone."""
    logits = close_logits(REQUESTS * K)
    probs, best = logits.softmax(1), logits.argmax(1)
    assert (best == V - 1).all() and (probs.argmax(1) != best).sum() > 100, "softmax tells them apart here"
    drafts, bonus = best.int(), torch.full((REQUESTS, 1), 7, dtype=torch.int32)
    counts = [K] * REQUESTS
    noise = verify.Noise(range(REQUESTS), [0] * REQUESTS, counts, "cpu")
    draws = verify.draw(counts, {}, V, torch.device("cpu"))

    def step(target_probs, is_greedy, **given):
        if mode == "seeded":
            return noise.verify(target_probs, drafts, bonus, is_greedy, **given)
        return verify.rejection_sample(drafts, counts, None, target_probs, bonus, is_greedy, draws, **given)

    alone = step(logits, True)
    assert alone.tolist() == [[V - 1, V - 1, 7]] * REQUESTS
    is_greedy = torch.arange(REQUESTS) % 5 != 0
    mixed = step(probs, is_greedy, target_logits=logits)
    assert torch.equal(mixed[is_greedy], alone[is_greedy])
    sampled = step(probs, False)
    assert torch.equal(mixed[~is_greedy], sampled[~is_greedy]), "the others are drawn from the probabilities"


@pytest.mark.parametrize("draft_probs", [False, True])
def test_a_refused_row_with_nothing_left(draft_probs):
    """Probabilities are rounded: the only token may come to less than 1, and be refused."""
    only, rows = 5, 2000
    target = torch.zeros(rows, V)
    target[:, only] = 1 - 2.0**-24
    of_draft = torch.nn.functional.one_hot(torch.full((rows,), only), V).float() if draft_probs else None
    drafts = torch.full((rows,), only)
    draws = verify.Draws(
        torch.full((rows,), 1 - 2.0**-40, dtype=torch.float64), torch.empty(rows, V).exponential_(), None
    )
    bonus = torch.full((rows, 1), 9)
    output = verify.rejection_sample(drafts, [1] * rows, of_draft, target, bonus, False, draws)
    assert output.tolist() == [[only, -1]] * rows


def test_where_nothing_is_left_the_target_is_drawn_from():
    """With probabilities of drafts that are the target's, but for rounding: 20,000 draws."""
    rows, law = 20_000, torch.tensor([0.5, 0.3, 0.2, 0.0])
    target, of_draft = law.repeat(rows, 1), (law * (1 + 2.0**-20)).repeat(rows, 1)
    drafts, bonus = torch.zeros(rows, dtype=torch.int64), torch.full((rows, 1), 9)
    torch.manual_seed(2)
    refusing = verify.Draws(torch.ones(rows), torch.empty(rows, 4).exponential_(), None)
    output = verify.rejection_sample(drafts, [1] * rows, of_draft, target, bonus, False, refusing)
    assert torch.bincount(output[:, 0], minlength=4).tolist() == pytest.approx((law * rows).tolist(), abs=330)
