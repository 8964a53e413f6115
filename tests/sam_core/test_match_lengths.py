# SPDX-License-Identifier: Apache-2.0
"""Source and match length of each drafted token, against a search through the texts."""

import random

import numpy as np
import pytest
from pool_oracle import i32
from sam_core.corpus import build_corpus

from sam_core import SOURCES, Pool

LONGEST = {"request": 64, "group": 64, "history": 64, "corpus": 32, "common": 0}
"""Tokens of a match that is looked for at the end of a text."""


def followed(texts, match, token):
    """Whether `token` follows the tokens `match` anywhere in the texts."""
    size = len(match)
    return any(text[at - size : at] == match and text[at] == token for text in texts for at in range(size, len(text)))


def longest_match(texts, before, token, most):
    """Tokens of the longest end of `before` that `token` follows in the texts; 0 if only the empty one is followed."""
    for size in range(min(most, len(before)), 0, -1):
        if followed(texts, before[-size:], token):
            return size
    return 0


def drafted(pool, slot, k):
    """Tokens, parents, sources and match lengths of a tree."""
    shape = (1, k)
    out, parents, sources, matches = (np.full(shape, -7, np.int32) for _ in range(4))
    lengths, none = i32(0), i32()
    pool.step(i32(slot), none, i32(0), k, out, lengths, None, parents, sources=sources, match_lengths=matches)
    assert (sources[0, lengths[0] :] == -7).all() and (matches[0, lengths[0] :] == -7).all()
    return [array[0, : lengths[0]].tolist() for array in (out, parents, sources, matches)]


@pytest.mark.parametrize("k", [6, 24])
@pytest.mark.parametrize("rule", ["count", "blend"])
def test_longest_match_in_the_named_source(rule, k, tmp_path):
    rng = random.Random(f"{rule} {k}")
    corpus_texts = [[rng.randrange(4) for _ in range(30)] for _ in range(4)]
    build_corpus(corpus_texts, tmp_path / "corpus")
    pool = Pool(rule=rule, corpus=tmp_path / "corpus")
    past, seen, frequent = [], set(), 0
    for life in range(6):
        texts = [[5, 0, 1], [5, 0, 1]]
        slots = [pool.open(text) for text in texts]
        for _ in range(12):
            for slot, text in zip(slots, texts):
                new = [rng.randrange(4 if life < 4 else 40) for _ in range(rng.randrange(1, 5))]
                new += text[-6:] * (rng.random() < 0.3)
                pool.append(slot, new)
                text += new
            tokens, parents, sources, matches = drafted(pool, slots[0], k)
            paths = []
            for token, parent, source, length in zip(tokens, parents, sources, matches):
                path = paths[parent] if parent >= 0 else []
                paths.append([*path, token])
                name = SOURCES[source]
                where = {"request": texts[:1], "corpus": corpus_texts}.get(name, past + texts)
                grown = len(path) if name == "corpus" else 0  # a corpus match that goes on is not cut to its limit
                assert length == longest_match(where, texts[0] + path, token, LONGEST[name] + grown) or (
                    length == 0 and rule == "blend"  # a follower or only frequent
                )
                frequent += not length
                seen.add(name)
        for slot, text in zip(slots, texts):
            pool.close(slot)
            past.append(text)
    assert seen | {"common"} == {*SOURCES} and (rule == "count") == (not frequent)


@pytest.mark.parametrize("rule", ["oldest", "newest"])
def test_a_copy_continues_the_match_that_it_is_of(rule):
    pool, text = Pool(rule=rule, sources=("request",)), [1, 2, 3, 4, 5, 6, 9, 2, 3, 4]
    slot = pool.open(text, None)
    out, lengths, sources, matches = (
        np.zeros((1, 4), np.int32),
        i32(0),
        np.zeros((1, 4), np.int32),
        np.zeros((1, 4), np.int32),
    )
    pool.step(i32(slot), i32(), i32(0), 4, out, lengths, sources=sources, match_lengths=matches)
    assert out.tolist() == [[5, 6, 9, 2]] and sources.tolist() == [[0] * 4] and matches.tolist() == [[3, 4, 5, 6]]


def test_a_copy_from_an_earlier_life_is_of_the_history():
    pool = Pool(rule="newest", sources=("group", "history"))
    slot = pool.open([1])
    pool.append(slot, [2, 3, 4])
    pool.close(slot)
    _, _, sources, matches = drafted(pool, pool.open([1]), 3)
    assert [SOURCES[source] for source in sources] == ["history"] * 3 and matches == [1, 2, 3]
