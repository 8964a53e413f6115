# SPDX-License-Identifier: Apache-2.0
"""Recipes count an answer as right by one rule in all pin sets."""

import pytest
from verl.utils.reward_score import default_compute_score

from llm_rl.rewards import compute_score


@pytest.mark.parametrize(
    ("answer", "score"), [("So.\nAnswer: 7", 1.0), ("So.\nAnswer: 8", -1.0), ("So \\boxed{7}.", -1.0), ("So 7.", -1.0)]
)
def test_a_mathematical_answer_is_right_by_its_line_alone(answer, score):
    found = compute_score("math_dapo", answer, "7", extra_info=None)
    assert (found["score"], found["acc"]) == (score, score > 0)
    if "boxed" in answer:
        assert default_compute_score("math_dapo", answer, "7")["score"] == 1.0, "verl has changed its rule"
    else:
        assert found == default_compute_score("math_dapo", answer, "7")


def test_other_sources_are_scored_as_verl_does():
    for answer in ("#### 7", "#### 8"):
        assert compute_score("openai/gsm8k", answer, "7") == default_compute_score("openai/gsm8k", answer, "7")
