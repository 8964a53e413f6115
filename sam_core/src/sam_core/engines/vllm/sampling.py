# SPDX-License-Identifier: Apache-2.0
"""Sampling for vLLM's runners, according to their SamplingMetadata and request states.

Shapes: B requests, N draft tokens, R = N + B rows of logits, V tokens, K the longest draft: see `sam_core.verify`.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sam_core.engines.vllm.config import sampling_mode
from sam_core.noise import Noise, check_device
from sam_core.seeds import request_key
from sam_core.verify import draw, keep_equal, per_row, rejection_sample, rows_of


def changes_logits(sampling_metadata: Any) -> bool:
    """Whether a step's SamplingMetadata changes logits before temperature, for example by penalties or bad words."""
    return bool(
        not sampling_metadata.no_penalties
        or sampling_metadata.allowed_token_ids_mask is not None
        or sampling_metadata.bad_words_token_ids
        or any(
            _active(processor, "min_toks", "biases") for processor in sampling_metadata.logitsprocs.non_argmax_invariant
        )
    )


def _active(processor: Any, *names: str) -> bool:
    """Whether any attribute in `names` of a logits processor shows that it has work; True if it has none of them."""
    work = [getattr(processor, name) for name in names if hasattr(processor, name)]
    return any(work) or not work


GREEDY_TEMPERATURE = 1e-5
"""Requests with a lower temperature are greedy, as in vLLM."""


def verify_step(
    logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    num_draft_tokens: Sequence[int],
    sampling_metadata: Any,
    apply_top_k_top_p: Callable[..., torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample and verify all rows of a step according to its SamplingMetadata.

    Args:
        logits: float32 [R, V], changed in place.
        draft_token_ids: [N].
        num_draft_tokens: the number of each request.
        sampling_metadata: a vLLM SamplingMetadata; if its `generators` is a Noise, sampling is seeded.
        apply_top_k_top_p: the engine's function of logits, k and p.

    Returns:
        Tokens int32 [B, K + 1], with PLACEHOLDER after a request's last one, and the logits they were sampled from.
    """
    metadata, num_draft_tokens = sampling_metadata, tuple(num_draft_tokens)
    best = None if metadata.all_random else logits.argmax(1)
    if metadata.all_greedy:
        return keep_equal(best, draft_token_ids, num_draft_tokens), logits
    temperature, top_k, top_p = (
        values if values is None else per_row(values, num_draft_tokens)
        for values in (metadata.temperature, metadata.top_k, metadata.top_p)
    )
    assert temperature is not None  # there is one unless all requests are greedy
    if best is not None:
        temperature = torch.where(temperature < GREEDY_TEMPERATURE, 1.0, temperature)
    logits.div_(temperature.unsqueeze(1))
    for processor in metadata.logitsprocs.argmax_invariant:
        if _active(processor, "min_p_count"):
            last = rows_of(num_draft_tokens, logits.device).last
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


def verify(
    rejection_sampler: Any,
    metadata: Any,
    logits: torch.Tensor,
    sampling_metadata: Any,
    apply_top_k_top_p: Callable[..., torch.Tensor],
) -> Any:
    """Sample and verify all rows of a step in one pass; replaces vLLM's RejectionSampler.forward.

    Args:
        rejection_sampler: vLLM's or vllm-ascend's, with the engine's `sampler`.
        metadata: the step's SpecDecodeMetadata.
        logits: [R, V].
        sampling_metadata, apply_top_k_top_p: as for `verify_step`.

    Returns:
        vLLM's SamplerOutput. Log-probabilities, if requested, have K + 1 rows per request.
    """
    from vllm.v1.outputs import SamplerOutput

    sampler, num_logprobs = rejection_sampler.sampler, sampling_metadata.max_num_logprobs
    own_token_ids = getattr(sampling_metadata, "logprob_token_ids", None)
    wants_logprobs = num_logprobs is not None or bool(own_token_ids)
    logits = logits.to(torch.float32)
    raw_logits = None
    if wants_logprobs and not getattr(rejection_sampler, "is_processed_logprobs_mode", False):
        raw_logits = logits.clone()
    if changes_logits(sampling_metadata):
        _apply_processors(rejection_sampler, metadata, logits, sampling_metadata)
    token_ids, logits = verify_step(
        logits, metadata.draft_token_ids, metadata.num_draft_tokens, sampling_metadata, apply_top_k_top_p
    )
    if not wants_logprobs:
        return SamplerOutput(sampled_token_ids=token_ids, logprobs_tensors=None)
    rows = rows_of(tuple(metadata.num_draft_tokens), logits.device)
    logprobs = (logits if raw_logits is None else raw_logits)[rows.index.flatten()]
    if not getattr(rejection_sampler, "is_logits_logprobs_mode", False):
        logprobs = sampler.compute_logprobs(logprobs)
    sampled = token_ids.flatten().clamp(min=0).long()
    if own_token_ids:
        tensors = sampler.gather_requested_logprobs(logprobs, num_logprobs, own_token_ids, sampled, token_ids.shape[1])
    else:
        tensors = sampler.gather_logprobs(logprobs, num_logprobs, sampled)
    return SamplerOutput(sampled_token_ids=token_ids, logprobs_tensors=tensors)


def _apply_processors(rejection_sampler: Any, metadata: Any, logits: torch.Tensor, sampling_metadata: Any) -> None:
    """Apply penalties and other processors to logits in place, to each row of drafts according to its own text."""
    sampler, target, bonus = rejection_sampler.sampler, metadata.target_logits_indices, metadata.bonus_logits_indices
    rows = logits[bonus]
    if hasattr(rejection_sampler, "apply_logits_processors"):
        logits[bonus] = sampler.apply_logits_processors(rows, sampling_metadata, predict_bonus_token=True)
        logits[target] = rejection_sampler.apply_logits_processors(logits[target], sampling_metadata, metadata)
        return
    # vLLM 0.11: requests that need this are not drafted (see exclusion.py) and have one row
    rows = sampler.apply_allowed_token_ids(rows, sampling_metadata)
    rows = sampler.apply_bad_words(rows, sampling_metadata)
    for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
        rows = processor.apply(rows)
    logits[bonus] = sampler.apply_penalties(rows, sampling_metadata)


MAX_CACHED_KEYS = 16_384
"""Maximum keys that RequestNoise caches, more than the requests that run at once."""


class RequestNoise:
    """Creates the Noise of each step.

    A request's key is derived from the seed in its sampling parameters. Without one it is derived from a hash of the
    engine's seed and the request's id, which is the same on every rank.
    """

    def __init__(self, engine_seed: int, device: torch.device) -> None:
        check_device(device)
        self.engine_seed = engine_seed
        self.device = device
        self._cached_key = functools.lru_cache(MAX_CACHED_KEYS)(self.key)

    def __call__(
        self, req_ids: Sequence[str], requests: Mapping[str, Any], num_draft_tokens: Sequence[int] | None
    ) -> Noise:
        """Noise for these requests; `requests` maps ids to states with sampling_params and num_tokens of the text."""
        states = [requests[req_id] for req_id in req_ids]
        keys = list(map(self._cached_key, req_ids, (state.sampling_params.seed for state in states)))
        return Noise(keys, [state.num_tokens for state in states], num_draft_tokens, self.device)

    def key(self, req_id: str, seed: int | None) -> int:
        """The key of one request."""
        if seed is None:
            text = f"{self.engine_seed} {req_id}".encode()
            seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return request_key(seed)


def request_noise(vllm_config: Any, device: torch.device) -> RequestNoise | None:
    """The RequestNoise of an engine with this VllmConfig; None if it does not sample by seed."""
    if sampling_mode(vllm_config) != "seeded":
        return None
    return RequestNoise(vllm_config.model_config.seed, device)


def renew_noise(tp_group: Any) -> None:
    """Seed torch and NumPy with one random seed on all ranks of the tensor-parallel group, which must all call this."""
    seed = secrets.randbits(32)
    if tp_group.world_size > 1:
        seed = tp_group.broadcast_object(seed, src=0)
    torch.manual_seed(seed)
    np.random.seed(seed)
