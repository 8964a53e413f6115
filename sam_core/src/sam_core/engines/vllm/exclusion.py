# SPDX-License-Identifier: Apache-2.0
"""Excludes requests from drafting if verification would not sample from the engine's distribution."""

from __future__ import annotations

from typing import Any

from sam_core.counters import EXCLUSION_REASONS


def exclusion_reason(params: Any) -> str | None:
    """Why a request is never drafted, one of EXCLUSION_REASONS, or None.

    To the rows of drafts vLLM 0.11 applies only temperature, top-k and top-p (v1/sample/rejection_sampler.py,
    compute_probs). All else that changes logits applies to a request's last row only. Log-probabilities change no
    logits.

    Args:
        params: the request's vLLM SamplingParams.
    """
    if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1:
        return "penalties"
    return next((name for name in EXCLUSION_REASONS[1:] if getattr(params, name)), None)
