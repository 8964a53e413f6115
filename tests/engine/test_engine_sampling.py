# SPDX-License-Identifier: Apache-2.0
"""Verification at temperature 1 draws from the model's own distribution."""

import numpy as np
import pytest
import torch
from conftest import VOCAB, Engine

DRAWS = 12_288
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.fixture(scope="module")
def always_on(model):
    engine = Engine(model, sam={"threshold": 64}, seed=1)
    yield engine
    engine.stop()


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


def test_sampled_distribution_is_the_models(model, always_on):
    """Siblings draft for each other: the second token of most answers is drafted and verified."""
    pairs = np.zeros((VOCAB, VOCAB))
    for _ in range(DRAWS // 256):
        for answer in always_on.run([PROMPT] * 256, 3, temperature=1.0):
            pairs[answer[0], answer[1]] += 1
    drafted, accepted = always_on.drafter()["proposed"], always_on.count("accepted")
    assert drafted > 0 and accepted > 0
    expected = model_distribution(model) * pairs.sum()
    assert chi_square_p_value(pairs.ravel(), expected.ravel()) > 1e-3


def test_the_test_notices_a_wrong_temperature(model, always_on):
    expected = model_distribution(model)
    answers = always_on.run([PROMPT] * 2048, 2, temperature=0.8)
    pairs = np.zeros((VOCAB, VOCAB))
    for answer in answers:
        pairs[answer[0], answer[1]] += 1
    assert chi_square_p_value(pairs.ravel(), (expected * pairs.sum()).ravel()) < 1e-6


def test_acceptance_at_temperature_one_is_what_the_model_gives(model, always_on):
    """A deterministic draft d is accepted with probability p(d): compare with the model's own p of what was drafted."""
    always_on.run([PROMPT] * 2048, 2, temperature=1.0)
    drafted, accepted = always_on.count("drafted"), always_on.count("accepted")
    p = model_distribution(model)
    second = p / p.sum(1, keepdims=True)
    best, chance = (p.sum(1) * second.max(1)).sum(), 1 / VOCAB
    assert drafted > 500
    assert 3 * chance < accepted / drafted <= best * 1.1
