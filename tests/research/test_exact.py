# SPDX-License-Identifier: Apache-2.0
"""SuffixDecoding in plain Python against its paper's algorithm, by counting strings."""

import random
from collections import Counter

import pytest

from research.exact import Exact


def after(texts, pattern):
    """What follows a pattern in texts, with counts."""
    n = len(pattern)
    return Counter(text[i + n] for text in texts for i in range(len(text) - n) if text[i : i + n] == pattern)


def best_score(texts, text, p, most, tree):
    """Algorithm 1 of the paper from the last p tokens, by counting strings: the sum of the largest D."""
    score, added, offers = 0.0, 0, [(1.0, text[-p:])]
    leaves = []
    while added < most:
        if not tree:
            leaves = []
        for share, string in offers:
            counts = after(texts, string)
            leaves += [(share * n / counts.total(), [*string, token]) for token, n in counts.items()]
        if not leaves:
            break
        offers = [max(leaves, key=lambda leaf: leaf[0])]
        leaves.remove(offers[0])
        score += offers[0][0]
        added += 1
    return score


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("trees", ["both", "global", "request"])
def test_exact_is_the_paper_s_algorithm(trees, tree):
    rng = random.Random(3)
    outputs = [[rng.randrange(4) for _ in range(rng.randint(1, 30))] for _ in range(8)]
    text, drafted = [rng.randrange(4) for _ in range(5)], 0
    drafter = Exact(outputs, trees, alpha=2)
    drafter.start(0, text, None)
    for _ in range(15):
        found = {
            (source, p): best_score(texts, text, p, min(9, 2 * p), tree)
            for source, texts in (("request", [text]), ("global", outputs))
            if trees in ("both", source)
            for p in range(1, len(text))
        }
        tokens, parents = drafter._propose(0, 9, tree)
        chosen = 0.0
        for source in ("request", "global"):  # the draft's own score, by whichever tree and pattern gives the most
            texts = [text] if source == "request" else outputs
            for p in range(1, len(text)) if trees in ("both", source) else ():
                shares = []
                for token, parent in zip(tokens, parents, strict=True):
                    string = path_to(tokens, parents, parent)
                    counts = after(texts, [*text[-p:], *string])
                    above = 1.0 if parent < 0 else shares[parent]
                    shares.append(above * counts[token] / counts.total() if counts[token] else 0.0)
                if len(tokens) <= 2 * p and all(shares):
                    chosen = max(chosen, sum(shares))
        assert chosen == pytest.approx(max(found.values(), default=0.0))
        drafted += len(tokens)
        drafter.append(0, row := [rng.randrange(4)])
        text += row
    assert drafted > 30


def path_to(tokens, parents, node):
    return [] if node < 0 else [*path_to(tokens, parents, parents[node]), tokens[node]]
