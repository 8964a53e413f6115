# SPDX-License-Identifier: Apache-2.0
"""The tables that a pool learns from its drafts: the twin of csrc/model.c. All numbers are integers.

A probability is an adaptive mean in 32 bits: the upper 22 are the mean, the lower 10 the number of outcomes it has
seen, up to LIMIT. An outcome moves the mean by 1/(outcomes + 1.5). Mixing works on stretch(p) = ln(p/(1-p)) with 8
fractional bits, on probabilities of 12 bits, with weights of 16 fractional bits.
"""

from __future__ import annotations

import bisect
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import sam_core

REQUEST, GROUP, CORPUS, HISTORY, COMMON = range(5)
SOURCES = 3  # sources with bins; history is part of the group's index
RANKS = 2  # matches that are looked up in each source
LENGTHS = 12  # classes of match lengths
COUNTS = 8  # classes of counts
BINS = SOURCES * RANKS * LENGTHS * COUNTS * COUNTS * 2
SHARES = 16  # classes of the share of a token among all
KEYS = (1, 2, 3, 5)  # number of last tokens that form the key of each table of successors
ORDERS = len(KEYS)
LAST = KEYS[-1]
SUCCESSORS = 1 << 14
MOST_SEEN = 15  # largest counted number of a successor's occurrences
PATIENCE = 4  # failed requests of other tokens for the entry of a successor that came twice
SUCCESSOR_BINS = BINS + SHARES
ALL_BINS = SUCCESSOR_BINS + ORDERS * (MOST_SEEN + 1) * 2
TOKENS = 3  # tables keyed by a candidate and 0, 1 or 2 tokens before it
HASHES = 1 << 13
CLASSES = 7  # coarser classes of match lengths
KINDS = 4  # kinds of candidates: named by matches at depth 0, 1 .. 2 or more of a draft, or only frequent
FREQUENT = 3
SETS = CLASSES * CLASSES * 4 * KINDS
# Inputs of the mix: a bin of each match, the share, the token tables, the successor, a constant.
SHARE_INPUT = SOURCES * RANKS
TOKEN_INPUT = SHARE_INPUT + 1
SUCCESSOR_INPUT = TOKEN_INPUT + TOKENS
CONSTANT = SUCCESSOR_INPUT + 1
INPUTS = CONSTANT + 1
TABLES = np.cumsum([ALL_BINS, TOKENS * HASHES, SETS * INPUTS, ORDERS * SUCCESSORS * 2]).tolist()  # where each ends
HEADER_BYTES = 80  # size of a saved pool's header
LIMIT = 255
MOST_WEIGHT = 1 << 20  # largest absolute weight
ONE = 1 << 12  # probability 1

_SQUASH = (1, 2, 4, 6, 10, 17, 27, 45, 74, 120, 194, 310, 488, 747, 1101, 1546, 2048)
_SQUASH += (2550, 2995, 3349, 3608, 3786, 3902, 3976, 4022, 4051, 4069, 4079, 4086, 4090, 4092, 4094, 4095)
_LENGTH_CLASSES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 48)  # the largest length of each class but the last
COARSE_CLASSES = (0, 1, 2, 4, 8, 16)
_COUNT_CLASSES = (0, 1, 2, 3, 5, 10, 30)


def class_of(value: int, largest: tuple[int, ...]) -> int:
    return bisect.bisect_left(largest, value)


def squash(stretched: int) -> int:
    """Return 4096 / (1 + exp(-x)), interpolated between multiples of 1/2 from -8 to 8: 1 .. ONE - 1."""
    if abs(stretched) > 2047:
        return ONE - 1 if stretched > 0 else 1
    low, part = divmod(stretched + 2048, 128)
    return (_SQUASH[low] * (128 - part) + _SQUASH[low + 1] * part + 64) // 128


STRETCH = [bisect.bisect_left(range(-2047, 2047), p, key=squash) - 2047 for p in range(ONE)]
"""The inverse of squash, indexed by a probability of 12 bits."""


def match_bins(source: int, rank: int, length: int) -> int:
    """Number of the first bin of a match of `length` tokens."""
    return ((source * RANKS + rank) * LENGTHS + class_of(length, _LENGTH_CLASSES)) * COUNTS * COUNTS * 2


def counted_bin(first: int, count: int, followed: int, newest: bool) -> int:
    """Number of the bin of a candidate that came after `count` of the `followed` occurrences of a match.

    first: the first bin of the match. newest: whether the candidate came after the latest of them.
    """
    rest = max(followed - count, 0)
    return first + (class_of(count, _COUNT_CLASSES) * COUNTS + class_of(rest, _COUNT_CLASSES)) * 2 + newest


def copied_bin(source: int, length: int, depth: int) -> int:
    """Number of the bin of the token that comes `depth` tokens after the first one in a copy."""
    return match_bins(source, 0, length) + min(depth, COUNTS - 1) * COUNTS * 2


def share_bin(count: int, total: int) -> int:
    """Number of the bin for the share count / total of a token: about twice the logarithm of its inverse."""
    twice, one_of = 0, total // count if count else (1 << 32) - 1
    while one_of > 1 and twice < SHARES - 2:
        one_of //= 2
        twice += 2
    if total >> twice // 2 > count + count // 2:
        twice += 1
    return BINS + min(twice, SHARES - 1)


def token_hash(order: int, candidate: int, last: int, before: int) -> int:
    """Entry of token table `order` for a candidate after the tokens `before`, `last` (-1: none)."""
    low = (1 << 32) - 1
    value = candidate * 0x9E3779B1 & low
    if order >= 1:
        value = (value ^ last & low) * 0x85EBCA6B & low
    if order >= 2:
        value = (value ^ value >> 15 ^ before & low) * 0xC2B2AE35 & low
    return value >> 19


def successor_bin(order: int, times: int, is_it: bool) -> int:
    """The bin of a candidate if a successor came `times` times. is_it: whether the candidate is that successor."""
    return SUCCESSOR_BINS + (order * (MOST_SEEN + 1) + times) * 2 + is_it


def successor_hash(order: int, last: Sequence[int]) -> tuple[int, int]:
    """The entry of table `order` for the last tokens, the latest first, and the key that it must have."""
    low = (1 << 32) - 1
    value = last[0] * 0x9E3779B1 & low
    for token in last[1 : KEYS[order]]:
        value = (value ^ value >> 15 ^ token & low) * 0x85EBCA6B & low
    value ^= value >> 13
    return value >> 18, value & 0xFFFF


def probability(entry: int) -> int:
    """Probability of 12 bits that an adaptive mean holds, 1 .. ONE - 1."""
    return max(entry >> 20, 1)


def trust(entry: int) -> int:
    """seen / (seen + 1), of 256."""
    seen = entry & 1023
    return 256 * seen // (seen + 1)


def divided(value: int, by: int) -> int:
    """value / by, rounded towards zero as in C."""
    return value // by if value >= 0 else -(-value // by)


def updated(entry: int, outcome: bool) -> int:
    """An adaptive mean after one more outcome."""
    mean, seen = entry >> 10, entry & 1023
    mean += divided((((1 << 22) - 1 if outcome else 0) - mean) * 2, 2 * seen + 3)
    return mean << 10 | min(seen + 1, LIMIT)


@functools.cache
def _prior(rule: str) -> npt.NDArray[np.uint32]:
    """The tables of a new pool, one after the other, as in a saved pool."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pool")
        sam_core.Pool(rule=rule).save(path)
        return np.frombuffer(path.read_bytes(), np.uint32, TABLES[-1], HEADER_BYTES)


class Model:
    """The tables, at first those of a new pool. Only the C sources contain these guessed numbers."""

    def __init__(self, rule: str) -> None:
        bins, tokens, weights, _ = np.split(_prior(rule), TABLES[:-1])
        self.bins: list[int] = bins.tolist()
        self.tokens: list[list[int]] = tokens.reshape(TOKENS, HASHES).tolist()
        self.weights: list[list[int]] = weights.view(np.int32).reshape(SETS, INPUTS).tolist()
        # (token, key, asked, seen) by order: see model_successor in csrc/model.h.
        self.successors = [[(0, 0, 0, 0)] * SUCCESSORS for _ in range(ORDERS)]

    def successor(self, order: int, last: Sequence[int]) -> tuple[int, int]:
        """Return what followed the last tokens (the latest first) in table `order`, and how often; (-1, 0): unknown."""
        at, key = successor_hash(order, last)
        token, found, _, seen = self.successors[order][at]
        return (token, seen) if seen and found == key else (-1, 0)

    def learn_successor(self, last: Sequence[int], token: int) -> None:
        """Learn that `token` came after the tokens `last`."""
        for order, table in enumerate(self.successors):
            at, key = successor_hash(order, last)
            known, found, asked, seen = table[at]
            if found != key:  # other tokens own the entry and keep it while it is of use
                if seen > 1 and asked < PATIENCE:
                    table[at] = known, found, asked + 1, seen
                    continue
                seen = 0
            if seen and known == token:
                table[at] = token, key, 0, min(seen + 1, MOST_SEEN)
            elif seen > 1:
                table[at] = known, key, 0, seen // 2
            else:
                table[at] = token, key, 0, 1

    def learned(self) -> npt.NDArray[np.uint32]:
        """Return all tables, one after the other, as in the C."""
        entries = [entry for table in self.successors for entry in table]
        successors = [(token, key << 16 | asked << 8 | seen) for token, key, asked, seen in entries]
        tables = self.bins, self.tokens, self.weights, successors
        return np.concatenate([np.array(table, np.int64).astype(np.uint32).ravel() for table in tables])
