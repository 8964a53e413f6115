# SPDX-License-Identifier: Apache-2.0
"""Conversion of rows from the data sets' public schemas to verl's.

A row in verl's schema: data_source, prompt (chat messages), ability, reward_model {ground_truth, style}, extra_info
{index}. If the public file has the bare problem, this module adds instructions: they ask for the result in the form
that the reward for this data_source reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

STEPS = 'Let\'s think step by step and put the final answer on the last line, after "####".'
BOXED = "Let's think step by step and put the final answer within \\boxed{}."
ANSWER = 'Let\'s think step by step. Put the final answer on a line of its own, at the end, after "Answer:".'
STYLE = "rule"


class RowError(ValueError):
    """A bad row. The message completes a sentence whose subject is the row's place."""


def text(row: Row, name: str) -> str:
    """The non-empty string in field `name`. Raises RowError."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"has no text in {name!r}" if name in row else f"has no field {name!r}")
    return value


def verl_row(source: str, question: str, truth: str, index: str, style: str = STYLE) -> Row:
    return {
        "data_source": source,
        "prompt": [{"content": question, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": truth, "style": style},
        "extra_info": {"index": index},
    }


def of_verl(row: Row, source: str, accepted: str) -> Row:
    """Convert a row that is already in verl's schema, as in DAPO's files: one message with problem and instructions.

    accepted: pattern of the row's data_source. Raises RowError.
    """
    given = text(row, "data_source")
    if not re.fullmatch(accepted, given):
        raise RowError(f"has data_source {given!r}, so it does not belong to data set {source}")
    prompt, reward = row.get("prompt"), row.get("reward_model")
    if not isinstance(prompt, list) or len(prompt) != 1 or not isinstance(prompt[0], dict):
        raise RowError("has no list of one chat message in 'prompt'")
    if prompt[0].get("role") != "user":
        raise RowError(f"has a message of role {prompt[0].get('role')!r} instead of 'user'")
    if not isinstance(reward, dict):
        raise RowError("has no 'reward_model'")
    index = (row.get("extra_info") or {}).get("index")
    question, truth = text(prompt[0], "content"), text(reward, "ground_truth").strip()
    return verl_row(source, question, truth, "" if index is None else str(index), text(reward, "style"))


def dapo(row: Row, number: int) -> Row:
    return of_verl(row, "math_dapo", "math_dapo")


def gsm8k(row: Row, number: int) -> Row:
    results = re.findall(r"####\s*(.+?)\s*$", text(row, "answer"))
    if not results:
        raise RowError("has an 'answer' without #### and the result at its end")
    return verl_row("openai/gsm8k", f"{text(row, 'question')} {STEPS}", results[-1].replace(",", ""), str(number))


def aime2024(row: Row, number: int) -> Row:
    """Convert a row in verl's schema, as in DAPO's file, or a row with problem and answer, in upper or lower case.

    Removes leading zeros of the answer, because the reward compares text.
    """
    if "reward_model" in row:
        converted = of_verl(row, "aime2024", "math_dapo|aime.*")
    else:
        row = {name.lower(): value for name, value in row.items()}
        answer = row.get("answer")
        row["answer"] = str(answer) if isinstance(answer, int) else answer
        index = str(row.get("id") or number)
        converted = verl_row("aime2024", f"{text(row, 'problem')}\n\n{ANSWER}", text(row, "answer").strip(), index)
    truth = converted["reward_model"]["ground_truth"]
    if not re.fullmatch(r"[0-9]{1,3}", truth):
        raise RowError(f"has the answer {truth!r}; an AIME answer is 0 to 999")
    converted["reward_model"]["ground_truth"] = str(int(truth))
    return converted


def math500(row: Row, number: int) -> Row:
    index = text(row, "unique_id")
    return verl_row("HuggingFaceH4/MATH-500", f"{text(row, 'problem')} {BOXED}", text(row, "answer").strip(), index)


SETS: dict[str, Callable[[Row, int], Row]] = {
    "dapo-math-17k": dapo,
    "gsm8k": gsm8k,
    "aime2024": aime2024,
    "math500": math500,
}
"""By data set, a function that converts a public row and its number, from 1, to verl's schema or raises RowError."""
