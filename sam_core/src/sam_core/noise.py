# SPDX-License-Identifier: Apache-2.0
"""Noise of seeded verification, which depends only on a request's key, the position in its text and the token.

N or R rows of probabilities over a vocabulary of V tokens, B requests: see `verify`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from sam_core.seeds import GAMMA, to_int64
from sam_core.verify import rows_of, to_device

BLOCK = 128
"""Tokens in a block of the vocabulary. A row needs noise only for its V / BLOCK blocks and the tokens of one block."""
MIXER = 0xD6E8FEB86659FD93
"""degski's multiplier (gist.github.com/degski/6e2069d6035ae04d5d6f64981c995ec2)."""
STRIDE = 0xD1342543DE82EF95
"""Distance between the unmixed states of successive positions: odd, so that all differ; no small multiple of GAMMA."""


def _halves(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high 32 bits of each word of a contiguous int64 tensor: int32 views, flat."""
    low, high = z.view(-1, 1).view(torch.int32).unbind(1)
    return low, high


def _mix(z: torch.Tensor) -> torch.Tensor:
    """A bijection of 64-bit words, int64, whose top 32 bits are well mixed: twice z ^= z >> 32; z *= MIXER. In place.

    It is degski's hash without its last step, z ^= z >> 32, which leaves the top bits as they are. Nothing is shifted,
    because integer shifts run on the AICPU of a 910C: the high half is applied to the low one.
    """
    low, high = _halves(z)
    for _ in range(2):
        low.bitwise_xor_(high)
        z.mul_(to_int64(MIXER))
    return z


def _start(keys: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The state at which the stream of (key, position) starts, the arrays' shape; computed on the host."""
    z = keys.view(np.uint64) + positions.view(np.uint64) * np.uint64(STRIDE)
    for _ in range(2):
        z = (z ^ z >> np.uint64(32)) * np.uint64(MIXER)
    return z.view(np.int64)


@functools.lru_cache(8)
def _steps(length: int, device: torch.device) -> torch.Tensor:
    """Multiples 1..length of GAMMA: int64 [length]."""
    return torch.arange(1, length + 1, device=device) * to_int64(GAMMA)


def _words(start: torch.Tensor, length: int) -> torch.Tensor:
    """Uniform 31-bit words, int32 [N, length]; word i of a row is a function of (start, i) alone.

    Each row hashes a counter that begins at `start`, as SplitMix64 does. Integer arithmetic modulo 2**64 on
    little-endian words gives the same result on every device and in every batch.
    """
    states = start.unsqueeze(1) + _steps(length, start.device)
    _, high = _halves(_mix(states))
    return (high & (1 << 31) - 1).view(states.shape)


def _negated_exponentials(words: torch.Tensor) -> torch.Tensor:
    """Minus standard exponential draws, float32, from 31-bit words: log(1 - u), u the middle of one of 2**31 intervals.

    Finite and below zero. Small draws, which decide whether an improbable token wins, have all 31 bits; the factor
    1 - 2**-24 keeps float32 from rounding the largest u to 1.
    """
    return words.float().add_(0.5).mul_(-(2.0**-31) * (1 - 2.0**-24)).log1p_()


def _noise(start: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Minus exponential draws, float32 [N, blocks + BLOCK]: for the blocks, then for the tokens of a block."""
    return _negated_exponentials(_words(start, -(-vocabulary // BLOCK) + BLOCK))


@functools.lru_cache(64)
def _arange(length: int, device: torch.device) -> torch.Tensor:
    return torch.arange(length, device=device)


def _race(probs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The token that wins in each row of `probs` float32 [N, V] with the same row of `noise`: int64 [N]."""
    num_tokens, vocabulary = probs.shape
    if vocabulary % BLOCK:
        probs = F.pad(probs, (0, -vocabulary % BLOCK))
    blocks = probs.unflatten(1, (-1, BLOCK))
    block = (blocks.sum(2) / noise[:, :-BLOCK]).argmin(1)
    members = blocks[_arange(num_tokens, probs.device), block]
    return (members / noise[:, -BLOCK:]).argmin(1).add(block, alpha=BLOCK)


class Noise:
    """The noise of the requests of a step, in place of an engine's generators.

    Positions are indexes in the whole text, prompt and answer, so that the turns of a conversation, which are separate
    requests with the same seed, do not share noise.

    Args:
        keys: int64 [B] on the host.
        first: int64 [B] on the host, position of the first token that the step samples for each request.
        num_draft_tokens: the number of each request; None: no drafts.
        device: that of the probabilities.
    """

    def __init__(
        self,
        keys: npt.ArrayLike,
        first: npt.ArrayLike,
        num_draft_tokens: Sequence[int] | None,
        device: torch.device | str,
    ) -> None:
        self.keys, self.first = np.array(keys, np.int64), np.array(first, np.int64)
        self.num_draft_tokens = num_draft_tokens
        self.device = torch.device(device)

    def sample(self, probs: torch.Tensor) -> torch.Tensor:
        """Sample a token from each row of `probs` float32 [R, V]: int64 [R].

        An exponential race, argmax p / E, first between blocks of BLOCK tokens by the sum of their probabilities, then
        between the tokens of the winning block. The token's distribution is `probs` to within 1e-7 in total variation,
        and the vocabulary is read once. A token of probability 0 never wins. Since the noise is the same, distributions
        that are close yield the same token with a probability of about one minus twice their distance.
        """
        return _race(probs, _noise(to_device(self.starts(), self.device), probs.shape[1]))

    def starts(self) -> npt.NDArray[np.int64]:
        """The state at which each row's stream starts, computed on the host: int64 [R]."""
        keys, positions = self.keys, self.first
        if self.num_draft_tokens and any(self.num_draft_tokens):
            rows = rows_of(tuple(self.num_draft_tokens), self.device)
            keys, positions = keys[rows.owner_array], positions[rows.owner_array] + rows.column_array
        return _start(keys, positions)


def check_device(device: torch.device | str) -> None:
    """Raise RuntimeError unless the device computes the noise as the CPU does. Synchronises.

    Words must be equal and exponentials close, including small ones: log(1 + x) must not be 0 for x below 2**-24.
    """
    starts = torch.from_numpy(_start(np.array([to_int64(STRIDE * i) for i in range(1, 65)]), np.arange(64)))
    if not torch.equal(_words(starts.to(device), 64).cpu(), _words(starts, 64)):
        raise RuntimeError(
            f"64-bit integers on {device} do not wrap as on the CPU, so seeded verification would sample from "
            "a wrong distribution there: use verify: rejection"
        )
    words = torch.tensor([0, 1, 2, 77, *(2**bit - 1 for bit in range(8, 32))], dtype=torch.int32)
    exponentials = _negated_exponentials(words.to(device)).cpu()
    if not torch.allclose(exponentials, _negated_exponentials(words), rtol=1e-4, atol=0):
        raise RuntimeError(
            f"log1p on {device} differs from that of the CPU, so seeded verification would sample from a wrong "
            "distribution there: use verify: rejection"
        )
