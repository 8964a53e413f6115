# SPDX-License-Identifier: Apache-2.0
"""Where an answer ends. Asynchronous engines run steps beyond it until the scheduler knows of the end."""

from __future__ import annotations

from typing import Any


def stop_tokens(params: Any) -> set[int | None]:
    """The tokens that end an answer with these SamplingParams."""
    return {params.eos_token_id, *(params.stop_token_ids or ())}


def cut(
    tokens: list[int], params: Any, stops: set[int | None], num_tokens: int, last: int, num_places: int
) -> list[int]:
    """Those of a step's tokens that belong to the answer; none if it was complete before.

    Args:
        tokens: what the step sampled for the request.
        params: its SamplingParams; stops: their `stop_tokens`.
        num_tokens: the answer's tokens before them; last: the last of these, if there are any.
        num_places: tokens that the text may still take before `max_model_len`.
    """
    if params.max_tokens is not None:
        num_places = min(num_places, params.max_tokens - num_tokens)
    if num_places <= 0 or (num_tokens and last in stops and num_tokens >= params.min_tokens):
        return []
    for i, token in enumerate(tokens[:num_places], 1):
        if token in stops and num_tokens + i >= params.min_tokens:
            return tokens[:i]
    return tokens[:num_places]
