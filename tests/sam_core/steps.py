# SPDX-License-Identifier: Apache-2.0
"""Calls of `Pool.step` with lists instead of buffers."""

import numpy as np

ALL = ("request", "group", "history", "common")


def i32(*values):
    return np.array(values, dtype=np.int32)


def step(pool, rows, k=8, width=8, index_later=False):
    """Append rows, a list of (slot, tokens), in one call; return the drafts as lists."""
    slots = i32(*(slot for slot, _ in rows))
    tokens = i32(*(token for _, tokens in rows for token in tokens))
    counts = i32(*(len(tokens) for _, tokens in rows))
    out = np.full((len(rows), width), -7, dtype=np.int32)
    lengths = np.full(len(rows), -7, dtype=np.int32)
    pool.step(slots, tokens, counts, k, out, lengths, index_later=index_later)
    assert all((out[row, length:] == -7).all() for row, length in enumerate(lengths)), "wrote behind a draft"
    return [out[row, :length].tolist() for row, length in enumerate(lengths)]


def step_tree(pool, rows, k=8, width=8):
    """The same for trees; return (tokens, parents, scores) of each row, after checking that they form trees."""
    slots = i32(*(slot for slot, _ in rows))
    tokens = i32(*(token for _, tokens in rows for token in tokens))
    counts = i32(*(len(tokens) for _, tokens in rows))
    out, parents = (np.full((len(rows), width), -7, dtype=np.int32) for _ in range(2))
    scores = np.full((len(rows), width), -7, dtype=np.float32)
    lengths = np.zeros(len(rows), dtype=np.int32)
    pool.step(slots, tokens, counts, k, out, lengths, scores=scores, parents=parents)
    trees = []
    for row, length in enumerate(lengths):
        assert all((array[row, length:] == -7).all() for array in (out, parents, scores)), "wrote behind a draft"
        tree = [array[row, :length].tolist() for array in (out, parents, scores)]
        for node, (parent, score) in enumerate(zip(tree[1], tree[2], strict=True)):
            assert -1 <= parent < node and 0 < score <= (1 if parent < 0 else tree[2][parent])
        assert len(set(zip(tree[0], tree[1], strict=True))) == length, "two equal nodes with one parent"
        trees.append(tree)
    return trees
