# SPDX-License-Identifier: Apache-2.0
"""Extends vLLM's adaptive verification by confidences of new requests and current costs of steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from sam_core.engines.vllm.runner2 import Speculator

CURVE_INTERVAL = 64
"""Steps between two cost curves; all ranks of a tensor-parallel group receive the first rank's in the same step."""


class Verification:
    """vLLM's AdaptiveVerificationManager (gpu/spec_decode/adaptive_verification.py) in an engine with method sam.

    It chooses the draft tokens to verify that maximize the expected tokens per second of a step. In vLLM, a new request
    starts with confidences of 1, and the cost of steps is measured only at the engine's start. Here, a new request
    starts with the mean confidences of the running ones, which are 0 while drafting pauses, and costs are those of the
    latest steps.
    """

    def __init__(self, manager: Any, speculator: Speculator) -> None:
        self._manager, self._speculator = manager, speculator
        self._sizes: list[int] = []
        self._steps = 0
        self._mean = np.ones(speculator.k, np.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def add_request(self, req_idx: int) -> None:
        """Add a request to the batch, with this row of state."""
        self._manager.add_request(req_idx)
        self._begin([req_idx])

    def _begin(self, rows: list[int]) -> None:
        manager = self._manager
        manager._stale_confidences[manager._stale_idx].np[rows] = self._mean

    def batches_to_profile(self, capture_sizes: list[int]) -> Iterator[dict[str, int]]:
        """The engine's profiling steps, as arguments of _dummy_run, without context.

        In vLLM each row has a context of VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN tokens. As the draft tokens of
        a request share its context, large steps of few requests would look too expensive.
        """
        for batch in self._manager.batches_to_profile(capture_sizes):
            yield batch | {"context_len": 0}

    def set_initial_cost_curves(self, samples: list[Any]) -> None:
        """Set the cost of steps from the engine's profiling steps."""
        self._manager.set_initial_cost_curves(samples)
        seconds: dict[int, list[float]] = {}
        for sample in samples:
            seconds.setdefault(sample.num_target_tokens, []).append((sample.forward_ms + sample.drafter_ms) / 1000)
        self._sizes = sorted(seconds)
        if pauses := self._speculator.pauses:
            pauses.trials = self._sizes, [statistics.median(seconds[size]) for size in self._sizes]
        self._compile()

    def _compile(self) -> None:
        """Compile the choice of draft tokens ahead, since the first step of each case would take a second or more.

        torch.compile treats one request and one token as cases of their own.
        """
        from vllm.v1.worker.gpu.spec_decode import adaptive_verification

        manager, k = self._manager, self._speculator.k
        confidences = manager._confidence_probs
        for requests, tokens in ((2, 2), (2, 1), (1, 2), (1, 1)):
            if requests <= len(confidences) and tokens < requests * k:
                rows = torch.arange(requests, device=confidences.device)
                adaptive_verification._assign_draft_token_budget_compiled(
                    confidences, rows, manager._batch_draft_capacity[:requests].fill_(k), tokens, k
                )

    def get_num_tokens(self, num_tokens_per_req: dict[str, int], draft_tokens: dict[str, list[int]]) -> int:
        """The number of tokens of the next step, including the draft tokens that pay."""
        manager = self._manager
        if rows := [manager.req_states.req_id_to_index[req_id] for req_id in draft_tokens]:
            self._mean = manager._stale_confidences[manager._stale_idx].np[rows].mean(0)
        tokens: int = manager.get_num_tokens(num_tokens_per_req, draft_tokens)
        return tokens

    def record_confidences(self, confidence_probs: Any, input_batch: Any) -> None:
        """Record the confidences of a step's new drafts, float32 [B or more, k]."""
        joined = [*self._manager._pending_resets]
        self._manager.record_confidences(confidence_probs, input_batch)
        self._begin(joined)
        self._steps += 1
        if self._steps % CURVE_INTERVAL == 0 and self._sizes:
            pauses = self._speculator.pauses
            curve = pauses.curve(self._sizes) if pauses else None
            if curve := self._speculator.tp_group.broadcast_object(curve, src=0):
                self._manager.set_cost_curves([(1, 0.0)], curve)
