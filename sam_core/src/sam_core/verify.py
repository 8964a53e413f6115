# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts on the device: two exact modes, vectorized, without host synchronisation.

`rejection` is the rejection sampling of the engine: the same tokens for the same uniform and exponential draws. Unlike
the engine it recovers one row a request, the first rejected one.

`seeded` samples every row with noise that depends on (request key, position, token) alone and accepts a draft while it
is what was sampled. The text then is the same whatever was drafted, drafts or none, and whoever shares the batch.

Shapes: B requests of a step, N draft tokens of all of them one request after the other, V tokens of the vocabulary,
K the longest draft. `num_draft_tokens` has the number of each request's drafts, on the host: what follows from them
alone is computed there, as each operator costs a launch. Token ids are int32 or int64. A row of probabilities sums to 1.
`draft_probs` is None where drafts are deterministic, as a suffix automaton's are.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from sam_core.options import sampling_mode

PLACEHOLDER = -1
"""Fills the columns of an output after a request's last token."""


class _Rows:
    """Where the drafts of a step lie, made on the host, in one copy to the device.

    owner int64 [N]: the request of each draft. index int64 [B, K + 1]: the draft of each column; a column past a
    request's own drafts has some other draft, which never counts. count int64 [B, 1], column int64 [K + 1]. The arrays
    are owner and the column of each draft on the host.
    """

    def __init__(self, num_draft_tokens: tuple[int, ...], device: torch.device) -> None:
        counts = np.array(num_draft_tokens, np.int64)
        batch, width, num_tokens = len(counts), max(num_draft_tokens) + 1, sum(num_draft_tokens)
        starts = counts.cumsum() - counts
        columns = np.arange(width)
        self.owner_array = np.repeat(np.arange(batch), counts)
        self.column_array = np.arange(num_tokens) - starts[self.owner_array]
        index = np.minimum(starts[:, None] + columns, num_tokens - 1)
        parts = _to_device(np.concatenate([self.owner_array, index.ravel(), counts, columns]), device)
        self.owner, index, count, self.column = parts.split([num_tokens, batch * width, batch, width])
        self.index, self.count = index.view(batch, width), count.view(batch, 1)

    def accepted(self, accept: torch.Tensor) -> torch.Tensor:
        """Drafts of each request before the first that `accept` [N] refuses: int64 [B, 1]."""
        refused = torch.where(accept[self.index], self.column.shape[0], self.column)
        return refused.amin(1, keepdim=True).minimum(self.count)

    def refused(self, accepted: torch.Tensor) -> torch.Tensor:
        """Index of each request's first refused draft among the N; of some draft where all were accepted: [B, 1]."""
        return self.index.gather(1, accepted)

    def tokens(
        self, drafts: torch.Tensor, accepted: torch.Tensor, instead: torch.Tensor, bonus: torch.Tensor
    ) -> torch.Tensor:
        """Accepted drafts, then `instead` or, after the last draft, `bonus`, both int32 [B, 1]: int32 [B, K + 1]."""
        last = torch.where(accepted < self.count, instead, bonus.int())
        emitted = drafts.int()[self.index].scatter_(1, accepted, last)
        return torch.where(self.column <= accepted, emitted, PLACEHOLDER)


@functools.lru_cache(64)
def _rows(num_draft_tokens: tuple[int, ...], device: torch.device) -> _Rows:
    """Made once a step, and once for steps alike that follow each other."""
    return _Rows(num_draft_tokens, device)


def _to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy on the device, which the host does not wait for."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def per_draft(values: torch.Tensor, num_draft_tokens: Sequence[int]) -> torch.Tensor:
    """Each request's value [B] for each of its drafts: [N]."""
    return values.index_select(0, _rows(tuple(num_draft_tokens), values.device).owner)


def _accept(
    at: torch.Tensor, draft_probs: torch.Tensor | None, target_probs: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Whether each draft, its token at int64 [N, 1], passes its uniform draw in [0, 1): bool [N].

    Of draws in float32, 2**24 equally probable ones, the share p of them passes to within 2**-24; at p = 0 none does.
    """
    p = target_probs.gather(1, at).squeeze(1)
    if draft_probs is None:
        return uniform < p
    q = draft_probs.gather(1, at).squeeze(1)
    return (q > 0) & (uniform < p / q)


NOTHING = 2.0**-100
"""Weight of a refused draft: it wins where no other token has any, as no sum of rounded probabilities is exactly 1."""


def _residual(target: torch.Tensor, draft_probs: torch.Tensor | None, at: torch.Tensor) -> torch.Tensor:
    """Turn rows of target probabilities [R, V] in place into weights by which a recovered token is drawn.

    at: the drafted token of each, int64 [R, 1]. A row in which nothing is left is drawn from the draft, or with
    draft_probs from the target's probabilities.
    """
    if draft_probs is None:
        return target.scatter_(1, at, NOTHING)
    least = target * NOTHING
    return target.sub_(draft_probs).maximum(least)


# ---- mode rejection ------------------------------------------------------------------------------------------------


class Draws(NamedTuple):
    """Random numbers of a step: uniform float32 [N] in [0, 1), and exponential float32 [R, V].

    rows: the request of each row of `exponential`, int64 [R] on the device; None where R is B and they are in order.
    """

    uniform: torch.Tensor
    exponential: torch.Tensor
    rows: torch.Tensor | None


def draw(
    num_draft_tokens: Sequence[int], generators: Mapping[int, torch.Generator], vocabulary: int, device: torch.device
) -> Draws:
    """Draw for requests with these numbers of drafts; `generators` has those of the requests that own one.

    A request's own generator is used as the engine uses it, one uniform a draft and then V exponentials, and not at all
    in a step without drafts. From the default generator come the uniforms of all drafts, then exponentials for those
    requests alone that have drafts and no generator: where that is every request, the same numbers as the engine's on a
    device that draws float64 as float32, as an NPU does.
    """
    uniform = torch.rand(sum(num_draft_tokens), device=device)
    shared = [i for i, n in enumerate(num_draft_tokens) if n and i not in generators]
    own = [i for i, n in enumerate(num_draft_tokens) if n and i in generators]
    exponential = torch.empty(len(shared) + len(own), vocabulary, dtype=torch.float32, device=device)
    if shared:
        exponential[: len(shared)].exponential_()
    if own:
        parts = uniform.split(list(num_draft_tokens))
        for row, i in enumerate(own, len(shared)):  # a generator fills one tensor at a time
            parts[i].uniform_(generator=generators[i])
            exponential[row].exponential_(generator=generators[i])
    if shared + own == list(range(len(num_draft_tokens))):
        return Draws(uniform, exponential, None)
    return Draws(uniform, exponential, _to_device(np.array(shared + own, np.int64), uniform.device))


def rejection_sample(
    draft_token_ids: torch.Tensor,
    num_draft_tokens: Sequence[int],
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | bool,
    draws: Draws | None,
    target_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of rejection sampling: the engine's tokens for the same draws.

    draft_token_ids [N]; draft_probs float32 [N, V] or None; target_probs float32 [N, V], or logits where all requests
    are greedy; bonus_token_ids [B, 1]; is_greedy: bool [B], or one for all; draws: None where all are greedy;
    target_logits float32 [N, V]: what target_probs were made of, read where only some requests are greedy, as rounding
    may make probabilities equal whose logits are not. Returns int32 [B, K + 1], PLACEHOLDER after a request's last
    token.
    """
    if draft_token_ids.shape[0] == 0:
        return bonus_token_ids.int()
    rows = _rows(tuple(num_draft_tokens), draft_token_ids.device)
    if is_greedy is not False:
        best = (target_probs if target_logits is None else target_logits).argmax(1).int()
        greedy = draft_token_ids == best
    if is_greedy is True:
        accepted = rows.accepted(greedy)
        return rows.tokens(draft_token_ids, accepted, best[rows.refused(accepted)], bonus_token_ids)

    at = draft_token_ids.long().unsqueeze(1)
    accept = _accept(at, draft_probs, target_probs, draws.uniform)
    if is_greedy is not False:
        accept = torch.where(is_greedy.index_select(0, rows.owner), greedy, accept)
    accepted = rows.accepted(accept)
    refused = rows.refused(accepted)
    row = refused.squeeze(1)
    if draws.rows is not None:
        row = row[draws.rows]
    residual = _residual(
        target_probs.index_select(0, row),
        None if draft_probs is None else draft_probs.index_select(0, row),
        at.index_select(0, row),
    )
    instead = residual.div_(draws.exponential).argmax(1, keepdim=True).int()
    if draws.rows is not None:
        instead = instead.new_zeros(refused.shape).index_copy_(0, draws.rows, instead)
    if is_greedy is not False:
        instead = torch.where(is_greedy.unsqueeze(1), best[refused], instead)
    return rows.tokens(draft_token_ids, accepted, instead, bonus_token_ids)


# ---- mode seeded ---------------------------------------------------------------------------------------------------

BLOCK = 128
"""Tokens a block of the vocabulary. Noise is made for a row's V / BLOCK blocks and one block's tokens only."""
GAMMA = 0x9E3779B97F4A7C15
"""Step of a stream, as SplitMix64's."""
MIXER = 0xD6E8FEB86659FD93
"""degski's multiplier (gist.github.com/degski/6e2069d6035ae04d5d6f64981c995ec2)."""
STRIDE = 0xD1342543DE82EF95
"""Between the unmixed states of successive positions; odd, so that positions differ, and no small multiple of GAMMA."""


def _signed(word: int) -> int:
    """The int64 that has the bits of a 64-bit word."""
    return (word & (1 << 64) - 1 ^ 1 << 63) - (1 << 63)


def _swap(z: torch.Tensor) -> torch.Tensor:
    """The words of an int64 tensor with their halves swapped."""
    return z.unsqueeze(-1).view(torch.int32).flip(-1).view(torch.int64).squeeze(-1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    """A bijection of 64-bit words, int64, of which the top 32 bits are mixed: twice z ^= z >> 32; z *= MIXER.

    It is degski's hash without its last step, z ^= z >> 32, which does not reach the top bits. The shift is a swap of
    halves, as shifts of integers run on the AICPU of a 910C.
    """
    for _ in range(2):
        z = (z ^ _swap(z) & (1 << 32) - 1) * _signed(MIXER)
    return z


def request_key(seed: int) -> int:
    """The 64-bit key, as an int64, of the noise of a request with this seed; different for different seeds.

    A negative seed is that of its two's complement, as in torch. Raises ValueError outside -2**63 <= seed < 2**64.
    """
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"seed {seed} has more than 64 bits: give a seed from -2**63 to 2**64 - 1")
    mask = (1 << 64) - 1
    z = seed + GAMMA & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return _signed(z ^ z >> 31)


def _start(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The state at which the stream of (key, position) starts, int64 of the tensors' shape."""
    return _mix(keys + positions.long() * _signed(STRIDE))


def _start_array(keys: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same on the host."""
    z = keys.view(np.uint64) + positions.view(np.uint64) * np.uint64(STRIDE)
    for _ in range(2):
        z = (z ^ z >> np.uint64(32)) * np.uint64(MIXER)
    return z.view(np.int64)


@functools.lru_cache(8)
def _steps(length: int, device: torch.device) -> torch.Tensor:
    """Multiples 1..length of GAMMA: int64 [length]."""
    return torch.arange(1, length + 1, device=device) * _signed(GAMMA)


def _words(start: torch.Tensor, length: int) -> torch.Tensor:
    """Uniform 31-bit words int32 [N, length], word i of a row a function of (start, i).

    A row hashes a counter that starts at a hash of its key and position, as SplitMix64 does (Steele, Lea and Flood
    2014). Integer arithmetic modulo 2**64 on little-endian words: the same on every device and in every batch.
    """
    states = start.unsqueeze(1) + _steps(length, start.device)
    return _mix(states).unsqueeze(-1).view(torch.int32)[..., 1] & (1 << 31) - 1


def _negated_exponentials(words: torch.Tensor) -> torch.Tensor:
    """Minus standard exponential draws, float32, from 31-bit words: log(1 - u), u the middle of 2**31 equal intervals.

    Finite and below zero. Small draws, which decide whether an improbable token wins, have all 31 bits; u is scaled by
    1 - 2**-24 for the largest ones, which float32 would round to 1.
    """
    return words.float().add_(0.5).mul_(-(2.0**-31) * (1 - 2.0**-24)).log1p_()


def _noise(start: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Minus exponential draws, float32, of rows that sample from a vocabulary: of its blocks, then of a block's tokens."""
    return _negated_exponentials(_words(start, -(-vocabulary // BLOCK) + BLOCK))


@functools.lru_cache(64)
def _arange(length: int, device: torch.device) -> torch.Tensor:
    return torch.arange(length, device=device)


def _race(probs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The token of each row of `probs` float32 [N, V] that wins by its row of `noise`: int64 [N]."""
    num_tokens, vocabulary = probs.shape
    if vocabulary % BLOCK:
        probs = F.pad(probs, (0, -vocabulary % BLOCK))
    blocks = probs.unflatten(1, (-1, BLOCK))
    block = (blocks.sum(2) / noise[:, :-BLOCK]).argmin(1)
    members = blocks[_arange(num_tokens, probs.device), block]
    return (members / noise[:, -BLOCK:]).argmin(1).add(block, alpha=BLOCK)


def seeded_sample(probs: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Sample a token of each row of `probs` float32 [N, V] by the noise of keys int64 [N] at positions [N]: int64 [N].

    An exponential race, argmax p / E, first between blocks of BLOCK tokens by the sum of their probabilities, then
    between the tokens of the block that won: the token's law is `probs`, to within 1e-7 in total variation, and the
    vocabulary is read once. A token of probability 0 never wins. Close distributions give the same token with a
    probability of about one minus twice their distance, as the noise is the same.
    """
    return _race(probs, _noise(_start(keys, positions), probs.shape[1]))


class Noise:
    """Seeded noise of a step's requests, in the place of an engine's generators: `seeded_sample`'s.

    It is that of every row that the step samples, of drafts and of bonus tokens, and made once, when the first of them
    is sampled. Positions are indexes in the text, prompt and answer. So the turns of a conversation, requests of their
    own with one seed, do not share noise.

    Args:
        keys: int64 [B] on the host.
        first: int64 [B] on the host: position of the first token that the step samples of each request.
        num_draft_tokens: of each request; None: no drafts.
        device: of the probabilities.
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
        self._made: tuple[int, torch.Tensor] | None = None

    def sample(self, probs: torch.Tensor) -> torch.Tensor:
        """The token behind each request's drafts from `probs` [B, V]: int64 [B]."""
        return _race(probs, self._of(probs.shape[1])[-len(self.keys) :])

    def verify(
        self,
        target_probs: torch.Tensor,
        draft_token_ids: torch.Tensor,
        bonus_token_ids: torch.Tensor,
        is_greedy: torch.Tensor | bool,
        target_logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One step of seeded verification.

        target_probs float32 [N, V], or logits where all requests are greedy; draft_token_ids [N]; bonus_token_ids
        [B, 1]: what `sample` gave, or the best tokens; is_greedy: bool [B], or one for all; target_logits float32
        [N, V]: as for `rejection_sample`. Returns int32 [B, K + 1], PLACEHOLDER after a request's last token.
        """
        if draft_token_ids.shape[0] == 0:
            return bonus_token_ids.int()
        rows = _rows(tuple(self.num_draft_tokens), draft_token_ids.device)
        if is_greedy is True:
            sampled = target_probs.argmax(1)
        else:
            sampled = _race(target_probs, self._of(target_probs.shape[1])[: -len(self.keys)])
            if is_greedy is not False:
                best = (target_probs if target_logits is None else target_logits).argmax(1)
                sampled = torch.where(is_greedy.index_select(0, rows.owner), best, sampled)
        sampled = sampled.int()
        accepted = rows.accepted(draft_token_ids == sampled)
        return rows.tokens(draft_token_ids, accepted, sampled[rows.refused(accepted)], bonus_token_ids)

    def _of(self, vocabulary: int) -> torch.Tensor:
        """[N + B, ...]: rows of drafts, then those behind them."""
        if self._made is None or self._made[0] != vocabulary:
            self._made = vocabulary, _noise(_to_device(self.starts(), self.device), vocabulary)
        return self._made[1]

    def starts(self) -> npt.NDArray[np.int64]:
        """What the host computes of it: a number of each row, [N + B]."""
        keys, positions = self.keys, self.first
        if self.num_draft_tokens and any(self.num_draft_tokens):
            rows = _rows(tuple(self.num_draft_tokens), self.device)
            keys = np.concatenate([keys[rows.owner_array], keys])
            drafts = positions[rows.owner_array] + rows.column_array
            positions = np.concatenate([drafts, positions + self.num_draft_tokens])
        return _start_array(keys, positions)


def check_device(device: torch.device | str) -> None:
    """Raise RuntimeError unless the device computes the noise of mode seeded as the CPU does. Synchronises.

    Words must be equal, exponentials close, small ones too: log(1 + x) of an x below 2**-24 is not 0.
    """
    keys = torch.tensor([_signed(STRIDE * i) for i in range(1, 65)])
    positions = torch.arange(64, dtype=torch.int32)
    starts = _start(keys.to(device), positions.to(device))
    if not torch.equal(_words(starts, 64).cpu(), _words(_start(keys, positions), 64)):
        raise RuntimeError(
            f"64-bit integers on {device} do not wrap as those of the CPU do, so seeded verification would sample from "
            "a wrong distribution there: use verify: rejection"
        )
    words = torch.tensor([0, 1, 2, 77, *(2**bit - 1 for bit in range(8, 32))], dtype=torch.int32)
    found = _negated_exponentials(words.to(device)).cpu()
    if not torch.allclose(found, _negated_exponentials(words), rtol=1e-4, atol=0):
        raise RuntimeError(
            f"log1p on {device} is not that of the CPU, so seeded verification would sample from a wrong distribution "
            "there: use verify: rejection"
        )


# ---- what an engine's runner hands over ----------------------------------------------------------------------------


def first_rows(num_draft_tokens: Sequence[int]) -> list[int]:
    """The first row of each request among the N + B rows of logits: each has a row a draft and one more."""
    return list(itertools.accumulate((n + 1 for n in num_draft_tokens[:-1]), initial=0))


def row_tokens(output_token_ids: torch.Tensor, num_draft_tokens: Sequence[int]) -> torch.Tensor:
    """The token that each of the N + B rows of logits emitted, int64; 0 for rows behind a request's last token.

    output_token_ids: [B, K + 1] of verification.
    """
    width = output_token_ids.shape[1]
    index = [i * width + j for i, n in enumerate(num_draft_tokens) for j in range(n + 1)]
    index = _to_device(np.array(index, np.int64), output_token_ids.device)
    return output_token_ids.flatten()[index].long().clamp(min=0)


KEPT_KEYS = 16_384
"""Keys that RequestNoise keeps, those asked for last; more than requests run at once."""


class RequestNoise:
    """Makes the Noise of each step.

    A request's key is its sampling parameters' seed, or without one a hash of the engine's seed and the request's id,
    which is the same on every rank.
    """

    def __init__(self, engine_seed: int, device: torch.device) -> None:
        check_device(device)
        self.engine_seed = engine_seed
        self.device = device
        self._known_key = functools.lru_cache(KEPT_KEYS)(self.key)

    def __call__(
        self, req_ids: Sequence[str], requests: Mapping[str, Any], num_draft_tokens: Sequence[int] | None
    ) -> Noise:
        """Noise for these requests; `requests` has of each its sampling_params and num_tokens, prompt and answer."""
        states = [requests[req_id] for req_id in req_ids]
        keys = list(map(self._known_key, req_ids, (state.sampling_params.seed for state in states)))
        return Noise(keys, [state.num_tokens for state in states], num_draft_tokens, self.device)

    def key(self, req_id: str, seed: int | None) -> int:
        """The key of one request."""
        if seed is None:
            text = f"{self.engine_seed} {req_id}".encode()
            seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return request_key(seed)


def request_noise(vllm_config: Any, device: torch.device) -> RequestNoise | None:
    """The RequestNoise of an engine of this configuration; None where it does not sample by seed."""
    if sampling_mode(vllm_config) != "seeded":
        return None
    return RequestNoise(vllm_config.model_config.seed, device)
