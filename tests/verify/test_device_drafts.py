# SPDX-License-Identifier: Apache-2.0
"""Drafts that the device completes: the table and the look-up, against dictionaries and plain integers."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from sam_core.device_drafts import (
    CHECK,
    COMMON,
    LOOK_UPS,
    MAX_CONFIRMED,
    MAX_NGRAM,
    MAX_TOKEN,
    NGRAMS,
    NO_TOKEN,
    OF_GROUP,
    OF_TOKEN,
    PAGE,
    TEXTS,
    UNIT,
    NgramTable,
    _factors,
    draft,
)

K = 3
VOCABULARY = 200


class Oracle:
    """A table of dictionaries and plain integers; n-grams share slots as those of NgramTable do."""

    def __init__(self, num_slots):
        self.num_slots, self.slots, self.texts, self.counts = num_slots, {}, {}, Counter()
        self.pages = []  # texts in the order in which they got their page

    def hashes(self, group, ngram):
        slot, check = (
            group * int(factors[0]) + sum(int(f) * t for f, t in zip(factors[-len(ngram) :], ngram, strict=True))
            for factors in (
                _factors()[:, at] for at in (NGRAMS.index(len(ngram)), len(NGRAMS) + NGRAMS.index(len(ngram)))
            )
        )
        assert max(slot, check) < 1 << 63
        return slot % self.num_slots, check & CHECK

    def append(self, texts, groups, new):
        places = []
        for text, group, tokens in zip(texts, groups, new, strict=True):
            known = self.texts.setdefault(text, [])
            if tokens and text not in self.pages:
                self.pages.append(text)
            for token in tokens:
                for n in (n for n in NGRAMS if n <= len(known)):
                    places.append((group, known[-n:], token, text, len(known)))
                known.append(token)
                self.counts[token] += 1
        for common in (False, True):
            before = dict(self.slots)
            for group, ngram, token, text, at in places:
                slot, check = self.hashes(COMMON if common else group, ngram)
                entry, confirmed = (check, text, at), 0
                if slot in before and before[slot][0][0] == check:
                    old, confirmed = before[slot]
                    if self.texts[old[1]][old[2]] == token:
                        confirmed = min(confirmed + 1, MAX_CONFIRMED)
                    elif confirmed:
                        entry, confirmed = old, confirmed - 1
                self.slots[slot] = entry, confirmed

    def following(self, group, text, k):
        best, tokens = (0,), []
        for n in NGRAMS:
            for number in (group, COMMON):
                slot, check = self.hashes(number, text[-n:])
                entry, confirmed = self.slots.get(slot, ((-1, 0, 0), 0))
                priority = OF_TOKEN * n + OF_GROUP * (number == group) + UNIT * confirmed
                if entry[0] == check and (rank := (priority, self.pages.index(entry[1]), entry[2])) > best:
                    best, tokens = rank, self.texts[entry[1]][entry[2] : entry[2] + k]
        return tokens

    def draft(self, group, text, chain, sampled, frequent, k):
        tokens = chain[len(sampled) :][:k] if chain[: len(sampled)] == sampled else []
        for _ in range(LOOK_UPS):
            tokens = tokens + (self.following(group, text + sampled + tokens, k) or [frequent])
            tokens = tokens[:k]
        return tokens


def rows_of(texts):
    rows = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows


class Device:
    """A table's copy, brought up to date as on a device: by the cells that changed."""

    def __init__(self, table):
        self.table, self.memory = table, torch.from_numpy(table.memory.copy())

    def update(self):
        cells, values = self.table.changes()
        assert len(set(cells.tolist())) == len(cells)
        self.memory.index_copy_(0, torch.from_numpy(cells), torch.from_numpy(values))
        assert (self.memory.numpy() == self.table.memory).all()

    def draft(self, k, groups, texts, chains, sampled):
        """Drafts, without what stands behind their ends; `self.drafts` has all that is known of them."""
        padded = np.full((len(texts), 2 * k + 1), 7)
        for row, chain in zip(padded, chains, strict=True):
            row[: len(chain)] = chain
        tokens = np.full((len(texts), k + 1), NO_TOKEN)
        for row, new in zip(tokens, sampled, strict=True):
            row[: len(new)] = new
        tails = np.zeros((len(texts), MAX_NGRAM), np.int64)
        for row, text in zip(tails, texts, strict=True):
            last = text[-MAX_NGRAM:]
            row[MAX_NGRAM - len(last) :] = last
        lengths, counts = np.array([*map(len, chains)]), np.array([*map(len, sampled)])
        arguments = padded, lengths, tails, np.array(groups, np.int64), tokens, counts
        self.drafts = draft(self.memory, self.table.num_slots, *map(torch.as_tensor, arguments), k)
        out = self.drafts.tokens.tolist()
        drafts = [row[:n] for row, n in zip(out, self.drafts.lengths.tolist(), strict=True)]
        assert out == [row + row[-1:] * (k - len(row)) for row in drafts]
        return drafts


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 3, 8])
def test_drafts_are_those_of_dictionaries(k, seed):
    """Random texts in groups, fed in random portions; chains that hold, break off or are empty."""
    rng = random.Random(seed)
    size, num_slots = rng.choice([2, 5, 40, 150]), rng.choice([1 << 10, 1 << 16])
    table, oracle = NgramTable(6 * PAGE, num_slots, VOCABULARY), Oracle(num_slots)
    device, pages = Device(table), np.zeros(6, np.int64)
    groups, texts = [rng.randrange(COMMON + 1, MAX_TOKEN) for _ in range(3)] * 2, [[] for _ in range(6)]
    looked_up = held = 0
    for _ in range(15):
        new = [[rng.randrange(size) for _ in range(rng.randrange(12))] for _ in texts]
        starts = [*map(len, texts)]
        for text, tokens in zip(texts, new, strict=True):
            text += tokens
        oracle.append(range(6), groups, new)
        ends = [*map(len, texts)]
        table.append(pages, np.array(groups, np.int32), rows_of(texts), *np.array([starts, ends], np.int32))
        device.update()
        assert oracle.counts[int(table.memory[0])] == max(oracle.counts.values())
        sampled = [[rng.randrange(size) for _ in range(rng.randrange(k + 2))] for _ in texts]
        chains = [[rng.randrange(size) for _ in range(rng.randrange(2 * k + 2))] for _ in texts]
        for chain, tokens in zip(chains, sampled, strict=True):
            if rng.random() < 0.5:
                chain[: len(tokens)] = tokens[: len(chain)]
        enough = [i for i in range(6) if len(texts[i]) >= MAX_NGRAM]
        expected = [oracle.draft(groups[i], texts[i], chains[i], sampled[i], int(table.memory[0]), k) for i in enough]
        got = device.draft(k, *([values[i] for i in enough] for values in (groups, texts, chains, sampled)))
        assert got == expected
        held += sum(chains[i][: len(sampled[i])] == sampled[i] for i in enough)
        looked_up += sum(draft != [int(table.memory[0])] for draft in got)
    assert looked_up > 30 and held > 15


def add(table, texts, groups, pages=None, starts=None):
    """Append texts, from `starts` on, and return their pages."""
    ends = np.array([*map(len, texts)], np.int32)
    starts = np.zeros_like(ends) if starts is None else np.array(starts, np.int32)
    pages = np.zeros(len(texts), np.int64) if pages is None else pages
    table.append(pages, np.array(groups, np.int32), rows_of(texts), starts, ends)
    return pages


def table_of(texts, groups, num_slots=1 << 12, **more):
    table = NgramTable(2 * PAGE * len(texts), num_slots, MAX_TOKEN, **more)
    add(table, texts, groups)
    return table


def test_a_page_that_is_used_again_gives_the_new_text():
    table = NgramTable(1, 1 << 12, MAX_TOKEN)
    add(table, [[1, 2, 3, 4, 5, 6, 7, 8]], [3])
    device = Device(table)
    add(table, [[1, 2, 9]], [2])
    device.update()
    assert device.draft(1, [2], [[0, 0, 0, 0, 1]], [[]], [[2]]) == [[9]]
    assert device.draft(1, [3], [[0, 0, 0, 1, 2]], [[]], [[3]]) == [[0]]  # where 4 stood, the text ends


def test_changes_of_a_long_time_without_drafts_are_as_many_as_the_cells():
    rng = random.Random(1)
    table = table_of([[1] * 20] * 4, [10] * 4, num_slots=1 << 6)
    device = Device(table)
    for _ in range(300):
        rows = rows_of([[rng.randrange(9) for _ in range(20)]])
        add(table, rows, [10])
    assert sum(map(len, table._changed)) < 2 * len(table.memory)
    assert all(map(len, table._changed)), "an array for each call would grow as well"
    device.update()
    assert sum(map(len, table._changed)) == 0
    add(table, rows, [10])
    device.update()


def test_tokens_outside_the_vocabulary_are_not_drafted():
    table = NgramTable(1, 1 << 12, 10)
    add(table, [[10, 1, 2, 11, 3, 11, 11]], [10])
    device = Device(table)
    drafts = device.draft(K, [10] * 3, [[0] * 5] * 3, [[]] * 3, [[1], [2], [11]])
    assert drafts[0][0] == 2 and all(token < 10 for draft in drafts for token in draft)


def test_hashes_of_the_largest_numbers_do_not_overflow():
    token = MAX_TOKEN - 1
    device = Device(table_of([[token] * 8], [MAX_TOKEN - 1]))
    assert device.draft(K, [token], [[token] * 5], [[]], [[token]]) == [[token, token]]
    Oracle(1).hashes(token, [token] * MAX_NGRAM)


def test_a_text_goes_on_over_its_pages_and_the_oldest_page_is_taken():
    """A text of 20 pages in a table of 4: what its latest pages say is drafted, also across the end of a page."""
    rng = random.Random(0)
    text = [rng.randrange(1000, MAX_TOKEN) for _ in range(20 * PAGE)]
    table = NgramTable(4 * PAGE, 1 << 16, MAX_TOKEN)
    device, pages, at = Device(table), np.zeros(1, np.int64), 0
    while at < len(text):
        new = at + rng.choice((1, 7, PAGE, PAGE + 5))
        add(table, [text[:new]], [10], pages, [at])
        device.update()
        at = min(new, len(text))
    assert pages[0] == 19 and len(table.memory) == TEXTS + 4 * (PAGE + 1) + (2 << 16)
    for end in range(len(text) - 3 * PAGE, len(text) - K):
        (got,) = device.draft(K, [10], [text[end - 6 : end - 1]], [[]], [[text[end - 1]]])
        assert got == text[end : end + K]
    (got,) = device.draft(K, [10], [text[PAGE : PAGE + 5]], [[]], [[text[PAGE + 5]]])
    assert got != text[PAGE + 6 : PAGE + 6 + K]


def test_a_text_does_not_write_into_a_page_that_others_have_taken():
    table = NgramTable(2 * PAGE, 1 << 12, MAX_TOKEN)
    slow = add(table, [[1, 2, 3]], [10])
    for number in range(2):
        add(table, [[100 + 10 * number + i for i in range(8)]], [20])
    add(table, [[1, 2, 3, 4, 5]], [10], slow, [3])
    device = Device(table)
    drafts = device.draft(K, [20, 10], [[0] * 4 + [112], [0] * 3 + [2, 3]], [[], []], [[113], [4]])
    assert drafts[0] == [114, 115, 116] and drafts[1][0] == 5


@pytest.mark.parametrize(("of_groups", "of_all"), [(True, False), (False, True)])
def test_drafts_come_from_the_sources_that_are_asked_for(of_groups, of_all):
    device = Device(table_of([[9, 9, 1, 2, 3], [9, 1, 2, 4]], [10, 11], of_groups=of_groups, of_all=of_all))
    drafts = device.draft(1, [10, 11, 12], [[0] * 4 + [1]] * 3, [[]] * 3, [[2]] * 3)
    assert drafts == ([[3], [4], [0]] if of_groups else [[4], [4], [4]])
    assert device.draft(1, [10], [[0] * 5], [[]], [[77]]) == [[9 if of_all else 0]]


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(ValueError, match="536870913 tokens are more than a table holds: 536870912"):
        NgramTable((1 << 29) + 1, 1 << 4, 10)
