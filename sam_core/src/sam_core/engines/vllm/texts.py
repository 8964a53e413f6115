# SPDX-License-Identifier: Apache-2.0
"""Prompts and answers of the requests in the batch, as far as the host knows them, and what steps sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sam_core.engines.vllm.answers import stop_tokens, tokens_of_answer


class Text:
    """A request that is or was in the batch.

    row: of its text in Texts; -1 once it has left the batch.
    answer: of one that has left it, to which steps add that were launched before.
    """

    def __init__(self, req_id: str, row: int, prompt_length: int, params: Any) -> None:
        self.req_id, self.row, self.prompt_length, self.params = req_id, row, prompt_length, params
        self.stops = stop_tokens(params)
        self.answer: list[int] = []


class Texts:
    """Prompts and answers of the requests in the batch as far as the host knows them, one a row, without gaps.

    tokens: int32 [max_num_reqs, max_model_len].
    ends, prompts: int32 [max_num_reqs], tokens of each row, and those of its prompt.
    req_ids: of the rows in use.
    """

    def __init__(self, max_num_reqs: int, max_model_len: int) -> None:
        self.tokens = np.zeros((max_num_reqs, max_model_len), np.int32)
        self.ends, self.prompts = np.zeros((2, max_num_reqs), np.int32)
        self.req_ids: list[str] = []
        self.by_id: dict[str, Text] = {}

    def add(self, req_id: str, prompt_length: int, tokens: Sequence[int], params: Any) -> Text:
        """A request joins the batch with these tokens, also one that was preempted."""
        row = len(self.req_ids)
        self.req_ids.append(req_id)
        self.tokens[row, : len(tokens)] = tokens
        self.ends[row], self.prompts[row] = len(tokens), prompt_length
        self.by_id[req_id] = text = Text(req_id, row, prompt_length, params)
        return text

    def append(self, text: Text, tokens: list[int]) -> int:
        """Append what a step sampled, without what lies behind the end of the answer. Returns how many tokens that
        is, for a request in the batch."""
        if text.row < 0:
            room = self.tokens.shape[1] - text.prompt_length - len(text.answer)
            text.answer += tokens_of_answer(tokens, text.params, text.stops, text.answer, room)
            return 0
        row, start = self.tokens[text.row], int(self.ends[text.row])
        tokens = tokens_of_answer(
            tokens, text.params, text.stops, row[self.prompts[text.row] : start], len(row) - start
        )
        row[start : start + len(tokens)] = tokens
        self.ends[text.row] = start + len(tokens)
        return len(tokens)

    def answer(self, text: Text) -> list[int]:
        if text.row < 0:
            return text.answer
        tokens: list[int] = self.tokens[text.row, text.prompt_length : self.ends[text.row]].tolist()
        return tokens

    def remove(self, req_id: str) -> int | None:
        """A request has left the batch: the last row takes the place of its own, which is returned; None: unknown."""
        text = self.by_id.pop(req_id, None)
        if text is None:
            return None
        text.answer = self.answer(text)
        row, text.row = text.row, -1
        moved = self.req_ids.pop()
        if moved != req_id:
            last = len(self.req_ids)
            end = self.ends[last]
            self.tokens[row, :end] = self.tokens[last, :end]
            self.ends[row], self.prompts[row] = end, self.prompts[last]
            self.req_ids[row] = moved
            self.by_id[moved].row = row
        return row


class Sampled(NamedTuple):
    """What a step sampled for its B requests.

    tokens: of each, those that were accepted and one more; none for one whose prompt is still being read.
    verified: draft tokens of each that were verified.
    """

    tokens: list[list[int]]
    verified: list[int]


class Output:
    """What a step samples.

    texts: of the B requests of the step, None for one that is unknown.
    source: the runner's AsyncOutput, with `num_verified`, draft tokens of each that were verified.
    """

    def __init__(self, source: Any, texts: list[Text | None]) -> None:
        self.source, self.texts = source, texts

    def is_there(self) -> bool:
        """Whether the tokens are on the host."""
        there: bool = self.source.copy_event.query()
        return there

    def read(self) -> Sampled:
        """The tokens; waits for them if they are not on the host yet."""
        self.source.copy_event.synchronize()
        rows: list[list[int]] = self.source.sampled_token_ids.tolist()
        for row, count in zip(rows, self.source.num_sampled_tokens_np.tolist(), strict=True):
            del row[count:]
        return Sampled(rows, self.source.num_verified)
