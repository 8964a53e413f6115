# SPDX-License-Identifier: Apache-2.0
"""Seeds and keys of the noise that a request is sampled with (seeded verification)."""

from __future__ import annotations

GAMMA = 0x9E3779B97F4A7C15
"""Step of a SplitMix64 stream."""
_MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The 64-bit output of SplitMix64 (Steele, Lea and Flood 2014) at `state` modulo 2**64: a bijection."""
    z = state + GAMMA & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def to_int64(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return (word & _MASK ^ 1 << 63) - (1 << 63)


def request_seed(run_seed: int, step: int, prompt: int, sibling: int) -> int:
    """The seed, 0 <= seed < 2**63, of answer number `sibling` to prompt number `prompt` of rollout number `step`.

    An engine's request ids are random, and the answers to one prompt must differ. So a request's seed comes from its
    place in the run, which is the same in a second run and on every rank. Numbers are reduced modulo 2**64; if three
    are fixed, the 2**64 values of the fourth yield 2**63 different seeds.
    """
    state = 0
    for number in (run_seed, step, prompt, sibling):
        state = splitmix64(state + number)
    return state >> 1


def request_key(seed: int) -> int:
    """The 64-bit key, as an int64, of the noise of a request with this seed; different seeds have different keys.

    A negative seed stands for its two's complement, as in torch. Raises ValueError outside -2**63 <= seed < 2**64.
    """
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"seed {seed} has more than 64 bits: give a seed from -2**63 to 2**64 - 1")
    return to_int64(splitmix64(seed))
