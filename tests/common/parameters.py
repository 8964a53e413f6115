# SPDX-License-Identifier: Apache-2.0
"""Requests with all kinds of sampling parameters, to run in one batch."""

import random

import pytest
from schedule_draws import FAMILIES, NEED_TEXT, WORDS
from thinking import START

KINDS = ("repetition_penalty", "penalties", "allowed_token_ids", "min_tokens", "bad_words", "logprobs")
KINDS += ("prompt_logprobs", "min_p", "logit_bias")
"""The FAMILIES that every vLLM has."""
DRAWS = FAMILIES | {"stream_interval": lambda rng: {"stream_interval": 7, "detokenize": True}}


def requests(kind, kinds, num, longest, **common):
    """`num` prompts that begin to think, the second half repeating the first; their lengths; and their settings.

    kind: some requests have settings of this kind, or of any of `kinds` with "all"; common: settings of all requests,
    including temperature.
    """
    from vllm.sampling_params import RequestOutputKind

    rng = random.Random(1)
    prompts = [[rng.randrange(59) for _ in range(rng.randrange(4, 30))] + START for _ in range(num // 2 + 1)]
    lengths, each = [rng.randrange(20, longest) for _ in range(num)], []
    for number, length in enumerate(lengths):
        settings = {"seed": number} if common["temperature"] else {}
        for name in kinds if kind == "all" else [kind]:
            if rng.random() < (0.3 if kind == "all" else 0.6):
                settings |= DRAWS[name](rng) | ({"detokenize": True} if name in NEED_TEXT - {"bad_words"} else {})
        if "min_tokens" in settings:
            settings["min_tokens"] = min(settings["min_tokens"], length)
        if "n" in settings:  # else vLLM's last output holds one of the answers
            settings["output_kind"] = RequestOutputKind.FINAL_ONLY
        if "bad_words" in settings:  # engines without a tokenizer need the tokens
            settings["_bad_words_token_ids"] = [[WORDS.index(word)] for word in settings["bad_words"]]
        each.append(settings | common)
    return (prompts * 2)[:num], lengths, each


def same_log_probabilities(ours, theirs):
    """Compare lists with {token: log-probability} for each position of an answer or a prompt, or None."""
    for mine, expected in zip(ours, theirs, strict=True):
        assert (mine is None) == (expected is None)
        for at, values in zip(mine or (), expected or (), strict=True):
            assert at == (values and pytest.approx(values, abs=1e-4))
