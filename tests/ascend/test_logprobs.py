# SPDX-License-Identifier: Apache-2.0
"""Tests of requests with penalties and limits. Drafts do not change them, or they are excluded and counted."""

import pytest
from ascend_engine import OLD
from engine_checks import speculated
from tiny_qwen3 import VOCAB

LIMITED = [
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"allowed_token_ids": list(range(0, VOCAB, 3))},
    {"min_tokens": 20, "stop_token_ids": list(range(0, VOCAB, 2))},
]


@pytest.mark.skipif(OLD, reason="with 0.11 they are not drafted: the next test")
def test_requests_with_penalties_and_limits_are_exact(plain, sam, prompts):
    few = [prompts[1]] * len(LIMITED)
    assert sam.run(few, each=LIMITED) == plain.run(few, each=LIMITED)
    speculated(sam)
    for limits in LIMITED[1:4]:
        assert sam.run(few[:1], each=[limits]) == plain.run(few[:1], each=[limits])
        speculated(sam)
    assert not any(n for name, n in sam.drafter().items() if name.startswith("excluded_"))


@pytest.mark.skipif(not OLD, reason="vLLM 0.23 verifies their drafts, or refuses such requests where drafts are on")
def test_excluded_requests_are_exact_and_counted(plain, sam, prompts):
    few = [prompts[1]] * 7
    special = [*LIMITED, {"logit_bias": {"5": 4.0}}, {"min_p": 0.1, "temperature": 0.01}]
    before = sam.drafter()
    assert sam.run(few, each=special) == plain.run(few, each=special)
    speculated(sam)
    counted = {name: n - before[name] for name, n in sam.drafter().items() if name.startswith("excluded_")}
    assert counted == {
        "excluded_penalties": 2,
        "excluded_min_p": 1,
        "excluded_min_tokens": 1,
        "excluded_logit_bias": 1,
        "excluded_bad_words": 0,
        "excluded_allowed_token_ids": 1,
    }
