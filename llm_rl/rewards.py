# SPDX-License-Identifier: Apache-2.0
"""The reward of an answer, by one rule in all pin sets: verl 0.6.1's, and by the article's figures the article's.

verl 0.9.1 also takes what stands in \\boxed{} where a mathematical answer has no line "Answer:", so untrained models
start from a higher reward.
"""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, **others: Any) -> dict[str, Any] | float:
    """What verl's default_compute_score returns, for sources of math_dapo without regard to \\boxed{}.

    Returns:
        score: 1.0 or -1.0; acc: whether the answer is right; pred: the answer as it was found. Other sources: as verl
        has it.
    """
    from verl.utils.reward_score import default_compute_score, math_dapo

    if data_source not in ("math", "math_dapo", "math_dapo_reasoning") and not data_source.startswith("aime"):
        return default_compute_score(data_source, solution_str, ground_truth, **others)
    right, found = math_dapo.is_correct_minerva(solution_str[-300:], ground_truth)
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": found}
