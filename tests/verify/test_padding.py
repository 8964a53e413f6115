# SPDX-License-Identifier: Apache-2.0
"""Drafts that are padded to k tokens sample the model's law: 20,000 texts of three tokens by the real proposer.

Every request has a prompt of its own and drafts from it alone, so most of its draft is padding. The seeds are fixed.
"""

import numpy as np
import pytest
import torch
from sam_core.proposer import SamProposer
from test_distribution import LENGTH, V, keys_of, model, p_value

from sam_core import noise, verify

TEXTS, PART, K, PROMPT = 20_000, 2_000, 3, 6


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 4 tokens: little noise to make for a small vocabulary."""
    monkeypatch.setattr(noise, "BLOCK", 4)


def generate(mode, first, drafts="uniform"):
    """PART texts of LENGTH tokens of the requests from `first` on, and the proposer's counters.

    Token V ends every prompt, and the model never gives it. drafts: uniform, ragged or none.
    """
    torch.manual_seed(first)
    table = torch.nn.functional.pad(model(), (0, 1))
    sam = {"threshold": PART, "sources": ["request"], "rule": "newest", "verify": mode}
    proposer = SamProposer(K, sam, max_model_len=64)
    if drafts == "uniform":
        proposer.make_uniform()
    names, keys = [str(i) for i in range(PART)], keys_of(range(first, first + PART))
    rows, lengths = np.full((PART, 64), V, np.int32), np.full(PART, PROMPT + 1)
    rows[:, :PROMPT] = torch.randint(0, V, (PART, PROMPT)).numpy()
    while lengths.min() < PROMPT + 1 + LENGTH:
        proposed = proposer.propose(names, rows, lengths, [PROMPT + 1] * PART, [True] * PART, PART)
        if drafts == "none":
            proposed = [[]] * PART
        counts = torch.tensor([len(draft) for draft in proposed])
        drafted = torch.tensor([draft + [0] * (K - len(draft)) for draft in proposed])
        last = torch.from_numpy(rows[np.arange(PART), lengths - 1]).long()
        probs = table[torch.cat([last[:, None], drafted], 1)]
        real = torch.arange(K) < counts[:, None]
        probs = probs[torch.arange(K + 1) <= counts[:, None]]
        if mode == "seeded":
            output = noise.Noise(keys, lengths, counts.tolist(), "cpu").sample(probs)[:, None]
            if counts.any():
                output = verify.keep_equal(output.squeeze(1), drafted[real], counts.tolist())
        elif counts.any():
            draws = verify.draw(counts.tolist(), {}, V + 1, torch.device("cpu"))
            output = verify.rejection_sample(probs, drafted[real], counts.tolist(), draws)
        else:
            output = torch.multinomial(probs, 1)
        got = (output >= 0).sum(1).numpy()
        for column in range(output.shape[1]):
            there = np.flatnonzero(column < got)
            rows[there, lengths[there] + column] = output[there, column].numpy()
        lengths += got
    return torch.from_numpy(rows[:, PROMPT + 1 : PROMPT + 1 + LENGTH]).long(), proposer.stats()


def joint_p_value(texts):
    table = model().double()
    law = torch.einsum("a,ab,bc->abc", table[V], table[:V], table[:V]).flatten()
    cells = (texts * torch.tensor([V * V, V, 1])).sum(1)
    counts = torch.bincount(cells, minlength=V**3)
    return p_value(counts, law * len(texts)) if counts[law == 0].sum() == 0 else 0


@pytest.mark.parametrize("mode", ["rejection", "seeded"])
def test_padded_drafts_keep_the_joint_law(mode):
    parts = [generate(mode, first) for first in range(0, TEXTS, PART)]
    assert joint_p_value(torch.cat([texts for texts, _ in parts])) > 1e-3
    padding, accepted, proposed = (
        sum(counters[name] for _, counters in parts) for name in ("padding", "padding_accepted", "proposed")
    )
    assert padding > 20_000 and accepted > 1_000 and proposed > 10_000


def test_seeded_texts_are_the_same_padded_ragged_and_without_drafts():
    padded, counters = generate("seeded", 7)
    ragged, without_padding = generate("seeded", 7, "ragged")
    assert counters["padding_accepted"] > 0 and without_padding["padding"] == 0 < without_padding["proposed"]
    assert torch.equal(padded, ragged) and torch.equal(padded, generate("seeded", 7, "none")[0])
