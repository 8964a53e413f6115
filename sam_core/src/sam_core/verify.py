# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts on the device: two exact modes, vectorized, without host synchronisation.

All rows of a step are sampled in one pass, those of drafts and those behind them. Then a request keeps its drafts up to
the first that fails, and the token of that row.

`rejection` accepts a draft with the probability that the model gives it, and draws the last token from what the first
refused draft leaves, or behind the last draft from the model's law: one row of noise a request.

`seeded` samples every row with noise that depends on (request key, position, token) alone and accepts a draft while it
is what was sampled. The text then is the same whatever was drafted, drafts or none, and whoever shares the batch.

Shapes: B requests of a step, N >= 1 draft tokens of all of them one request after the other, R = N + B rows of logits,
of each request one a draft and one more, V tokens of the vocabulary, K the longest draft. `num_draft_tokens` has the
number of each request's drafts, on the host: what follows from them alone is computed there, as each operator costs a
launch. Token ids are int32 or int64. A row of probabilities sums to 1. Drafts are deterministic, as a suffix
automaton's are.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from sam_core.options import sampling_mode

PLACEHOLDER = -1
"""Fills the columns of an output after a request's last token."""


class _Rows:
    """Which row of logits is whose, made on the host, in one copy to the device.

    owner int64 [R]: the request of each row. draft int64 [R]: the draft that each row decides on, of the N; a
    request's last row has some draft, which never counts. of_draft bool [R]: whether it is not such a last row. index
    int64 [B, K + 1]: the row of each column; a column past a request's own has its last row. last int64 [B], count
    int64 [B, 1], column int64 [K + 1]. The arrays are owner and the column of each row on the host.
    """

    def __init__(self, num_draft_tokens: tuple[int, ...], device: torch.device) -> None:
        counts = np.array(num_draft_tokens, np.int64)
        batch, width, num_tokens = len(counts), max(num_draft_tokens) + 1, sum(num_draft_tokens)
        last = (counts + 1).cumsum() - 1
        columns, rows = np.arange(width), np.arange(num_tokens + batch)
        self.owner_array = np.repeat(np.arange(batch), counts + 1)
        self.column_array = rows - (last - counts)[self.owner_array]
        draft = np.minimum(rows - self.owner_array, num_tokens - 1)
        index = (last - counts)[:, None] + np.minimum(columns, counts[:, None])
        of_draft = self.column_array < counts[self.owner_array]
        arrays = [self.owner_array, draft, of_draft, index.ravel(), last, counts, columns]
        parts = _to_device(np.concatenate(arrays), device).split(list(map(len, arrays)))
        self.owner, self.draft, of_draft, index, self.last, count, self.column = parts
        self.of_draft, self.index, self.count = of_draft.bool(), index.view(batch, width), count.view(batch, 1)

    def drafted(self, draft_token_ids: torch.Tensor) -> torch.Tensor:
        """The draft that each row decides on: int32 [R]."""
        return draft_token_ids.int().index_select(0, self.draft)

    def accepted(self, accept: torch.Tensor) -> torch.Tensor:
        """Drafts of each request before the first that `accept` [R] refuses: int64 [B, 1]."""
        refused = torch.where(accept[self.index], self.column.shape[0], self.column)
        return refused.amin(1, keepdim=True).minimum(self.count)

    def tokens(self, drafted: torch.Tensor, accepted: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Accepted drafts, then `last` int32 [B, 1], then PLACEHOLDER: int32 [B, K + 1]."""
        emitted = drafted[self.index].scatter_(1, accepted, last)
        return torch.where(self.column <= accepted, emitted, PLACEHOLDER)


@functools.lru_cache(64)
def _rows(num_draft_tokens: tuple[int, ...], device: torch.device) -> _Rows:
    """Made once a step, and once for steps alike that follow each other."""
    return _Rows(num_draft_tokens, device)


def _to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy on the device, which the host does not wait for."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def per_row(values: torch.Tensor, num_draft_tokens: Sequence[int]) -> torch.Tensor:
    """Each request's value [B] for each of its rows of logits: [R]."""
    return values.index_select(0, _rows(tuple(num_draft_tokens), values.device).owner)


def keep_equal(sampled: torch.Tensor, draft_token_ids: torch.Tensor, num_draft_tokens: Sequence[int]) -> torch.Tensor:
    """Accept drafts while they are what their rows sampled, int64 [R]; the token of the next row ends the step.

    Returns int32 [B, K + 1], PLACEHOLDER after a request's last token.
    """
    rows = _rows(tuple(num_draft_tokens), sampled.device)
    drafted, sampled = rows.drafted(draft_token_ids), sampled.int()
    accepted = rows.accepted(drafted == sampled)
    return rows.tokens(drafted, accepted, sampled[rows.index.gather(1, accepted)])


# ---- mode rejection ------------------------------------------------------------------------------------------------

NOTHING = 2.0**-100
"""Weight of a refused draft: it wins where no other token has any, as no sum of rounded probabilities is exactly 1."""


class Draws(NamedTuple):
    """Random numbers of a step: uniform float32 [R] in [0, 1), and exponential float32 [B, V]."""

    uniform: torch.Tensor
    exponential: torch.Tensor


def draw(
    num_draft_tokens: Sequence[int], generators: Mapping[int, torch.Generator], vocabulary: int, device: torch.device
) -> Draws:
    """Draw for requests with these numbers of drafts; `generators` has those of the requests that own one.

    A request's own generator draws one uniform a draft, then V exponentials: without drafts what the engine draws.
    """
    batch = len(num_draft_tokens)
    uniform = torch.rand(sum(num_draft_tokens) + batch, device=device)
    exponential = torch.empty(batch, vocabulary, dtype=torch.float32, device=device)
    if len(generators) < batch:
        exponential.exponential_()
    if generators:
        parts = uniform.split([n + 1 for n in num_draft_tokens])
        for i, generator in generators.items():
            if num_draft_tokens[i]:
                parts[i][:-1].uniform_(generator=generator)
            exponential[i].exponential_(generator=generator)
    return Draws(uniform, exponential)


def rejection_sample(
    probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    num_draft_tokens: Sequence[int],
    draws: Draws,
    is_greedy: torch.Tensor | None = None,
    best: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of rejection sampling (Leviathan, Kalman and Matias 2023) for deterministic drafts.

    Of uniform draws in float32, 2**24 equally probable ones, the share p passes to within 2**-24; at p = 0 none does.

    probs float32 [R, V], changed in place; draft_token_ids [N]; is_greedy: bool [B], the requests whose token of each row is
    `best` int64 [R]; None: no request. Returns int32 [B, K + 1], PLACEHOLDER after a request's last token.
    """
    rows = _rows(tuple(num_draft_tokens), probs.device)
    drafted = rows.drafted(draft_token_ids)
    at = drafted.long().unsqueeze(1)
    p = probs.gather(1, at).squeeze(1)
    accept = draws.uniform < p
    if is_greedy is not None:
        best = best.int()
        accept = torch.where(per_row(is_greedy, num_draft_tokens), drafted == best, accept)
    accepted = rows.accepted(accept)
    ends = rows.index.gather(1, accepted)
    # a row at which a request ends before its last one has refused its draft
    probs.scatter_(1, at, torch.where(rows.of_draft, NOTHING, p).unsqueeze(1))
    weights = probs.index_select(0, ends.squeeze(1))
    last = weights.div_(draws.exponential).argmax(1, keepdim=True).int()
    if is_greedy is not None:
        last = torch.where(is_greedy.unsqueeze(1), best[ends], last)
    return rows.tokens(drafted, accepted, last)


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

    Positions are indexes in the text, prompt and answer. So the turns of a conversation, requests of their own with one
    seed, do not share noise.

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

    def sample(self, probs: torch.Tensor) -> torch.Tensor:
        """The token of each row of `probs` float32 [R, V]: int64 [R]."""
        return _race(probs, _noise(_to_device(self.starts(), self.device), probs.shape[1]))

    def starts(self) -> npt.NDArray[np.int64]:
        """What the host computes of it: a number of each row, [R]."""
        keys, positions = self.keys, self.first
        if self.num_draft_tokens and any(self.num_draft_tokens):
            rows = _rows(tuple(self.num_draft_tokens), self.device)
            keys, positions = keys[rows.owner_array], positions[rows.owner_array] + rows.column_array
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


def changes_logits(sampling_metadata: Any) -> bool:
    """Whether an engine's SamplingMetadata names what changes logits before temperature: penalties, bad words..."""
    thinking = getattr(sampling_metadata, "thinking_budget_state_holder", None)
    return bool(
        not sampling_metadata.no_penalties
        or sampling_metadata.allowed_token_ids_mask is not None
        or sampling_metadata.bad_words_token_ids
        or any(
            _active(processor, "min_toks", "biases") for processor in sampling_metadata.logitsprocs.non_argmax_invariant
        )
        or (thinking is not None and thinking.has_tracked_requests())
    )


def _active(processor: Any, *names: str) -> bool:
    """Whether an engine's logits processor has work; true of one that this does not know."""
    known = [getattr(processor, name) for name in names if hasattr(processor, name)]
    return any(known) or not known


GREEDY_TEMPERATURE = 1e-5
"""Requests below it are greedy, as in vLLM."""


def verify_step(
    logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    num_draft_tokens: Sequence[int],
    sampling_metadata: Any,
    apply_top_k_top_p: Callable[..., torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample and verify all rows of a step as its engine's SamplingMetadata says.

    Args:
        logits: float32 [R, V], changed in place.
        draft_token_ids: [N].
        num_draft_tokens: of each request.
        sampling_metadata: of its `generators` a Noise makes this mode seeded.
        apply_top_k_top_p: the engine's, called with logits, k and p.

    Returns:
        Tokens int32 [B, K + 1], PLACEHOLDER after a request's last one, and the logits that they were sampled from.
    """
    metadata = sampling_metadata
    best = None if metadata.all_random else logits.argmax(1)
    if metadata.all_greedy:
        return keep_equal(best, draft_token_ids, num_draft_tokens), logits
    temperature, top_k, top_p = (
        values if values is None else per_row(values, num_draft_tokens)
        for values in (metadata.temperature, metadata.top_k, metadata.top_p)
    )
    if best is not None:
        temperature = torch.where(temperature < GREEDY_TEMPERATURE, 1.0, temperature)
    logits.div_(temperature.unsqueeze(1))
    for processor in metadata.logitsprocs.argmax_invariant:
        if _active(processor, "min_p_count"):
            last = _rows(tuple(num_draft_tokens), logits.device).last
            logits.index_copy_(0, last, processor.apply(logits.index_select(0, last)))
    logits = apply_top_k_top_p(logits, top_k, top_p)
    probs = logits.softmax(dim=-1, dtype=torch.float32)
    is_greedy = None if best is None else metadata.temperature < GREEDY_TEMPERATURE
    if isinstance(metadata.generators, Noise):
        sampled = metadata.generators.sample(probs)
        if is_greedy is not None:
            sampled = torch.where(per_row(is_greedy, num_draft_tokens), best, sampled)
        return keep_equal(sampled, draft_token_ids, num_draft_tokens), logits
    draws = draw(num_draft_tokens, metadata.generators, probs.shape[1], probs.device)
    return rejection_sample(probs, draft_token_ids, num_draft_tokens, draws, is_greedy, best), logits


def first_rows(num_draft_tokens: Sequence[int]) -> list[int]:
    """The first row of each request among the N + B rows of logits: each has a row a draft and one more."""
    return list(itertools.accumulate((n + 1 for n in num_draft_tokens[:-1]), initial=0))


def row_tokens(output_token_ids: torch.Tensor, num_draft_tokens: Sequence[int]) -> torch.Tensor:
    """The token that each of the N + B rows of logits emitted, int64; 0 for rows behind a request's last token.

    output_token_ids: [B, K + 1] of verification.
    """
    rows = _rows(tuple(num_draft_tokens), output_token_ids.device)
    index = rows.owner_array * output_token_ids.shape[1] + rows.column_array
    index = _to_device(index, output_token_ids.device)
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
