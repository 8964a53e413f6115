# SPDX-License-Identifier: Apache-2.0
"""Verification at temperature 1 draws from the model's own distribution."""

import numpy as np
import torch
from tiny_qwen3 import VOCAB

DRAWS = 12_000
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def model_distribution(model):
    """P(first, second token | PROMPT) from transformers: float64[VOCAB, VOCAB]."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        rows = torch.tensor([PROMPT + [t] for t in range(VOCAB)])
        logits = network(rows).logits.double()
    first = logits[0, -2].softmax(-1)
    return (first[:, None] * logits[:, -1].softmax(-1)).numpy()


def chi_square_p_value(observed, expected):
    """Cells expected fewer than 8 times are pooled."""
    rare = expected < 8
    pooled = expected[rare].sum()
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], pooled)
    statistic = ((observed - expected) ** 2 / expected).sum()
    half_freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(half_freedom, torch.tensor(statistic / 2)).item()


def sample(engine, draws, **sampling):
    """Answers of 3 tokens to PROMPT, at most 8 at a time so that the switch stays on: pairs counted, drafted, accepted."""
    pairs, drafted, accepted = np.zeros((VOCAB, VOCAB)), 0, 0
    for _ in range(draws // 8):
        for answer in engine.run([PROMPT] * 8, 3, **sampling):
            pairs[answer[0], answer[1]] += 1
        drafted += engine.count("drafted")
        accepted += engine.count("accepted")
    return pairs, drafted, accepted


def test_sampled_distribution_is_the_models(model, sam):
    """Siblings draft for each other: the second token of most answers is drafted and verified.

    A deterministic draft d is accepted with probability p(d), so acceptance has bounds of its own.
    """
    pairs, drafted, accepted = sample(sam, DRAWS, temperature=1.0)
    assert drafted > DRAWS / 2 and accepted > 0
    p = model_distribution(model)
    assert chi_square_p_value(pairs.ravel(), p.ravel() * DRAWS) > 1e-4
    best = (p.sum(1) * (p / p.sum(1, keepdims=True)).max(1)).sum()
    assert 3 / VOCAB < accepted / drafted <= best * 1.1


def test_repeated_seeds_keep_the_distribution(model, sam):
    """Each request is made four times with its seed, and drafts what its former answers were: 24,000 tokens."""
    requests = [{"seed": seed, "extra_args": {"sam_group": str(seed)}} for seed in range(2000)]
    for _ in range(4):
        pairs, drafted, accepted = np.zeros((VOCAB, VOCAB)), 0, 0
        for at in range(0, len(requests), 8):
            for answer in sam.run([PROMPT] * 8, 3, temperature=1.0, each=requests[at : at + 8]):
                pairs[answer[0], answer[1]] += 1
            drafted += sam.count("drafted")
            accepted += sam.count("accepted")
    assert drafted > len(requests) and accepted > 0
    assert chi_square_p_value(pairs.ravel(), model_distribution(model).ravel() * len(requests)) > 1e-4


def test_the_test_notices_a_wrong_temperature(model, sam):
    pairs, _, _ = sample(sam, 2048, temperature=0.8)
    assert chi_square_p_value(pairs.ravel(), model_distribution(model).ravel() * 2048) < 1e-6
