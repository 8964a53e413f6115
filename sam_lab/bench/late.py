# SPDX-License-Identifier: Apache-2.0
"""The drafters of engines that schedule asynchronously, as drafters for the replay.

Early: drafts are made before the tokens of the latest step are indexed. Late: the host is one step late, and the device
completes its drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sam_core.device_drafts import COMMON, MAX_NGRAM, MAX_TOKEN, PAGE, NgramTable, pack, step_probabilities

from sam_lab.completion import Completed, draft
from sam_lab.drafters import SamDrafter, packed

VOCABULARY = 1 << 18


class EarlyDrafter(SamDrafter):
    """A SamDrafter that drafts before it indexes the latest tokens (see `Pool.step`, index_later)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._new: dict[int, list[int]] = {}

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for request, row in zip(requests, rows, strict=True):
            self._new.setdefault(request, []).extend(row)

    def draft(self, requests: Sequence[int], k: int, *names: str) -> list[npt.NDArray[Any]]:
        rows = [self._new.pop(request, []) for request in requests]
        return self._step(self._arrays_of(requests, k), *packed(rows), k, names, index_later=True)

    def finish(self, request: int) -> None:
        self.pool.append(self.slots[request], self._new.pop(request, []))
        super().finish(request)


class _LateRequest:
    """A request of LateDrafter.

    text, group: its row in the table, and the number of its group.
    tokens: its text of `length` tokens; the first `prompt` are the prompt. The host knows the first `known` of them and
        has fed the first `fed` to the table and the pool.
    """

    def __init__(self, text: int, group: int, tokens: npt.NDArray[np.int32], length: int) -> None:
        self.text, self.group, self.tokens = text, group, tokens
        self.prompt = self.length = self.known = length
        self.fed = 0

    @property
    def pending(self) -> npt.NDArray[np.int32]:
        """The tokens of the latest step, which the host does not know."""
        return self.tokens[self.known : self.length]


class LateDrafter(SamDrafter):
    """Chains of `sam_core.device_drafts` for the replay, one step late; `options` are the pool's.

    A step's tokens reach the pool and the table when the next step drafts; until then only the device knows them. So
    requests are closed one step late, too.

    Args:
        k: maximum tokens of a draft.
        num_texts: rows of the table: the maximum number of open requests.
        max_length: maximum tokens of a prompt and its answer.
        num_slots: slots of the table, a power of two.
    """

    def __init__(self, k: int, num_texts: int, max_length: int, num_slots: int = 1 << 22, **options: Any) -> None:
        super().__init__(**options)
        self.k, self.width, self.num_slots = k, 2 * k + 1, num_slots
        self.table = NgramTable(num_texts * -(-max_length // PAGE) * PAGE, num_slots, VOCABULARY)
        self.pages = np.zeros(num_texts, np.int64)
        self.memory = self.table.memory.copy()
        self.rows = np.zeros((num_texts, max_length), np.int32)
        self.requests: dict[int, _LateRequest] = {}
        self._texts = itertools.cycle(range(num_texts))
        self._numbers = itertools.cycle(range(COMMON + 1, MAX_TOKEN))
        self._groups: dict[str, tuple[int, set[int]]] = {}  # number in the table, open requests
        self._ended: list[int] = []
        self._dropped: set[str] = set()  # groups to be forgotten once they are empty

    def start(self, request: int, prompt_ids: Sequence[int], group: str | None) -> None:
        super().start(request, prompt_ids, group)
        number = next(self._numbers)
        if group is not None:
            number, members = self._groups.setdefault(group, (number, set()))
            members.add(request)
        used = {each.text for each in self.requests.values()}
        text = next(text for text in self._texts if text not in used)
        self.rows[text, : len(prompt_ids)] = prompt_ids
        self.requests[request] = _LateRequest(text, number, self.rows[text], len(prompt_ids))

    def append_many(self, requests: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        for number, row in zip(requests, rows, strict=True):
            request = self.requests[number]
            request.known = request.length
            request.length += len(row)
            request.tokens[request.known : request.length] = row

    def propose_many(self, requests: Sequence[int], k: int) -> list[list[int]]:
        drafts = self._device(requests, *self._host(requests))
        self._close()
        return [row[:count] for row, count in zip(drafts.tokens.tolist(), drafts.lengths.tolist(), strict=True)]

    def finish(self, request: int) -> None:
        self._ended.append(request)

    def settle(self) -> None:
        """Close all requests that have ended, without waiting for a step."""
        while self._ended:
            self._upload(self._host([])[2])
            self._close()

    def drop(self, group: str) -> None:
        """Forget a group once its last request is closed: see `_close`."""
        self._dropped.add(group)

    def _host(self, requests: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], Any]:
        """Feed what the host knows, and draft chains for B requests.

        Returns chains int64 [B, 2k + 1], as `pack` returns them, lengths [B], changes of the table.
        """
        numbers = [*requests, *self._ended]
        live = [self.requests[number] for number in numbers]
        slots = np.array([self.slots[number] for number in numbers], np.int32)
        fields = [(each.text, each.group, each.fed, each.known, each.prompt) for each in live]
        texts, groups, starts, ends, prompts = np.array(fields, np.int32).T.copy()
        rows = self.rows[texts]
        if (np.diff(texts) == 1).all():  # as in an engine, whose rows are those of its batch
            rows = self.rows[texts[0] :]
        max_drafts = np.where(np.arange(len(live)) < len(requests), self.width, 0).astype(np.int32)
        out, lengths = np.zeros((len(live), self.width), np.int32), np.empty(len(live), np.int32)
        scores = np.zeros((len(live), self.width), np.float32)
        first = np.maximum(starts, prompts)  # the pool has the prompts
        self.pool.step(slots, rows, ends - first, max_drafts, out, lengths, scores, starts=first)
        pages = self.pages[texts]
        self.table.append(pages, groups, rows, starts, ends)
        self.pages[texts] = pages
        for each in live:
            each.fed = each.known
        chains = pack(out, step_probabilities(scores))
        return chains[: len(requests)], lengths[: len(requests)], self.table.changes()

    def _device(self, requests: Sequence[int], chains: Any, lengths: Any, changes: Any) -> Completed:
        tails = np.zeros((len(requests), MAX_NGRAM), np.int64)
        sampled = np.zeros((len(requests), self.k + 1), np.int64)
        num_sampled = np.zeros(len(requests), np.int64)
        groups = np.zeros(len(requests), np.int64)
        for row, number in enumerate(requests):
            each = self.requests[number]
            last = each.tokens[max(0, each.known - MAX_NGRAM) : each.known]
            tails[row, MAX_NGRAM - len(last) :] = last
            num_sampled[row], groups[row] = len(each.pending), each.group
            sampled[row, : num_sampled[row]] = each.pending
        self._upload(changes)
        return draft(
            self.memory,
            self.num_slots,
            chains,
            lengths.astype(np.int64),
            tails,
            groups,
            sampled,
            num_sampled,
            self.k,
        )

    def _upload(self, changes: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]) -> None:
        cells, values = changes
        self.memory[cells] = values

    def _close(self) -> None:
        """Close the requests that have ended and are completely fed; the others follow one step later."""
        done = [number for number in self._ended if self.requests[number].fed == self.requests[number].length]
        self._ended = [number for number in self._ended if number not in done]
        for number in self._ended:
            self.requests[number].known = self.requests[number].length
        for number in done:
            super().finish(number)
            del self.requests[number]
            for group, (_, members) in list(self._groups.items()):
                members.discard(number)
                if not members and group in self._dropped:
                    self.pool.drop(group.encode())
                    self._dropped.discard(group)
                    del self._groups[group]
