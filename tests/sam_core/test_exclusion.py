# SPDX-License-Identifier: Apache-2.0
"""Which requests are excluded from drafting, and by which name."""

from types import SimpleNamespace

import pytest
from sam_core.counters import EXCLUSION_REASONS
from sam_core.engines.vllm.exclusion import exclusion_reason

PLAIN = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "min_tokens": 0,
    "logit_bias": None,
    "bad_words": [],
    "allowed_token_ids": None,
    "logprobs": 5,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("frequency_penalty", 0.1, "penalties"),
        ("presence_penalty", -0.1, "penalties"),
        ("repetition_penalty", 1.1, "penalties"),
        ("min_p", 0.05, "min_p"),
        ("min_tokens", 3, "min_tokens"),
        ("logit_bias", {3: 1.0}, "logit_bias"),
        ("bad_words", ["x"], "bad_words"),
        ("allowed_token_ids", [1, 2], "allowed_token_ids"),
    ],
)
def test_each_reason(name, value, reason):
    assert exclusion_reason(SimpleNamespace(**PLAIN)) is None
    assert exclusion_reason(SimpleNamespace(**PLAIN | {name: value})) == reason
    assert reason in EXCLUSION_REASONS
