# SPDX-License-Identifier: Apache-2.0
"""The reward of an answer: in all pin sets the rule of verl 0.6.1 and, judging by its figures, of the article.

If a mathematical answer has no line "Answer:", verl 0.9.1 also accepts the content of \\boxed{}, so untrained models
start from a higher reward.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from llm_rl.errors import UserError

RULES = {"openai/gsm8k": "gsm8k", "HuggingFaceH4/MATH-500": "math_reward"}
"""verl's modules that score the data sources other than those of math_dapo."""


def compute_score(data_source: str, solution_str: str, ground_truth: str, **others: Any) -> dict[str, Any] | float:
    """verl's default_compute_score, but without \\boxed{} for the sources of math_dapo.

    Returns:
        For these sources: score (1.0 or -1.0), acc (whether the answer is right) and pred (the answer that was found).
        For other sources: verl's result.
    """
    if not of_math_dapo(data_source):
        from verl.utils.reward_score import default_compute_score

        return default_compute_score(data_source, solution_str, ground_truth, **others)
    right, found = math_dapo(solution_str, ground_truth)
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": found}


def of_math_dapo(data_source: str) -> bool:
    """Whether verl scores answers of this source with math_dapo."""
    return data_source in ("math", "math_dapo", "math_dapo_reasoning") or data_source.startswith("aime")


def math_dapo(answer: str, truth: str) -> tuple[bool, str]:
    """Whether an answer is right, and its result, "[INVALID]" if it has none.

    Raises UserError if verl is not installed.
    """
    return _rule("math_dapo").is_correct_minerva(answer[-300:], truth)


def is_right(data_source: str, answer: str, truth: str) -> bool:
    """Whether the reward counts an answer as right, without importing verl's dependencies.

    Raises ValueError if the data source is not one that `python -m llm_rl.data` writes, UserError if verl is not
    installed.
    """
    if of_math_dapo(data_source):
        return math_dapo(answer, truth)[0]
    if data_source not in RULES:
        known = f"{', '.join(RULES)}, math, math_dapo and names that begin with aime"
        raise ValueError(f"no scorer for data_source {data_source!r}; known: {known}")
    return _rule(RULES[data_source]).compute_score(answer, truth) == 1


@functools.cache
def _rule(name: str) -> ModuleType:
    """A module of verl.utils.reward_score without the package, which imports Ray and torch."""
    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise UserError("answers are scored by verl, which is not installed: use a pin set's environment")
    file = Path(verl.submodule_search_locations[0], "utils", "reward_score", f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unknown(sources: list[str]) -> list[str]:
    """The sources for which verl has no reward."""
    from verl.utils.reward_score import default_compute_score

    without = []
    for source in sources:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                default_compute_score(source, "", "")
        except NotImplementedError:
            without.append(source)
        except Exception:  # a rule that needs more than an empty answer
            pass
    return without


if __name__ == "__main__":
    print(json.dumps(unknown(sys.argv[1:])))
