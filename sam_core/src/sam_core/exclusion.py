# SPDX-License-Identifier: Apache-2.0
"""Requests that are not drafted, because verification would not sample what the engine samples without drafts."""

from __future__ import annotations

from typing import Any

REASONS = ("penalties", "min_p", "min_tokens", "logit_bias", "bad_words", "allowed_token_ids")


def why_not(params: Any) -> str | None:
    """One of REASONS, or None where drafts change nothing.

    vLLM 0.11 applies to the rows of drafts temperature, top-k and top-p alone (v1/sample/rejection_sampler.py,
    compute_probs); whatever else changes the logits acts on the last row of a request only. Log-probabilities change
    no logits.

    Args:
        params: the request's vLLM SamplingParams.
    """
    if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1:
        return "penalties"
    return next((name for name in REASONS[1:] if getattr(params, name)), None)
