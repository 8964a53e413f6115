# SPDX-License-Identifier: Apache-2.0
"""Recipes and evaluation count an answer as right by one rule in all pin sets."""

import pytest
from verl.utils.reward_score import default_compute_score

from llm_rl.rewards import compute_score, is_right


@pytest.mark.parametrize("source", ["math_dapo", "aime2024"])
@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("So.\nAnswer: 7", 1.0),
        ("So.\nAnswer: 8", -1.0),
        ("Answer: 7\nAnswer: 8", -1.0),
        ("Answer: `$7$`", 1.0),
        ("Answer:\n\n7", 1.0),
        ("Answer: 7 minutes", 1.0),
        ("Answer: The answer is $7$", 1.0),
        ("Answer: **7**", -1.0),
        ("Answer: 7\n" + "Let me check. " * 50, -1.0),
        ("So \\boxed{7}.", -1.0),
        ("So 7.", -1.0),
    ],
)
def test_a_mathematical_answer_is_right_by_its_line_alone(source, answer, score):
    found = compute_score(source, answer, "7", extra_info=None)
    assert (found["score"], found["acc"]) == (score, score > 0)
    assert is_right(source, answer, "7") is found["acc"]
    if "boxed" in answer:
        assert default_compute_score(source, answer, "7")["score"] == 1.0, "verl has changed its rule"
    else:
        assert found == default_compute_score(source, answer, "7")


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [("openai/gsm8k", "#### 7", "#### 8"), ("HuggingFaceH4/MATH-500", "\\boxed{7}", "Answer: 7")],
)
def test_other_sources_are_scored_as_verl_does(source, right, wrong):
    for answer in (right, wrong):
        assert compute_score(source, answer, "7") == default_compute_score(source, answer, "7") == (answer == right)
        assert is_right(source, answer, "7") is (answer == right)
