# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts on the device: two exact modes, vectorized, without host synchronisation.

`rejection` is the rejection sampling of the engine: the same tokens for the same uniform and exponential draws. Unlike
the engine it recovers one row a request, the first rejected one.

`seeded` samples every row with noise that depends on (request key, position, token) alone and accepts a draft while it
is what was sampled. The text then is the same whatever was drafted, drafts or none, and whoever shares the batch.

Shapes: B requests of a step, N draft tokens of all of them one request after the other, V tokens of the vocabulary,
K the longest draft. `cu_num_draft_tokens` [B] holds the end of each request's drafts among the N. Token ids and counts
are int32 or int64. A row of probabilities sums to 1. `draft_probs` is None where drafts are deterministic, as a suffix
automaton's are.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

PLACEHOLDER = -1
"""Fills the columns of an output after a request's last token."""


class _Grid:
    """The drafts of a step as rows of columns 0..width-1, each one longer than the longest draft.

    A column past a request's own drafts holds some other draft, which never counts. A request whose end lies before its
    start has no tokens at all.
    """

    def __init__(self, drafts: torch.Tensor, ends: torch.Tensor, width: int) -> None:
        starts = F.pad(ends[:-1], (1, 0))
        self.drafts = drafts
        self.column = torch.arange(width, device=ends.device)
        self.start = starts.unsqueeze(1)
        self.count = (ends - starts).unsqueeze(1)
        self.index = self._flat(self.column)

    def _flat(self, column: torch.Tensor) -> torch.Tensor:
        return (self.start + column).clamp(max=self.drafts.shape[0] - 1)

    def accepted(self, accept: torch.Tensor) -> torch.Tensor:
        """Drafts before the first that `accept` [B, width] refuses: int64 [B, 1]."""
        return torch.where(accept, self.column.shape[0], self.column).amin(1, keepdim=True).minimum(self.count)

    def refused(self, accepted: torch.Tensor) -> torch.Tensor:
        """Index of each request's first refused draft among the N; of some draft where all were accepted: [B, 1]."""
        return self._flat(accepted)

    def tokens(
        self, accepted: torch.Tensor, instead: torch.Tensor, bonus: torch.Tensor, rest: torch.Tensor | int
    ) -> torch.Tensor:
        """Accepted drafts, then `instead` [B, 1] or, after the last draft, `bonus` [B, 1], then `rest`: [B, width]."""
        last = torch.where(accepted < self.count, instead, bonus)
        emitted = torch.where(self.column < accepted, self.drafts[self.index], last)
        return torch.where(self.column <= accepted, emitted, rest)


def _owners(ends: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The request of each draft token, int64 [num_tokens]; the last one for a token past all ends."""
    token = torch.arange(num_tokens, dtype=ends.dtype, device=ends.device)
    return (token.unsqueeze(1) >= ends).sum(1).clamp(max=ends.shape[0] - 1)


# ---- the engine's steps, one function each -------------------------------------------------------------------------


def expand(
    output: torch.Tensor, values: torch.Tensor, cu_num_tokens: torch.Tensor, replace_from: float, replace_to: float
) -> None:
    """Write each request's value [B] to its tokens in `output` [N], `replace_to` for `replace_from`.

    Tokens that belong to no request stay as they are.
    """
    num_tokens = output.shape[0]
    values = torch.where(values == replace_from, replace_to, values)[_owners(cu_num_tokens, num_tokens)]
    owned = torch.arange(num_tokens, device=output.device) < cu_num_tokens.amax()
    output.copy_(torch.where(owned, values, output))


def recover(
    output: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    q: torch.Tensor,
) -> None:
    """Write to `output` [N] what replaces each draft if it is rejected, given exponential draws q [B, V]."""
    residual = _residual(target_probs.clone(), draft_probs, draft_token_ids)
    output.copy_(residual.div_(q[_owners(cu_num_draft_tokens, output.shape[0])]).argmax(1))


def verify_random(
    output: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    recovered_token_ids: torch.Tensor,
    uniform_probs: torch.Tensor,
    is_greedy: torch.Tensor,
) -> None:
    """Write the tokens of requests that sample to `output` [B, K + 1], given uniform draws [N].

    Rows of greedy requests and columns after a request's last token stay as they are.
    """
    grid = _Grid(draft_token_ids, cu_num_draft_tokens, output.shape[1])
    accepted = grid.accepted(_accept(draft_token_ids, draft_probs, target_probs, uniform_probs)[grid.index])
    tokens = grid.tokens(accepted, recovered_token_ids[grid.refused(accepted)], bonus_token_ids, output)
    output.copy_(torch.where(is_greedy.unsqueeze(1), output, tokens))


def verify_greedy(
    output: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_argmax: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | None,
) -> None:
    """Write the tokens of greedy requests (None: all) to `output` [B, K + 1], given the best token of each row [N].

    Rows of other requests and columns after a request's last token stay as they are.
    """
    grid = _Grid(draft_token_ids, cu_num_draft_tokens, output.shape[1])
    accepted = grid.accepted((draft_token_ids == target_argmax)[grid.index])
    tokens = grid.tokens(accepted, target_argmax[grid.refused(accepted)], bonus_token_ids, output)
    output.copy_(tokens if is_greedy is None else torch.where(is_greedy.unsqueeze(1), tokens, output))


def _accept(
    drafts: torch.Tensor, draft_probs: torch.Tensor | None, target_probs: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Whether each draft passes its uniform draw in [0, 1): bool [N].

    Of draws in float32, 2**24 equally probable ones, the share p of them passes to within 2**-24; at p = 0 none does.
    """
    at = drafts.long().unsqueeze(1)
    p = target_probs.gather(1, at).squeeze(1)
    if draft_probs is None:
        return uniform < p
    q = draft_probs.gather(1, at).squeeze(1)
    return (q > 0) & (uniform < p / q)


NOTHING = 2.0**-100
"""Weight of a refused draft: it wins where no other token has any, as no sum of rounded probabilities is exactly 1."""


def _residual(target: torch.Tensor, draft_probs: torch.Tensor | None, drafts: torch.Tensor) -> torch.Tensor:
    """Turn rows of target probabilities [R, V] in place into weights by which a recovered token is drawn.

    A row in which nothing is left is drawn from the draft, or with draft_probs from the target's probabilities.
    """
    if draft_probs is None:
        return target.scatter_(1, drafts.long().unsqueeze(1), NOTHING)
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
    rows = torch.tensor(shared + own, pin_memory=uniform.device.type != "cpu")
    return Draws(uniform, exponential, rows.to(device, non_blocking=True))


def rejection_sample(
    draft_token_ids: torch.Tensor,
    max_spec_len: int,
    cu_num_draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    is_greedy: torch.Tensor | bool,
    draws: Draws | None,
    target_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of rejection sampling: the engine's tokens for the same draws.

    draft_token_ids [N]; max_spec_len: K; cu_num_draft_tokens [B]; draft_probs float32 [N, V] or None; target_probs
    float32 [N, V], or logits where all requests are greedy; bonus_token_ids [B, 1]; is_greedy: bool [B], or one for
    all; draws: None where all are greedy; target_logits float32 [N, V]: what target_probs were made of, read where only
    some requests are greedy, as rounding may make probabilities equal whose logits are not. Returns int32 [B, K + 1],
    PLACEHOLDER after a request's last token.
    """
    if draft_token_ids.shape[0] == 0:
        return F.pad(bonus_token_ids.int(), (0, max_spec_len), value=PLACEHOLDER)
    grid = _Grid(draft_token_ids, cu_num_draft_tokens, max_spec_len + 1)
    if is_greedy is not False:
        best = (target_probs if target_logits is None else target_logits).argmax(1)
        greedy = (draft_token_ids == best)[grid.index]
    if is_greedy is True:
        accepted = grid.accepted(greedy)
        return grid.tokens(accepted, best[grid.refused(accepted)], bonus_token_ids, PLACEHOLDER).int()

    accept = _accept(draft_token_ids, draft_probs, target_probs, draws.uniform)[grid.index]
    if is_greedy is not False:
        accept = torch.where(is_greedy.unsqueeze(1), greedy, accept)
    accepted = grid.accepted(accept)
    refused = grid.refused(accepted)
    row = refused.squeeze(1)
    if draws.rows is not None:
        row = row[draws.rows]
    residual = _residual(
        target_probs.index_select(0, row),
        None if draft_probs is None else draft_probs.index_select(0, row),
        draft_token_ids[row],
    )
    instead = residual.div_(draws.exponential).argmax(1)
    if draws.rows is not None:
        instead = instead.new_zeros(refused.shape[0]).index_copy_(0, draws.rows, instead)
    instead = instead.unsqueeze(1)
    if is_greedy is not False:
        instead = torch.where(is_greedy.unsqueeze(1), best[refused], instead)
    return grid.tokens(accepted, instead, bonus_token_ids, PLACEHOLDER).int()


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


def _words(keys: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
    """Uniform 31-bit words int32 [N, length], word i of a row a function of (key, position, i).

    A row hashes a counter that starts at a hash of its key and position, as SplitMix64 does (Steele, Lea and Flood
    2014). Integer arithmetic modulo 2**64 on little-endian words: the same on every device and in every batch.
    """
    state = _mix(keys + positions.long() * _signed(STRIDE))
    step = torch.arange(1, length + 1, device=keys.device) * _signed(GAMMA)
    return _mix(state.unsqueeze(1) + step).unsqueeze(-1).view(torch.int32)[..., 1] & (1 << 31) - 1


def _negated_exponentials(words: torch.Tensor) -> torch.Tensor:
    """Minus standard exponential draws, float32, from 31-bit words: log(1 - u), u the middle of 2**31 equal intervals.

    Finite and below zero. Small draws, which decide whether an improbable token wins, have all 31 bits; u is scaled by
    1 - 2**-24 for the largest ones, which float32 would round to 1.
    """
    return words.float().add_(0.5).mul_(-(2.0**-31) * (1 - 2.0**-24)).log1p_()


def seeded_sample(probs: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Sample a token of each row of `probs` float32 [N, V] by the noise of keys int64 [N] at positions [N]: int64 [N].

    An exponential race, argmax p / E, first between blocks of BLOCK tokens by the sum of their probabilities, then
    between the tokens of the block that won: the token's law is `probs`, to within 1e-7 in total variation, and the
    vocabulary is read once. A token of probability 0 never wins. Close distributions give the same token with a
    probability of about one minus twice their distance, as the noise is the same.
    """
    num_tokens, vocabulary = probs.shape
    if vocabulary % BLOCK:
        probs = F.pad(probs, (0, -vocabulary % BLOCK))
    blocks = probs.unflatten(1, (-1, BLOCK))
    noise = _negated_exponentials(_words(keys, positions, blocks.shape[1] + BLOCK))
    block = (blocks.sum(2) / noise[:, :-BLOCK]).argmin(1)
    members = blocks[torch.arange(num_tokens, device=probs.device), block]
    return block * BLOCK + (members / noise[:, -BLOCK:]).argmin(1)


def seeded_verify(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    keys: torch.Tensor,
    positions: torch.Tensor,
    max_spec_len: int,
    is_greedy: torch.Tensor | bool,
    target_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of seeded verification.

    target_probs float32 [N, V], or logits where all requests are greedy; draft_token_ids [N]; cu_num_draft_tokens [B];
    bonus_token_ids [B, 1]: what `seeded_sample` gave for each request at its position plus its number of drafts; keys
    int64 [B]; positions [B]: index in the text of the first token that this step samples; max_spec_len: K;
    is_greedy: bool [B], or one bool for all; target_logits float32 [N, V]: as for `rejection_sample`. Returns int32
    [B, K + 1], PLACEHOLDER after a request's last token.
    """
    num_tokens = draft_token_ids.shape[0]
    if num_tokens == 0:
        return F.pad(bonus_token_ids.int(), (0, max_spec_len), value=PLACEHOLDER)
    grid = _Grid(draft_token_ids, cu_num_draft_tokens, max_spec_len + 1)
    if is_greedy is True:
        sampled = target_probs.argmax(1)
    else:
        owner = _owners(cu_num_draft_tokens, num_tokens)
        first = (positions.unsqueeze(1) - grid.start)[owner].squeeze(1)
        place = first + torch.arange(num_tokens, device=first.device)
        sampled = seeded_sample(target_probs, keys[owner], place)
        if is_greedy is not False:
            best = (target_probs if target_logits is None else target_logits).argmax(1)
            sampled = torch.where(is_greedy[owner], best, sampled)
    accepted = grid.accepted((draft_token_ids == sampled)[grid.index])
    return grid.tokens(accepted, sampled[grid.refused(accepted)].int(), bonus_token_ids, PLACEHOLDER).int()


def check_device(device: torch.device | str) -> None:
    """Raise RuntimeError unless the device computes the noise of mode seeded as the CPU does. Synchronises.

    Words must be equal, exponentials close, small ones too: log(1 + x) of an x below 2**-24 is not 0.
    """
    keys = torch.tensor([_signed(STRIDE * i) for i in range(1, 65)])
    positions = torch.arange(64, dtype=torch.int32)
    if not torch.equal(_words(keys.to(device), positions.to(device), 64).cpu(), _words(keys, positions, 64)):
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
    index = torch.tensor(index, pin_memory=output_token_ids.device.type != "cpu")
    index = index.to(output_token_ids.device, non_blocking=True)
    return output_token_ids.flatten()[index].long().clamp(min=0)


class Noise(NamedTuple):
    """Seeded noise of a step's requests, in the place of an engine's generators.

    keys int64 [B]; first, last int64 [B]: index in the text, prompt and answer, of the first and of the last token that
    the step may emit. So the turns of a conversation, requests of their own with one seed, do not share noise.
    """

    keys: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor

    def sample(self, probs: torch.Tensor) -> torch.Tensor:
        """The last token of each request from `probs` [B, V]: int64 [B]."""
        return seeded_sample(probs, self.keys, self.last)


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
        self._of: tuple[list[str], list[int | None]] = [], []  # requests and seeds of the last step
        self._keys = torch.empty(0, dtype=torch.int64)  # theirs

    def __call__(
        self, req_ids: Sequence[str], requests: Mapping[str, Any], num_draft_tokens: Sequence[int] | None
    ) -> Noise:
        """Noise for these requests; `requests` has of each its sampling_params and num_tokens, prompt and answer."""
        states = [requests[req_id] for req_id in req_ids]
        of = list(req_ids), [state.sampling_params.seed for state in states]
        if of != self._of:
            keys = self._table(1, len(states))
            keys.numpy()[:] = list(map(self._known_key, *of))
            self._of, self._keys = of, keys.to(self.device, non_blocking=True)[0]
        places = self._table(2, len(states))
        first, last = places.numpy()
        first[:] = [state.num_tokens for state in states]
        last[:] = first + np.array(num_draft_tokens) if num_draft_tokens else first
        return Noise(self._keys, *places.to(self.device, non_blocking=True).unbind())

    def _table(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty((rows, columns), dtype=torch.int64, pin_memory=self.device.type != "cpu")

    def key(self, req_id: str, seed: int | None) -> int:
        """The key of one request."""
        if seed is None:
            text = f"{self.engine_seed} {req_id}".encode()
            seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return request_key(seed)
