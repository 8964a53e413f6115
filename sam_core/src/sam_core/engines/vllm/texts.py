# SPDX-License-Identifier: Apache-2.0
"""Prompts and answers of requests, as far as the host knows them, and the output of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sam_core.engines.vllm.answers import stop_tokens, tokens_of_answer


class Text:
    """A request that is or was in the batch.

    row: its row in BatchTexts; -1 after it has left the batch.
    answer: its answer after it has left the batch; steps launched before may still add to it.
    """

    def __init__(self, req_id: str, row: int, prompt_length: int, params: Any) -> None:
        self.req_id, self.row, self.prompt_length, self.params = req_id, row, prompt_length, params
        self.stops = stop_tokens(params)
        self.answer: list[int] = []


class BatchTexts:
    """Prompts and answers of the requests in the batch, as far as the host knows them; one per row, without gaps.

    tokens: int32 [max_num_reqs, max_model_len].
    ends, prompts: int32 [max_num_reqs], number of tokens in each row, and of its prompt.
    req_ids: the requests of the rows in use.
    """

    def __init__(self, max_num_reqs: int, max_model_len: int) -> None:
        self.tokens = np.zeros((max_num_reqs, max_model_len), np.int32)
        self.ends, self.prompts = np.zeros((2, max_num_reqs), np.int32)
        self.req_ids: list[str] = []
        self.by_id: dict[str, Text] = {}

    def add(self, req_id: str, prompt_length: int, tokens: Sequence[int], params: Any) -> Text:
        """Add a request to the batch with these tokens; also one that was preempted."""
        row = len(self.req_ids)
        self.req_ids.append(req_id)
        self.tokens[row, : len(tokens)] = tokens
        self.ends[row], self.prompts[row] = len(tokens), prompt_length
        self.by_id[req_id] = text = Text(req_id, row, prompt_length, params)
        return text

    def append(self, text: Text, tokens: list[int]) -> int:
        """Append the tokens that a step sampled, up to the end of the answer.

        Returns their number, 0 for a request that has left the batch.
        """
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
        """Remove a request from the batch and return its row, which the last row fills; None if it is unknown."""
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

    tokens: accepted tokens of each request and one more; none while its prompt is being read.
    verified: number of verified draft tokens of each request.
    """

    tokens: list[list[int]]
    verified: list[int]


class Output:
    """The output of a step, which may still be on its way to the host.

    source: the runner's AsyncOutput, with `num_verified`, the number of verified draft tokens of each request.
    texts: those of the B requests of the step; None for an unknown one.
    states: their rows of request states, for `of_model`.
    """

    def __init__(self, source: Any, texts: list[Text | None], states: Sequence[int] = ()) -> None:
        self.source, self.texts, self.states = source, texts, states

    def is_there(self) -> bool:
        """Whether the tokens are on the host."""
        there: bool = self.source.copy_event.query()
        return there

    def read(self) -> Sampled:
        """The tokens; waits until they are on the host."""
        self.source.copy_event.synchronize()
        rows: list[list[int]] = self.source.sampled_token_ids.tolist()
        for row, count in zip(rows, self.source.num_sampled_tokens_np.tolist(), strict=True):
            del row[count:]
        return Sampled(rows, self.source.num_verified)

    def of_model(self) -> tuple[list[int], npt.NDArray[np.float32]]:
        """Drafter.num_of_model and Drafter.worth of each request's verified draft, once `read` has returned."""
        numbers, worth = (each[self.states] for each in self.source.of_model_np)
        return numbers.tolist(), worth
