# SPDX-License-Identifier: Apache-2.0
"""The public schemas of the data sets, and verl's, to which their rows are brought.

A row in verl's schema: data_source, prompt (chat messages), ability, reward_model {ground_truth, style}, extra_info
{index}. Wordings around a problem are ours where the public file has the problem alone; the last line of an answer then
says the result in the form that both verl's scorer for this data_source and llm_rl.evaluation.scores read.
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
    """What is wrong with a row, as the end of a sentence that begins with its place."""


def text(row: Row, name: str) -> str:
    """The field `name`, a string that is not empty; RowError."""
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


def of_verl(row: Row, source: str) -> Row:
    """A row that is in verl's schema, as the files of DAPO are: one message, its instructions around the problem."""
    prompt, reward = row.get("prompt"), row.get("reward_model")
    if not isinstance(prompt, list) or len(prompt) != 1 or not isinstance(prompt[0], dict):
        raise RowError("has no list of one chat message in 'prompt'")
    if prompt[0].get("role") != "user":
        raise RowError(f"has a message of role {prompt[0].get('role')!r} where 'user' belongs")
    if not isinstance(reward, dict):
        raise RowError("has no 'reward_model'")
    index = (row.get("extra_info") or {}).get("index")
    return verl_row(
        source,
        text(prompt[0], "content"),
        text(reward, "ground_truth").strip(),
        "" if index is None else str(index),
        text(reward, "style"),
    )


def dapo(row: Row, number: int) -> Row:
    text(row, "data_source")
    return of_verl(row, "math_dapo")


def gsm8k(row: Row, number: int) -> Row:
    found = re.findall(r"####\s*(.+?)\s*$", text(row, "answer"))
    if not found:
        raise RowError("has an 'answer' without #### and the result at its end")
    return verl_row("openai/gsm8k", f"{text(row, 'question')} {STEPS}", found[-1].replace(",", ""), str(number))


def aime2024(row: Row, number: int) -> Row:
    """DAPO's file, in verl's schema, each problem 32 times; or one with problem and answer, whatever their case."""
    if "reward_model" in row:
        made = of_verl(row, "aime2024")
    else:
        row = {name.lower(): value for name, value in row.items()}
        answer = row.get("answer")
        row["answer"] = str(answer) if isinstance(answer, int) else answer
        index = str(row.get("id") or number)
        made = verl_row("aime2024", f"{text(row, 'problem')}\n\n{ANSWER}", text(row, "answer").strip(), index)
    if not re.fullmatch(r"\d{1,3}", made["reward_model"]["ground_truth"]):
        raise RowError(f"has the answer {made['reward_model']['ground_truth']!r}; an AIME answer is 0 to 999")
    return made


def math500(row: Row, number: int) -> Row:
    index = text(row, "unique_id")
    return verl_row("HuggingFaceH4/MATH-500", f"{text(row, 'problem')} {BOXED}", text(row, "answer").strip(), index)


SETS: dict[str, Callable[[Row, int], Row]] = {
    "dapo-math-17k": dapo,
    "gsm8k": gsm8k,
    "aime2024": aime2024,
    "math500": math500,
}
"""A function for each data set: a public row and its number, from 1, to a row in verl's schema; RowError."""
