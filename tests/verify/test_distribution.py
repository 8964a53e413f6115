# SPDX-License-Identifier: Apache-2.0
"""What is sampled has the model's law, in both modes, whatever is drafted.

Every test counts over 50,000 texts of three tokens of a small model; the seeds are fixed.
"""

import pytest
import torch
from sam_core.seeds import request_key
from scipy import stats

from sam_core import noise, verify

TEXTS, PART = 50_000, 10_000
LENGTH = 3
V = 6


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 tokens, the last one not full: little noise to make for a small vocabulary."""
    monkeypatch.setattr(noise, "BLOCK", 4)


def keys_of(seeds):
    return torch.tensor([request_key(seed) for seed in seeds])


def model():
    """Next-token distributions [V + 1, V] by the last token (V: none yet).

    Rows: plain ones; one that top-p cut to two tokens, the second at the boundary; one certain; one with probabilities
    of 1e-4, 1e-6 and 0.
    """
    table = (1.5 * torch.randn(V + 1, V, generator=torch.Generator().manual_seed(1))).softmax(1)
    nucleus = torch.tensor([0.0, 0.9, 0.0, 0.1 / 3, 0.0, 0.0])
    table[0] = nucleus / nucleus.sum()
    table[1] = torch.eye(V)[4]
    table[2] = torch.tensor([1e-4, 0.7, 1e-6, 0.0, 0.3 - 1e-4 - 1e-6, 0.0])
    return table


def drafts_for(kind, table, last):
    """Two tokens to draft for each text after its last token, which decides: uniform drafts would hide a bias."""
    pick = {"best": table.argmax(1), "worst": table.argmin(1), "fixed": torch.arange(2, V + 3) % V}[kind]
    return torch.stack([pick[last], pick[pick[last]]], 1)


def generate(mode, kind, first):
    """PART texts of LENGTH tokens, of the requests from `first` on, by steps with 0 to 2 drafts.

    Also drafts proposed and accepted.
    """
    generator, table = torch.Generator().manual_seed(first), model()
    torch.manual_seed(first + 1)
    texts, lengths = torch.full((PART, LENGTH + 3), V), torch.ones(PART, dtype=torch.int64)
    keys = keys_of(range(first, first + PART))
    drafted = accepted = 0
    while (active := torch.nonzero(lengths <= LENGTH).squeeze(1)).numel():
        last = texts[active, lengths[active] - 1]
        counts = torch.randint(0, 3, (len(active),), generator=generator)
        drafts = drafts_for(kind, table, last)
        rows = table[torch.cat([last[:, None], drafts], 1)]  # [active, 3, V]
        real = torch.arange(2) < counts[:, None]
        probs = rows[torch.arange(3) <= counts[:, None]]
        if mode == "seeded":
            step_noise = noise.Noise(keys[active], lengths[active] - 1, counts.tolist(), "cpu")
            output = step_noise.sample(probs)[:, None]  # all of a step without drafts
            if counts.any():
                output = verify.keep_equal(output.squeeze(1), drafts[real], counts.tolist())
        elif counts.any():
            draws = verify.draw(counts.tolist(), {}, V, torch.device("cpu"))
            output = verify.rejection_sample(probs, drafts[real], counts.tolist(), draws)
        else:
            output = torch.multinomial(probs, 1)
        got = (output >= 0).sum(1)
        for column in range(output.shape[1]):
            there = column < got
            texts[active[there], lengths[active[there]] + column] = output[there, column].long()
        lengths[active] += got
        drafted += counts.sum().item()
        accepted += (got - 1).sum().item()
    return texts[:, 1 : LENGTH + 1], drafted, accepted


def p_value(counts, expected):
    """Chi-square; cells that expect fewer than 5 are one cell."""
    small = expected < 5
    counts = torch.cat([counts[~small], counts[small].sum()[None]]).double()
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    keep = expected > 0
    assert counts[~keep].sum() == 0
    return (
        stats.chisquare(counts[keep].numpy(), expected[keep].numpy(), sum_check=False).pvalue if keep.sum() > 1 else 1
    )


@pytest.mark.parametrize("kind", ["best", "worst", "fixed"])
@pytest.mark.parametrize("mode", ["rejection", "seeded"])
def test_joint_law_of_texts(mode, kind, small_blocks):
    parts = [generate(mode, kind, first) for first in range(0, TEXTS, PART)]
    texts = torch.cat([part[0] for part in parts])
    drafted, accepted = (sum(part[i] for part in parts) for i in (1, 2))
    table = model().double()
    law = torch.einsum("a,ab,bc->abc", table[V], table[:V], table[:V]).flatten()
    cells = (texts * torch.tensor([V * V, V, 1])).sum(1)
    counts = torch.bincount(cells, minlength=V**3)
    assert counts[law == 0].sum() == 0
    assert p_value(counts, law * TEXTS) > 1e-3
    assert drafted > 45_000
    assert accepted > {"best": 10_000, "worst": 500, "fixed": 2_500}[kind]


def test_seeded_sample_over_many_blocks():
    """One distribution over 1,000 tokens of 8 blocks, some tokens of probability 0, by 100,000 rows."""
    probs = (2.5 * torch.randn(1000, generator=torch.Generator().manual_seed(4))).softmax(0)
    probs[300:420] = 0
    probs /= probs.sum()
    counts = torch.zeros(1000, dtype=torch.int64)
    for part in range(10):
        keys = keys_of(range(part * 10_000, (part + 1) * 10_000))
        sampled = noise.seeded_sample(probs.expand(10_000, -1), keys, torch.full((10_000,), 7, dtype=torch.int32))
        counts += torch.bincount(sampled, minlength=1000)
    assert counts[300:420].sum() == 0
    assert p_value(counts, probs.double() * 100_000) > 1e-3


def test_seeded_sample_of_near_zero_probabilities():
    """A token of probability 1e-4 beside a likely one of its block, and a block of them: 20 expected of 200,000."""
    probs = torch.zeros(3 * noise.BLOCK)
    probs[5], probs[2 * noise.BLOCK :] = 1e-4, 1e-4 / noise.BLOCK
    probs[6] = 1 - probs.sum()
    keys = keys_of(range(2000))
    rare = torch.zeros(2)
    for position in range(100):
        sampled = noise.seeded_sample(probs.expand(2000, -1), keys, torch.full((2000,), position))
        rare += torch.stack([(sampled == 5).sum(), (sampled >= 2 * noise.BLOCK).sum()])
    assert rare.tolist() == pytest.approx([20, 20], abs=16)


def test_siblings_are_independent(small_blocks):
    """Two requests of one prompt at the same positions: the pair of samples has the product law."""
    probs = model()[5]
    positions = torch.arange(500, dtype=torch.int32)
    rows = probs.expand(500, -1)
    sampled = torch.stack([noise.seeded_sample(rows, key.expand(500), positions) for key in keys_of(range(250))])
    law = torch.outer(probs, probs).flatten().double()
    for a, b in ((sampled[1:], sampled[:-1]), (sampled[:, 1:], sampled[:, :-1])):
        counts = torch.bincount((a * V + b).flatten(), minlength=V * V)
        assert counts.sum() > 120_000
        assert p_value(counts, law * counts.sum()) > 1e-3
