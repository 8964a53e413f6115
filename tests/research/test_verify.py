# SPDX-License-Identifier: Apache-2.0
"""Sampled verification of trees gives the target's distribution."""

import itertools

import pytest
import torch
from suffix_paper import paths

from research.verify import Sampled, walk

VOCABULARY, DRAWS = 5, 20_000
TREE = ([0, 1, 2, 0, 3, 1], [-1, -1, 0, 0, 1, 4])
"""Two candidates for the first token, two behind one of them, and a path of three."""


@pytest.fixture(scope="module")
def logits():
    """The made-up target: logits [5, 5, 5] of the token behind each pair of tokens. It likes what TREE drafts."""
    made = 1.5 * torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))
    for pair, tokens in (((4, 4), (0, 1)), ((4, 0), (2, 0)), ((4, 1), (3,)), ((1, 3), (1,))):
        for token in tokens:
            made[*pair, token] += 2
    return made


def after(logits, text):
    """The logits behind a text, which begins behind the tokens 4, 4."""
    return logits[tuple([4, 4, *text][-2:])]


def triples(logits, sampler):
    """The exact law of the first three tokens, float64 [125]."""
    probs = sampler.probabilities(logits.flatten(0, 1)).double().view(logits.shape)
    tokens = itertools.product(range(VOCABULARY), repeat=3)
    return torch.stack([probs[4, 4, a] * probs[4, a, b] * probs[a, b, c] for a, b, c in tokens])


def distance(texts, law):
    """Total variation between the texts' first three tokens and the law."""
    places = [25 * a + 5 * b + c for a, b, c in (text[:3] for text in texts)]
    counts = torch.bincount(torch.tensor(places), minlength=125).double()
    return 0.5 * (counts / len(texts) - law).abs().sum().item()


def decode(logits, draw):
    """Three tokens for each of DRAWS requests, all requests side by side; draw(step, logits [B, T, V]) -> [B, T].

    The first step verifies TREE, the following ones draft nothing.
    """
    nodes = [(), *paths(*TREE)]
    at = torch.stack([after(logits, path) for path in nodes]).expand(DRAWS, -1, -1)
    drawn = draw(at, torch.tensor([len(path) for path in nodes]).expand(DRAWS, -1)).tolist()
    texts = [walk(TREE, row)[1] for row in drawn]
    accepted = sum(len(text) - 1 for text in texts)
    while short := [request for request, text in enumerate(texts) if len(text) < 3]:
        at = torch.stack([after(logits, texts[request]) for request in short])
        places = torch.tensor([[len(texts[request])] for request in short])
        for request, (token,) in zip(short, draw(at.unsqueeze(1), places, short).tolist(), strict=True):
            texts[request].append(token)
    return texts, accepted


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.8, 0.95)])
def test_sampled_verification_keeps_the_distribution(logits, temperature, top_p):
    sampler = Sampled(temperature, top_p)
    texts, accepted = decode(logits, lambda at, places, requests=range(DRAWS): sampler(at, list(requests), places))
    law = triples(logits, sampler)
    assert accepted > DRAWS / 4
    plain = torch.multinomial(law.float(), DRAWS, replacement=True, generator=torch.Generator().manual_seed(4))
    noise = distance([(n // 25, n // 5 % 5, n % 5) for n in plain.tolist()], law)
    assert noise < 0.04 and distance(texts, law) < 1.5 * noise


def test_walk():
    accepted, tokens = walk(TREE, [1, 9, 3, 9, 9, 1, 2])
    assert (accepted, tokens) == ([1, 4, 5], [1, 3, 1, 2])
    assert walk(TREE, [4] * 7) == ([], [4])
    assert walk(([0, 0, 1], [-1, -1, 1]), [0, 5, 1, 1]) == ([0], [0, 5]), "of equal siblings the first counts"
    assert walk(([], []), [3]) == ([], [3])
