# SPDX-License-Identifier: Apache-2.0
"""Calls of `Pool.step` with lists instead of buffers."""

import numpy as np

ALL = ("request", "group", "history", "common")


def i32(*values):
    return np.array(values, dtype=np.int32)


def drafts(pool, rows, k=8, width=8, index_later=False):
    """Append rows of (slot, tokens) in one call; return each draft's tokens, scores, sources and match lengths."""
    slots, counts = i32(*(slot for slot, _ in rows)), i32(*(len(tokens) for _, tokens in rows))
    tokens, starts = i32(*(token for _, tokens in rows for token in tokens)), None
    if len(tokens) % 2:  # a table whose rows lie apart, and what is not new in it is no token
        starts = np.arange(len(rows), dtype=np.int32) % 3
        table = np.full((len(rows) + 1, 2 + counts.max() + 5), -7, np.int32)[:, : 2 + counts.max()]
        for row, (start, (_, new)) in enumerate(zip(starts, rows, strict=True)):
            table[row, start : start + len(new)] = new
        tokens = table
    arrays = [np.full((len(rows), width), -7, kind) for kind in ("i", "f", "i", "i")]
    (out, scores, sources, matches), lengths = arrays, np.full(len(rows), -7, np.int32)
    more = {"sources": sources, "match_lengths": matches}
    pool.step(slots, tokens, counts, k, out, lengths, scores, starts=starts, index_later=index_later, **more)
    assert all((array[row, n:] == -7).all() for array in arrays for row, n in enumerate(lengths)), "behind a draft"
    return [[array[row, :n].tolist() for array in arrays] for row, n in enumerate(lengths)]


def step(pool, rows, k=8, width=8, index_later=False):
    """Append rows of (slot, tokens) in one call; return the tokens of each draft."""
    return [draft[0] for draft in drafts(pool, rows, k, width, index_later=index_later)]
