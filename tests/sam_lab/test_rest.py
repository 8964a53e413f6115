# SPDX-License-Identifier: Apache-2.0
"""REST's retrieval against its definition, algorithms 1 and 2 of the paper, on random texts."""

import random

import pytest
from sam_core.corpus import build_corpus

from sam_lab.methods.rest import Rest


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


def trie(found):
    """{prefix: how many continuations begin with it}"""
    weights = {}
    for text in found:
        for end in range(1, len(text) + 1):
            weights[tuple(text[:end])] = weights.get(tuple(text[:end]), 0) + 1
    return weights


def prefixes(tokens, parents):
    made = []
    for token, parent in zip(tokens, parents, strict=True):
        assert parent < len(made)
        made.append((*(made[parent] if parent >= 0 else ()), token))
    return made


@pytest.mark.parametrize("vocabulary", [2, 5])
def test_retrieval_is_the_paper_s(vocabulary, tmp_path):
    rng = random.Random(vocabulary)
    matched = set()
    for case in range(30):
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
            weights = trie(found)
            made = prefixes(tokens, parents)
            assert len({*made}) == len(made) == min(c, len(weights))
            kept = sorted((weights[prefix] for prefix in made), reverse=True)  # KeyError: not a continuation
            assert kept == sorted(weights.values(), reverse=True)[: len(made)]
            assert rest._last[0][0] == length
            chain = rest.propose_many([0], 64)[0]
            assert not made or weights[tuple(chain[:1])] == max(weights.values())
    assert len(matched) > 4


def test_many_continuations_are_sampled_evenly(tmp_path):
    build_corpus([[1000, token, token] for token in range(300)], tmp_path / "corpus")
    rest = Rest(tmp_path / "corpus", m=1, c=300, max_looked_at=30)
    tokens, parents = rest.retrieve([1000], 300)
    assert sorted(tokens) == list(range(0, 300, 10)) and parents == [-1] * 30


def test_what_was_accepted_is_counted_by_the_match(tmp_path):
    build_corpus([[1, 2, 3, 4, 5, 6]], tmp_path / "corpus")
    rest = Rest(tmp_path / "corpus")
    rest.start(0, [9, 1, 2], None)
    rest.propose_tree_many([0], 64)
    rest.append_many([0], [[3, 4, 8]])
    rest.propose_tree_many([0], 64)
    rest.append_many([0], [[5]])
    rest.append_many([0], [[2]])
    rest.propose_tree_many([0], 64)
    rest.append_many([0], [[3]])  # the last token of an answer
    assert rest.matches[:4].tolist() == [1, 1, 1, 0] and rest.accepted[:4].tolist() == [0, 1, 2, 0]
