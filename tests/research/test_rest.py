# SPDX-License-Identifier: Apache-2.0
"""REST's retrieval against its definition, algorithms 1 and 2 of the paper, on random texts."""

import random
from collections import Counter

import pytest
from sam_core.corpus import build_corpus
from suffix_paper import paths

from research.rest import Rest


def continuations(texts, context, n_max, m):
    """The length of the longest suffix that stands before a token, and what follows it wherever it stands."""
    for n in range(min(n_max, len(context)), 0, -1):
        suffix = context[len(context) - n :]
        found = [
            text[at + n : at + n + m]
            for text in texts
            for at in range(len(text) - n)  # at least one token follows
            if text[at : at + n] == suffix
        ]
        if found:
            return n, found
    return 0, []


@pytest.mark.parametrize("vocabulary", [2, 5])
def test_retrieval_is_the_paper_s(vocabulary, tmp_path):
    rng = random.Random(vocabulary)
    matched = set()
    for _ in range(30):
        texts = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 40))] for _ in range(rng.randint(1, 5))]
        build_corpus(texts, tmp_path / "corpus")
        n_max, m, c = rng.randint(1, 8), rng.randint(1, 5), rng.randint(1, 12)
        rest = Rest(tmp_path / "corpus", n_max, m, c)
        for _ in range(20):
            context = [rng.randrange(vocabulary) for _ in range(rng.randint(0, 12))]
            if rng.random() < 0.5:  # one that stands in a text, maybe at its end
                text = rng.choice(texts)
                context = text[: rng.randint(0, len(text))]
            rest.start(0, context, None)
            ((tokens, parents),) = rest.propose_tree_many([0], 64)
            length, found = continuations(texts, context, n_max, m)
            matched.add(length)
            weights = Counter(tuple(text[:end]) for text in found for end in range(1, len(text) + 1))
            made = paths(tokens, parents)
            assert len({*made}) == len(made) == min(c, len(weights))
            kept = sorted((weights[prefix] for prefix in made), reverse=True)
            assert kept == sorted(weights.values(), reverse=True)[: len(made)]
            assert rest.match_length == length
            chain = rest.propose_many([0], 64)[0]
            assert not made or weights[tuple(chain[:1])] == max(weights.values())
    assert len(matched) > 4


def test_a_random_choice_is_of_continuations(tmp_path):
    texts = [[1000, first, *range(first, first + 20)] for first in range(0, 600, 20)]
    build_corpus(texts, tmp_path / "corpus")
    drafts = []
    for seed in (1, 1, 2):
        tokens, parents = Rest(tmp_path / "corpus", m=8, c=64, max_looked_at=8, seed=seed).retrieve([1000], 64)
        firsts = [token for token, parent in zip(tokens, parents, strict=True) if parent == -1]
        assert len(firsts) == len({*firsts}) == 8 and {*firsts} <= {*range(0, 600, 20)}
        below = [(token, parent) for token, parent in zip(tokens, parents, strict=True) if parent >= 0]
        assert len(tokens) == 64 and all(token == tokens[up] + (parents[up] >= 0) for token, up in below)
        drafts.append(sorted(firsts))
    assert drafts[0] == drafts[1] != drafts[2]
