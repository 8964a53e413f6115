# SPDX-License-Identifier: Apache-2.0
"""The scorer of evaluations: what it reads as the result of an answer, and which results are the same."""

import itertools

import pytest

from llm_rl.evaluation import scores

GSM8K, MATH = "openai/gsm8k", "HuggingFaceH4/MATH-500"


@pytest.mark.parametrize(
    ("source", "answer", "truth", "right"),
    [
        (GSM8K, "She has 12 left.\n#### 12", "12", True),
        (GSM8K, "#### 12\nNo, again.\n#### 13", "13", True),
        (GSM8K, "#### $1,234.50", "1234.5", True),
        (GSM8K, "#### none", "0", False),
        (GSM8K, "#### 1.5", "15", False),
        (GSM8K, "so \\boxed{12}", "12", True),
        (MATH, "so $\\boxed{\\frac{1}{2}}$.", "\\dfrac12", True),
        (MATH, "\\boxed{1} or rather \\boxed{\\frac{3}{\\sqrt{2}}}", "\\frac{3}{\\sqrt2}", True),
        (MATH, "\\boxed{12", "12", False),
        (MATH, "Answer: 12", "12", False),
        (GSM8K, "<think>#### 33</think>\n#### 34", "34", True),
        (GSM8K, "<think>#### 34</think>\nI am not sure.", "34", False),
    ],
)
def test_answers(source, answer, truth, right):
    assert scores.score(source, answer, truth) is right


SAME = [
    ("1,000", "1000", "1{,}000", "\\$1000"),
    ("-3", "\u22123"),
    ("0.5", "\\frac{1}{2}"),
    ("\\tfrac{-4}{6}", "-\\frac{2}{3}"),
    ("3\\frac{1}{2}", "7/2"),
    ("50\\%", "50"),
    ("90^\\circ", "90^{\\circ}"),
    ("5", "x = 5", "5 \\text{ cm}"),
    ("\\text{(B)}", "(B)"),
    ("\\left[0, \\frac12\\right)", "[0,0.5)"),
    ("1, 2, 3", "1,2,3"),
    ("\\{1,000, 2\\}", "\\{1,000,2\\}"),
    ("2\\sqrt 3", "2\\sqrt{3}"),
    ("52_{8}", "52_8"),
    ("17.", "17"),
]
OTHER = [("", ""), ("3", "-3"), ("0.333", "\\frac{1}{3}"), ("9007199254740993", "9007199254740992"), ("(1,2)", "(2,1)")]
OTHER += [("(1,2)", "[1,2]"), ("(1,000)", "1000"), ("\\frac{1}{0}", "1"), ("x+1", "x-1"), ("5a", "5")]


@pytest.mark.parametrize(("results", "same"), [*((each, True) for each in SAME), *((each, False) for each in OTHER)])
def test_which_results_are_equal(results, same):
    for one, other in itertools.permutations(results, 2):
        assert scores.equal(one, other) is same


def test_a_source_without_a_scorer_is_refused():
    with pytest.raises(ValueError, match="no scorer for data_source 'codeforces'; known: openai/gsm8k"):
        scores.score("codeforces", "Answer: 1", "1")
