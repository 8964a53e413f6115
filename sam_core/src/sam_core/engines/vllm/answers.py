# SPDX-License-Identifier: Apache-2.0
"""Finds the end of an answer: steps may verify drafts beyond it, and an asynchronous engine may run steps beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt


def stop_tokens(params: Any) -> Set[int]:
    """The tokens that end an answer with these SamplingParams, as in vLLM's check_stop (v1/core/sched/utils.py)."""
    stops: Set[int] = frozenset(params.stop_token_ids or ()) if params.ignore_eos else params.all_stop_token_ids
    return stops


def tokens_of_answer(
    tokens: list[int],
    params: Any,
    stops: Set[int],
    answer: Sequence[int] | npt.NDArray[np.integer],
    max_new: int,
) -> list[int]:
    """The part of a step's tokens that belongs to the answer; empty if the answer was complete before.

    Args:
        tokens: the tokens that the step sampled for the request.
        params: its SamplingParams.
        stops: the `stop_tokens` of `params`.
        answer: the answer before the step.
        max_new: number of tokens that fit before `max_model_len`.
    """
    before = len(answer)
    if params.max_tokens is not None:
        max_new = min(max_new, params.max_tokens - before)
    if max_new <= 0 or (before and _ends(answer, [], params, stops)):
        return []
    for i in range(1, min(len(tokens), max_new) + 1):
        if _ends(answer, tokens[:i], params, stops):
            return tokens[:i]
    return tokens[:max_new]


def looks_for_repetition(params: Any) -> bool:
    """Whether an answer with these SamplingParams ends when its text repeats itself.

    vLLM 0.11 has no such parameter.
    """
    return getattr(params, "repetition_detection", None) is not None


def has_grammar(params: Any) -> bool:
    """Whether answers with these SamplingParams follow a grammar, which may end them."""
    outputs = getattr(params, "structured_outputs", None)
    return outputs is not None and not outputs.all_constraints_none()


def _ends(answer: Sequence[int] | npt.NDArray[np.integer], tokens: list[int], params: Any, stops: Set[int]) -> bool:
    """Whether the answer `answer` + `tokens` ends with its last token, for a reason other than its length."""
    if len(answer) + len(tokens) < params.min_tokens:
        return False
    if (tokens[-1] if tokens else int(answer[-1])) in stops:
        return True
    if not looks_for_repetition(params):
        return False
    from vllm.v1.core.sched.utils import check_sequence_repetition

    text = [*map(int, answer), *tokens]
    return bool(check_sequence_repetition(text, params.repetition_detection))


def certain_lengths(
    batch: Any, requests: Mapping[str, Any], sampled: Sequence[list[int]], max_model_len: int
) -> npt.NDArray[np.integer]:
    """The number of tokens of each row that belong to prompt and answer after a synchronous step: int [B].

    Args:
        batch: the runner's InputBatch of B requests, whose rows include the sampled tokens.
        requests: the states of its requests, by id.
        sampled: the tokens that the step sampled for each row.
    """
    lengths: npt.NDArray[np.integer] = batch.num_tokens_no_spec[: batch.num_reqs].copy()
    for row, tokens in enumerate(sampled):
        if len(tokens) > 1:  # a single token belongs to the answer: the scheduler knew of no end
            params = requests[batch.req_ids[row]].sampling_params
            start = int(lengths[row]) - len(tokens)
            answer = batch.token_ids_cpu[row, batch.num_prompt_tokens[row] : start]
            lengths[row] = start + len(
                tokens_of_answer(tokens, params, stop_tokens(params), answer, max_model_len - start)
            )
    return lengths
