# SPDX-License-Identifier: Apache-2.0
"""Requests that are not drafted, because verification would not sample what the engine samples without drafts."""

from __future__ import annotations

from typing import Any

from sam_core.counters import EXCLUSION_REASONS


def exclusion_reason(params: Any) -> str | None:
    """Why a request is never drafted, one of EXCLUSION_REASONS, or None.

    vLLM 0.11 applies only temperature, top-k and top-p to the rows of drafts (v1/sample/rejection_sampler.py,
    compute_probs); whatever else changes the logits acts on the last row of a request alone. Log-probabilities change
    no logits.

    Args:
        params: the request's vLLM SamplingParams.
    """
    if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1:
        return "penalties"
    return next((name for name in EXCLUSION_REASONS[1:] if getattr(params, name)), None)
