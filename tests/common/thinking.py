# SPDX-License-Identifier: Apache-2.0
"""Reasoning delimited by token ids, for models without a tokenizer."""

START, END = [60], [61]


def reasoning():
    """vLLM's ReasoningConfig, as if a tokenizer encoded the delimiters as these token ids."""
    from vllm.config.reasoning import ReasoningConfig

    config = ReasoningConfig(reasoning_start_str="<think>", reasoning_end_str="</think>")
    config._reasoning_start_token_ids, config._reasoning_end_token_ids = START, END
    config._natural_reasoning_end_token_ids = END  # vLLM 0.32
    return config
