# SPDX-License-Identifier: Apache-2.0
"""The drafter of vLLM's second runner while the engine schedules asynchronously: no step waits for the host.

A step is launched while the one before it still runs, so the host knows the tokens of one or two steps fewer. It drafts
chains behind what it knows, and the device completes them (see `sam_core.device_drafts`): it takes what follows in the
chain where the tokens sampled since are its beginning, else what it finds in a table of the texts. Every request gets
k draft tokens, or none does where the engine's schedule by batch size says 0.

Shapes: B requests of a step, W = 2k + 2 tokens that two steps can sample.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sam_core import BY_PROMPT
from sam_core.device_drafts import COMMON, MAX_NGRAM, MAX_TOKEN, PAGE, NgramTable, draft
from sam_core.engines.vllm.runner2 import Speculator, Text
from sam_core.proposer import SamProposer, _Step
from sam_core.verify import to_device

Int32 = npt.NDArray[np.int32]
MAX_SLOTS = 1 << 22
"""N-grams in the table, at most, and tokens of the texts: 48 MiB."""
TABLE_SHARE = 16
"""The table takes at most so small a part of `memory_bytes`, on the device and on the host."""
SLOT_BYTES = 13
"""Of the table for an n-gram and a token, and somewhat more."""
MAX_CHAIN = 64
"""Tokens that a pool drafts at most."""
NUM_FIELDS = 3
"""Numbers of a row that are uploaded before its last tokens and its chain."""


class ChainProposer(SamProposer):
    """Drafts chains that the device completes. What was verified is counted when the host hears of it.

    Args:
        k, sam: as for SamProposer. A chain is not cut by `min_prob`: each request has its k tokens anyway.
        max_concurrent: steps whose tokens a chain reaches over, as far as MAX_CHAIN goes.
        settings: SamProposer's other arguments.
    """

    def __init__(self, k: int, sam: Mapping[str, Any] | None, max_concurrent: int, **settings: Any) -> None:
        super().__init__(k, {**(sam or {}), "min_prob": 0}, **settings)
        self.chain_length = min(max_concurrent * (k + 1) + k, MAX_CHAIN)
        self._num_verified = 0

    def chains(
        self, req_ids: list[str], token_rows: Int32, ends: Int32, prompts: Int32, running: int, should_draft: bool
    ) -> tuple[Int32, Int32] | None:
        """Feed the requests' tokens, and draft chains behind them.

        Args:
            req_ids: of the B rows.
            token_rows: int32 [>= B, max_model_len].
            ends, prompts: int32 [>= B].
            running: requests in the step.
            should_draft: without drafts a part of the requests is fed.

        Returns:
            Chains int32 [B, chain_length] and their lengths int32 [B]; None if there are no drafts.
        """
        start = time.perf_counter()
        self.switch.should_draft(running)  # counts steps; the engine's schedule is that of the switch
        step, batch = self._step, len(req_ids)
        if step is None or step.req_ids != req_ids:
            slots = np.array([self._slots.get(req_id, -1) for req_id in req_ids], np.int32)
            step = self._step = _Step(list(req_ids), slots)
        step.token_rows, step.ends, step.prompts = token_rows, ends[:batch].copy(), prompts[:batch].copy()
        chains, starts = None, self._open_changed(step)
        if should_draft:
            chains = np.zeros((batch, self.chain_length), np.int32), np.empty(batch, np.int32)
            self.pool.step(step.slots, token_rows, step.ends - starts, self.chain_length, *chains, starts=starts)
            self._requests["fed"][step.index] = step.ends
        else:
            self._feed_turn(step, starts, num_steps=1)
        self._seconds += time.perf_counter() - start
        return chains

    def count(self, num_drafts: int, position: int, gained: int) -> None:
        """A request verified draft tokens behind `position` tokens of its answer and gained tokens."""
        self._num_verified += num_drafts
        self._positions.add([position], [gained])

    def stats(self) -> dict[str, Any]:
        """As SamProposer.stats; `proposed` counts what the engine verified, of chains and table together."""
        return super().stats() | {"proposed": self._num_verified}


def table_size(max_num_reqs: int, max_model_len: int, memory_bytes: int) -> tuple[int, int]:
    """Tokens and slots of the table: for twice as many whole texts as can run, as far as the limits allow."""
    num_tokens = 2 * max_num_reqs * -(-max_model_len // PAGE) * PAGE
    most = memory_bytes // (TABLE_SHARE * SLOT_BYTES)
    num_slots = min(1 << (2 * num_tokens - 1).bit_length(), 1 << (most.bit_length() - 1), MAX_SLOTS)
    return min(num_tokens, num_slots), num_slots


class DeviceSpeculator(Speculator):
    """Drafts that stay on the device.

    Args:
        req_states: the runner's RequestState, which holds the whole texts on the device.
        max_concurrent: steps that the engine has launched at most, the one that it launches included.
    """

    proposer: ChainProposer

    def __init__(
        self,
        proposer: ChainProposer,
        max_num_reqs: int,
        max_model_len: int,
        device: torch.device,
        tp_group: Any,
        req_states: Any,
        vocab_size: int,
        max_concurrent: int,
    ) -> None:
        super().__init__(proposer, max_num_reqs, max_model_len, device, tp_group)
        self.req_states = req_states
        self.max_concurrent = max_concurrent
        self.width = max_concurrent * (self.k + 1)
        if not proposer.drafting:
            return
        sources, size = proposer.options.sources, table_size(max_num_reqs, max_model_len, proposer.options.memory_bytes)
        own = "request" in sources or "group" in sources
        self.table = NgramTable(*size, vocab_size, of_groups=own, of_all="common" in sources)
        self.memory = torch.from_numpy(self.table.memory).to(device, copy=True)
        self._sources = sources
        self._lives: dict[bytes, list[int]] = {}  # by group: its number, its requests
        self._num_lives = 0
        # By row of self.texts: the page in the table, the group, its number, tokens in the table.
        self._pages = np.zeros(max_num_reqs, np.int64)
        self._keys = np.empty(max_num_reqs, object)
        self._groups, self._tabled = np.zeros((2, max_num_reqs), np.int32)

    def join(self, text: Text) -> None:
        row, key = text.row, self.groups[text.req_id]
        if key is None or "group" not in self._sources:
            key = text.req_id.encode()
        elif key == BY_PROMPT:
            key = self.texts.tokens[row, : self.texts.prompts[row]].tobytes()
        if key not in self._lives:
            self._num_lives += 1
            # With history a group has one number for all its lives. Some have the same: drafts cost speed at worst.
            number = zlib.crc32(key) if "history" in self._sources else self._num_lives
            self._lives[key] = [COMMON + 1 + number % (MAX_TOKEN - COMMON - 1), 0]
        life = self._lives[key]
        life[1] += 1
        self._keys[row], self._groups[row], self._tabled[row] = key, life[0], 0

    def finish(self, req_id: str) -> None:
        row = self.texts.by_id[req_id].row
        prompt_length = int(self.texts.prompts[self.texts.by_id[req_id].row])
        self.proposer.complete(req_id, prompt_length, self.texts.answer(req_id))
        self._tabulate(slice(row, row + 1))

    def leave(self, row: int) -> None:
        life = self._lives[self._keys[row]]
        life[1] -= 1
        if not life[1]:
            del self._lives[self._keys[row]]
        last = len(self.texts.req_ids)
        for values in (self._pages, self._keys, self._groups, self._tabled):
            values[row] = values[last]

    def read_outputs(self) -> None:
        self._read(self.max_concurrent - 1)

    def _read(self, max_unread: int) -> None:
        """Read the outputs that are on the host, and others beyond `max_unread`, which the engine has had."""
        while self.unread and (len(self.unread) > max_unread or self.unread[0].source.copy_event.query()):
            output = self.unread.popleft()
            for text, tokens, num_drafts in zip(output.texts, output.read(), output.num_drafts, strict=True):
                if text is None:
                    continue
                gained = self.texts.append(text, tokens)
                if num_drafts and gained:
                    end = int(self.texts.ends[text.row])
                    position = end - gained - int(self.texts.prompts[text.row])
                    self.proposer.count(num_drafts, position, gained)

    def _tabulate(self, rows: slice) -> None:
        """Bring the table on the host up to date."""
        ends = self.texts.ends[rows]
        self.table.append(self._pages[rows], self._groups[rows], self.texts.tokens[rows], self._tabled[rows], ends)
        self._tabled[rows] = ends

    def draft(self, input_batch: Any, drafts: torch.Tensor, k: int) -> None:
        self._read(self.max_concurrent)
        texts = self.texts
        chains = self.proposer.chains(
            texts.req_ids, texts.tokens, texts.ends, texts.prompts, input_batch.num_reqs, k > 0
        )
        if chains is None:
            return
        self._tabulate(slice(len(texts.req_ids)))
        rows = np.array([texts.by_id[req_id].row for req_id in input_batch.req_ids])
        uploaded = self._upload(rows, *chains)
        known, groups, lengths = uploaded[:, :NUM_FIELDS].unbind(1)
        tails, chain_rows = uploaded[:, NUM_FIELDS : NUM_FIELDS + MAX_NGRAM], uploaded[:, NUM_FIELDS + MAX_NGRAM :]
        index, text = input_batch.idx_mapping, self.req_states.all_token_ids.gpu
        count = (self.req_states.total_len.gpu[index] - known).clamp(0, self.width)
        columns = known.unsqueeze(1) + torch.arange(self.width, device=self.device)
        sampled = text[index.unsqueeze(1), columns.clamp(max=text.shape[1] - 1)].long()
        completed, _ = draft(self.memory, self.table.num_slots, chain_rows, lengths, tails, groups, sampled, count)
        drafts.copy_(completed[:, : self.k])

    def _upload(self, rows: npt.NDArray[Any], chains: Int32, lengths: Int32) -> torch.Tensor:
        """Bring the table on the device up to date, and upload what the host knows of the rows of a step.

        Returns:
            int64 [B, NUM_FIELDS + MAX_NGRAM + 2W - 1]: tokens of the text, number of its group, length of its chain;
            last tokens; chain.
        """
        ends, end = self.texts.ends[rows], NUM_FIELDS + MAX_NGRAM
        packed = np.zeros((len(rows), end + 2 * self.width - 1), np.int64)
        packed[:, :NUM_FIELDS] = np.stack([ends, self._groups[rows], lengths[rows]], 1)
        packed[:, NUM_FIELDS:end] = self.texts.tokens[
            rows[:, None], np.maximum(ends[:, None] + np.arange(-MAX_NGRAM, 0), 0)
        ]
        packed[:, end : end + chains.shape[1]] = chains[rows]
        cells, values = self.table.changes()
        if len(cells):
            self.memory.index_copy_(0, to_device(cells, self.device), to_device(values, self.device))
        return to_device(packed, self.device)
