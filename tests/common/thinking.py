# SPDX-License-Identifier: Apache-2.0
"""Reasoning delimited by token ids, for models without a tokenizer."""

START = [60]


def reasoning(end=(61,), start=START):
    """vLLM's ReasoningConfig, as if a tokenizer encoded the delimiters as these token ids."""
    from vllm.config.reasoning import ReasoningConfig

    config = ReasoningConfig(reasoning_start_str="<think>", reasoning_end_str="</think>")
    config._reasoning_start_token_ids, config._reasoning_end_token_ids = list(start), list(end)
    config._natural_reasoning_end_token_ids = list(end)  # vLLM 0.32
    return config
