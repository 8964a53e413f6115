# SPDX-License-Identifier: Apache-2.0
"""Which requests are excluded from drafting, and by which name."""

from types import SimpleNamespace

import pytest
from sam_core.counters import EXCLUSION_REASONS
from sam_core.engines.vllm.exclusion import exclusion_reason

PLAIN = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0, "min_tokens": 0}
PLAIN |= {"logit_bias": None, "bad_words": [], "allowed_token_ids": None, "logprobs": 5, "temperature": 0.7}


CHANGED = {"frequency_penalty": 0.1, "presence_penalty": -0.1, "repetition_penalty": 1.1, "min_p": 0.05}
CHANGED |= {"min_tokens": 3, "logit_bias": {3: 1.0}, "bad_words": ["x"], "allowed_token_ids": [1, 2]}


@pytest.mark.parametrize("name", CHANGED)
def test_each_reason(name):
    assert exclusion_reason(SimpleNamespace(**PLAIN)) is None
    reason = exclusion_reason(SimpleNamespace(**PLAIN | {name: CHANGED[name]}))
    assert reason == ("penalties" if name.endswith("penalty") else name)
    assert reason in EXCLUSION_REASONS
