# SPDX-License-Identifier: Apache-2.0
"""Compare pairs of sampled tokens of an engine with the model's distribution."""

import numpy as np
import torch
from tiny_qwen3 import VOCAB

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def loaded(model):
    """The model in a folder, loaded by transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def model_distribution(network):
    """P(first, second token | PROMPT) from transformers: float64[VOCAB, VOCAB]."""
    with torch.no_grad():
        rows = torch.tensor([PROMPT + [t] for t in range(VOCAB)])
        logits = network(rows).logits.double()
    first = logits[0, -2].softmax(-1)
    return (first[:, None] * logits[:, -1].softmax(-1)).numpy()


def chi_square_p_value(observed, expected, least=8):
    """p-value of the counts in cells, or in rows of cells with a given sum each.

    In each row, cells that expect fewer than `least` are pooled, and more cells until the pool expects `least`.
    """
    assert not observed[expected == 0].any(), "what cannot be was sampled"
    order, sums = expected.argsort(-1), np.count_nonzero(expected.sum(-1))
    observed, expected = (np.take_along_axis(each, order, -1) for each in (observed, expected))
    pooled = (expected < least) | (expected.cumsum(-1) - expected < least)
    observed, expected = (np.append(each[~pooled], (each * pooled).sum(-1)) for each in (observed, expected))
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic, freedom = ((observed - expected) ** 2 / expected).sum(), len(expected) - sums
    return torch.special.gammaincc(*torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)).item()


def sample(engine, draws, at_once=8, **sampling):
    """Sample answers of 3 tokens to PROMPT; return counts of pairs of first tokens, and of drafted and accepted
    tokens."""
    pairs, drafted, accepted = np.zeros((VOCAB, VOCAB)), 0, 0
    for _ in range(0, draws, at_once):
        for answer in engine.run([PROMPT] * at_once, 3, **sampling):
            pairs[answer[0], answer[1]] += 1
        drafted += engine.count("drafted")
        accepted += engine.count("accepted")
    return pairs, drafted, accepted


def samples_as_the_model(engine, network, draws, at_once=8):
    """Pairs follow the model's distribution when siblings draft for each other: the second token of most answers is
    drafted and verified.

    A deterministic draft d is accepted with probability p(d), which bounds the acceptance rate.
    """
    pairs, drafted, accepted = sample(engine, draws, at_once, temperature=1.0)
    assert drafted > draws / 2 and accepted > 0
    p = model_distribution(network)
    assert chi_square_p_value(pairs.ravel(), p.ravel() * draws) > 1e-4
    best = (p.sum(1) * (p / p.sum(1, keepdims=True)).max(1)).sum()
    assert 3 / VOCAB < accepted / drafted <= best * 1.1
