# SPDX-License-Identifier: Apache-2.0
"""Sampled tokens follow the model's distribution in both modes, whatever is drafted.

The tests of joint distributions count 50,000 or 20,000 texts of three tokens of a small model, with fixed seeds.
"""

import collections

import numpy as np
import pytest
import torch
from batches import keys_of, seeded_sample
from distribution import chi_square_p_value
from sam_core.proposer import SamProposer

from sam_core import noise, verify

TEXTS, PART, PADDED = 50_000, 10_000, 2_000
K, PROMPT, LENGTH, V = 3, 6, 3, 6


@pytest.fixture
def small_blocks(monkeypatch):
    """Set the block size to 4 tokens, so that a small vocabulary needs little noise. The last block is not full."""
    monkeypatch.setattr(noise, "BLOCK", 4)


def model():
    """Return next-token distributions [V + 1, V] by the last token (V: none yet).

    Row 0 is cut to two tokens by top-p, the second at the boundary; row 1 is certain; row 2 has probabilities of 1e-4,
    1e-6 and 0; the others are plain.
    """
    table = (1.5 * torch.randn(V + 1, V, generator=torch.Generator().manual_seed(1))).softmax(1)
    nucleus = torch.tensor([0.0, 0.9, 0.0, 0.1 / 3, 0.0, 0.0])
    table[0] = nucleus / nucleus.sum()
    table[1] = torch.eye(V)[4]
    table[2] = torch.tensor([1e-4, 0.7, 1e-6, 0.0, 0.3 - 1e-4 - 1e-6, 0.0])
    return table


def drafting(kind):
    """Return a function that drafts 0 to 2 tokens by the last token of each text. Uniform drafts would hide a bias."""
    table, generator = model(), torch.Generator().manual_seed(1)
    pick = {"best": table.argmax(1), "worst": table.argmin(1), "fixed": torch.arange(2, V + 3) % V}[kind]

    def propose(rows, lengths):
        last = torch.from_numpy(rows[np.arange(len(rows)), lengths - 1]).long()
        pairs = torch.stack([pick[last], pick[pick[last]]], 1).tolist()
        counts = torch.randint(0, 3, (len(rows),), generator=generator).tolist()
        return [pair[:count] for pair, count in zip(pairs, counts, strict=True)]

    return propose


def generate(mode, propose, first, part, prompt=0):
    """Return `part` texts of LENGTH tokens, and how many draft tokens were proposed and accepted. Requests are numbered
    from `first`. Each text follows a random prompt and token V, which the model never gives.

    propose(rows, lengths): at most K draft tokens for each text.
    """
    torch.manual_seed(first)
    table, keys = torch.nn.functional.pad(model(), (0, 1)), keys_of(range(first, first + part))
    rows, lengths = np.full((part, 64), V, np.int32), np.full(part, prompt + 1)
    rows[:, :prompt] = torch.randint(0, V, (part, prompt)).numpy()
    drafted = accepted = 0
    while lengths.min() < prompt + 1 + LENGTH:
        proposed = propose(rows, lengths)
        counts = torch.tensor([len(draft) for draft in proposed])
        drafts = torch.tensor([draft + [0] * (K - len(draft)) for draft in proposed])
        last = torch.from_numpy(rows[np.arange(part), lengths - 1]).long()
        probs = table[torch.cat([last[:, None], drafts], 1)]  # [part, K + 1, V + 1]
        real = torch.arange(K) < counts[:, None]
        probs = probs[torch.arange(K + 1) <= counts[:, None]]
        if mode == "seeded":
            output = noise.Noise(keys, lengths, counts.tolist(), "cpu").sample(probs)[:, None]
            if counts.any():
                output = verify.keep_equal(output.squeeze(1), drafts[real], counts.tolist())
        elif counts.any():
            draws = verify.draw(counts.tolist(), {}, V + 1, torch.device("cpu"))
            output = verify.rejection_sample(probs, drafts[real], counts.tolist(), draws)
        else:
            output = torch.multinomial(probs, 1)
        got = (output >= 0).sum(1).numpy()
        for column in range(output.shape[1]):
            there = np.flatnonzero(column < got)
            rows[there, lengths[there] + column] = output[there, column].numpy()
        lengths += got
        drafted += counts.sum().item()
        accepted += (got - 1).sum().item()
    return torch.from_numpy(rows[:, prompt + 1 : prompt + 1 + LENGTH]).long(), drafted, accepted


def p_value(counts, expected):
    return chi_square_p_value(counts.numpy(), expected.numpy(), least=5)


def test_p_values_of_samples_of_the_law_are_uniform():
    """The rows have few samples, so that an improbable token is expected in only one of ten runs."""
    law = np.full((50, 3), [0.6, 0.3999, 0.0001])
    runs = np.random.default_rng(0).multinomial(20, law, (2000, 50))
    values = np.array([chi_square_p_value(counts, 20 * law, least=5) for counts in runs])
    assert values.min() > 1e-5 and abs((values < 0.25).mean() - 0.25) < 0.05


def joint_p_value(texts):
    table = model().double()
    law = torch.einsum("a,ab,bc->abc", table[V], table[:V], table[:V]).flatten()
    cells = (texts * torch.tensor([V * V, V, 1])).sum(1)
    return p_value(torch.bincount(cells, minlength=V**3), law * len(texts))


@pytest.mark.parametrize("kind", ["best", "worst", "fixed"])
@pytest.mark.parametrize("mode", ["rejection", "seeded"])
def test_joint_law_of_texts(mode, kind, small_blocks):
    propose = drafting(kind)
    texts, drafted, accepted = zip(*(generate(mode, propose, at, PART) for at in range(0, TEXTS, PART)), strict=True)
    assert joint_p_value(torch.cat(texts)) > 1e-3
    assert sum(drafted) > 45_000
    assert sum(accepted) > {"best": 10_000, "worst": 500, "fixed": 2_500}[kind]


def proposer_of(mode, is_uniform=True):
    """Return a SamProposer, and a function that proposes drafts for PADDED texts: if uniform, mostly padding."""
    sam = {"threshold": PADDED, "sources": ["request"], "rule": "newest", "verify": mode}
    proposer = SamProposer(K, sam, max_model_len=64)
    if is_uniform:
        proposer.make_uniform()
    names, prompts, decoding = [str(i) for i in range(PADDED)], [PROMPT + 1] * PADDED, [True] * PADDED
    return proposer, lambda rows, lengths: proposer.propose(names, rows, lengths, prompts, decoding, PADDED)


@pytest.mark.parametrize("mode", ["rejection", "seeded"])
def test_padded_drafts_keep_the_joint_law(mode, small_blocks):
    """Generates 20,000 texts in batches of 2,000 requests."""
    texts, counted = [], collections.Counter()
    for first in range(0, 10 * PADDED, PADDED):
        proposer, propose = proposer_of(mode)
        texts.append(generate(mode, propose, first, PADDED, PROMPT)[0])
        counted.update(proposer.stats())
    assert joint_p_value(torch.cat(texts)) > 1e-3
    assert counted["padding"] > 20_000 and counted["padding_accepted"] > 1_000 and counted["proposed"] > 10_000


def test_seeded_texts_are_the_same_padded_ragged_and_without_drafts(small_blocks):
    (padded, propose), (ragged, propose_ragged) = (proposer_of("seeded", is_uniform) for is_uniform in (True, False))
    ways = propose, propose_ragged, lambda rows, lengths: [[]] * len(rows)
    texts = [generate("seeded", way, 7, PADDED, PROMPT)[0] for way in ways]
    assert padded.stats()["padding_accepted"] > 0 == ragged.stats()["padding"] < ragged.stats()["proposed"]
    assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])


def test_seeded_sample_over_many_blocks():
    """100,000 samples follow one distribution over 1,000 tokens in 8 blocks. Some tokens have probability 0."""
    probs = (2.5 * torch.randn(1000, generator=torch.Generator().manual_seed(4))).softmax(0)
    probs[300:420] = 0
    probs /= probs.sum()
    counts, rows, positions = torch.zeros(1000, dtype=torch.int64), probs.expand(10_000, -1), torch.full((10_000,), 7)
    for first in range(0, 100_000, 10_000):
        sampled = seeded_sample(rows, keys_of(range(first, first + 10_000)), positions)
        counts += torch.bincount(sampled, minlength=1000)
    assert p_value(counts, probs.double() * 100_000) > 1e-3


def test_seeded_sample_of_near_zero_probabilities():
    """A token of 1e-4 next to a likely one of its block, and a block of 1e-4 in total: 20 each expected in 200,000."""
    probs = torch.zeros(3 * noise.BLOCK)
    probs[5], probs[2 * noise.BLOCK :] = 1e-4, 1e-4 / noise.BLOCK
    probs[6] = 1 - probs.sum()
    keys, rows, rare = keys_of(range(2000)), probs.expand(2000, -1), torch.zeros(2)
    for position in range(100):
        sampled = seeded_sample(rows, keys, torch.full((2000,), position))
        rare += torch.stack([(sampled == 5).sum(), (sampled >= 2 * noise.BLOCK).sum()])
    assert rare.tolist() == pytest.approx([20, 20], abs=16)


def test_siblings_are_independent(small_blocks):
    """Pairs of samples of requests with one prompt, at the same position, follow the product distribution."""
    probs, positions = model()[5], torch.arange(500, dtype=torch.int32)
    keys, rows = keys_of(range(250)), probs.expand(500, -1)
    sampled = torch.stack([seeded_sample(rows, key.expand(500), positions) for key in keys])
    law = torch.outer(probs, probs).flatten().double()
    for a, b in ((sampled[1:], sampled[:-1]), (sampled[:, 1:], sampled[:, :-1])):
        counts = torch.bincount((a * V + b).flatten(), minlength=V * V)
        assert counts.sum() > 120_000
        assert p_value(counts, law * counts.sum()) > 1e-3
