# SPDX-License-Identifier: Apache-2.0
"""Questions to evaluate on, from a data set in verl's schema."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from llm_rl import rewards
from llm_rl.data import files
from llm_rl.errors import UserError


@dataclass(frozen=True)
class Question:
    """A question. key: hash of prompt and result, its identifier in result files; messages: the chat that asks it."""

    key: str
    data_source: str
    messages: list[dict[str, str]]
    truth: str


def read(path: Path, limit: int | None = None) -> list[Question]:
    """The first `limit` questions of a Parquet or JSON Lines file, or all. Raises UserError."""
    if limit is not None and limit < 1:
        raise UserError(f"--limit must be at least 1, got {limit}")
    questions: dict[str, Question] = {}
    for place, row in files.rows(path):
        if limit is not None and len(questions) >= limit:
            break
        fields = {} if isinstance(row, str) else row
        try:
            source, messages, truth = fields["data_source"], fields["prompt"], fields["reward_model"]["ground_truth"]
            if not isinstance(truth, str):
                raise TypeError
            if source.startswith("aime") and re.fullmatch("0[0-9]+", truth):
                raise ValueError(
                    f"the result {truth!r} has leading zeros, so no answer would be right: prepare the file again"
                )
            rewards.is_right(source, "", truth)  # so that it fails now, not after the answers
            named = repr(([(m["role"], m["content"]) for m in messages], truth))
        except (KeyError, TypeError, ValueError) as error:
            of_schema = "not in verl's schema; `python -m llm_rl.data` writes it"
            raise UserError(f"{path}, {place}: {error if isinstance(error, ValueError) else of_schema}") from None
        key = hashlib.blake2b(named.encode(), digest_size=8).hexdigest()
        if key in questions:
            raise UserError(f"{path}, {place}, repeats a question: prepare the file with `python -m llm_rl.data`")
        questions[key] = Question(key, source, messages, truth)
    if not questions:
        raise UserError(f"{path} has no questions")
    return list(questions.values())
