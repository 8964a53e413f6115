# SPDX-License-Identifier: Apache-2.0
"""The texts of an engine's requests in a Pool: request ids become slots, and rows of tokens are fed."""

from __future__ import annotations

import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core import BY_PROMPT, Pool
from sam_core.counters import EXCLUSION_REASONS
from sam_core.groups import GroupKey
from sam_core.history import SavedHistory
from sam_core.options import Options
from sam_core.switch import Switch
from sam_core.tokenizer import fingerprint

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
LOGGER = logging.getLogger("sam_core")
FEED_INTERVAL = 32
"""While there are no drafts, each request is fed once in this number of steps."""
MAX_THREADS = 8
"""Maximum threads, used for 1,024 requests or more; limited to the processors that the process may use."""
MIN_FEED_BATCH = 64
"""Minimum requests to feed together, if that many run: a call costs more than the tokens of a few requests."""


class Step:
    """The B requests of a step.

    slots, ends, prompts: int32 [B]; `ends` counts the certain tokens of each row, `prompts` those of its prompt.
    index: the slots as int64 [B], with which NumPy indexes five times as fast.
    starts, counts: int32 [B], tokens of each row that are in the pool, and that are to be fed, once it `is_open`.
    """

    token_rows: Int32
    ends: Int32
    prompts: Int32
    is_open: bool
    starts: Int32
    counts: Int32

    def __init__(self, req_ids: list[str], slots: Int32) -> None:
        self.req_ids, self.slots, self.index = req_ids, slots, slots.astype(np.int64)


class RequestTexts:
    """Feeds a pool with the texts of an engine's requests, which are identified by their ids.

    Feeds row[fed:length] of each request, so that every token enters the indexes exactly once, whatever the engine
    does: chunked prefill, preemption and resumption, steps with the switch off. `draft` feeds all requests of a step,
    `feed_turn` each once in FEED_INTERVAL steps, and `finish` one that ends.

    pool: the texts; a saved history if `options.history` names a folder that has one.
    records: what is known of each request, a structured array by slot: `prompt`, tokens of its prompt; `answer_start`,
        those before the answer, which an earlier request may have begun; `fed`, tokens in the pool; `excluded`,
        whether it is never drafted; and `fields`.

    Args:
        options: of the pool and the saved history. Raises ValueError if they cannot be used.
        switch: forgets the requests that are closed; saved and restored with the history.
        vocab_size: tokens of the model's vocabulary, to which drafts are limited; None: unknown.
        tokenizer: folder of the model's tokenizer; a name on a hub is ignored. A corpus or history of another tokenizer
            is refused if both are known.
        drafting: False on ranks whose drafts the engine does not use; they keep no index.
        rank: the engine's number among those that share options, such as data-parallel ranks; names its files in
            `history`.
        exclusion_reason: returns why the request with this id is never drafted, one of EXCLUSION_REASONS, or None.
        group_of: returns the key of the group of the request with this id. Called in the request's first step.
        is_isolated: returns whether the text of the request with this id is kept from other groups and later requests
            (see `Pool.open`).
        logger: receives messages about the history.
        fields: further fields of `records`, 0 when a request is opened.
    """

    def __init__(
        self,
        options: Options,
        switch: Switch,
        *,
        logger: logging.Logger = LOGGER,
        vocab_size: int | None = None,
        tokenizer: str | None = None,
        drafting: bool = True,
        rank: int = 0,
        exclusion_reason: Callable[[str], str | None] = lambda req_id: None,
        group_of: Callable[[str], GroupKey] = lambda req_id: BY_PROMPT,
        is_isolated: Callable[[str], bool] = lambda req_id: False,
        fields: Sequence[tuple[Any, ...]] = (),
    ) -> None:
        self.switch = switch
        self.exclusion_reason = exclusion_reason
        self.group_of = group_of
        self.is_isolated = is_isolated
        digest = fingerprint(tokenizer) if tokenizer and drafting and (options.corpus or options.history) else None
        self.saved = None
        if options.history and drafting:
            self.saved = SavedHistory(options, rank, logger, vocab_size, digest)
        self._unsaved = False
        self.pool = (self.saved and self.saved.load()) or Pool(
            memory_bytes=options.memory_bytes,
            rule=options.rule,
            sources=options.sources,
            corpus=options.corpus if drafting else None,
            min_prob=options.pool_min_prob,
            vocab_size=vocab_size,
            tokenizer=digest,
        )
        self.pool.num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        if self.saved:
            self.saved.restore_switch(switch)
        known = [("prompt", np.int32), ("answer_start", np.int32), ("fed", np.int32), ("excluded", np.bool_)]
        self.records = np.zeros(1, np.dtype([*known, *fields], align=True))
        self._slots: dict[str, int] = {}
        self._step: Step | None = None
        self._turn = 0
        self._excluded: Counter[str] = Counter()

    def begin(self, req_ids: Sequence[str], token_rows: Int32, lengths: Any, prompts: Any) -> tuple[Step, bool]:
        """The step of these requests, and whether they are the same as in the previous step; see SamProposer.propose.

        The rows are read until the next call, `finish` included, or until `forget_rows`.
        """
        batch = len(req_ids)
        step = previous = self._step
        if step is None or step.req_ids != req_ids:
            slots = np.fromiter(map(self._slots.get, req_ids, itertools.repeat(-1)), np.int32, batch)
            self._step = step = Step(list(req_ids), slots)
        step.token_rows = token_rows
        step.ends = np.array(lengths[:batch], np.int32)
        step.prompts = np.asarray(prompts[:batch], np.int32)
        step.is_open = False
        return step, step is previous

    def open(self, step: Step) -> None:
        """Open slots for new requests, and for those from which the engine took tokens back or whose prompt grew."""
        fed = self.records["fed"][step.index]
        changed = (step.slots < 0) | (step.ends < fed) | (step.prompts != self.records["prompt"][step.index])
        if np.count_nonzero(changed):
            for i in np.flatnonzero(changed).tolist():
                req_id, prompt = step.req_ids[i], step.token_rows[i, : step.prompts[i]]
                self._close(req_id, keep=False)
                step.slots[i] = step.index[i] = self._open(req_id, np.ascontiguousarray(prompt))
            self._step = step  # closing a request clears it
            fed = self.records["fed"][step.index]
        step.is_open, step.starts, step.counts = True, fed, step.ends - fed

    def _open(self, req_id: str, prompt: Int32) -> int:
        slot = self.pool.open(prompt, self.group_of(req_id), self.is_isolated(req_id))
        self._slots[req_id] = slot
        if slot >= len(self.records):
            self.records = np.concatenate([self.records, np.zeros(slot, self.records.dtype)])
        reason = self.exclusion_reason(req_id)
        if reason:
            self._excluded[reason] += 1
        self.records[slot] = 0
        record = self.records[slot]
        record["prompt"] = record["fed"] = len(prompt)
        record["answer_start"], record["excluded"] = self.pool.prompt_size(slot), bool(reason)
        return slot

    def _close(self, req_id: str, keep: bool = True) -> None:
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            self._step = None
            self.pool.close(slot, keep=keep)
            self.switch.forget(slot)
            self._unsaved = True

    def feed_turn(self, step: Step, num_steps: int) -> None:
        """Feed the requests whose turn it is."""
        batch = len(step.req_ids)
        first = (self._turn + 1) % FEED_INTERVAL
        self._turn = (self._turn + num_steps) % FEED_INTERVAL
        size = max(MIN_FEED_BATCH, -(-batch // FEED_INTERVAL))
        rows = slice(first * size, min((first + num_steps) * size, batch))
        if first + num_steps > FEED_INTERVAL:
            rows = slice(0, batch)
        if rows.start < rows.stop:
            if not step.is_open:
                self.open(step)
            self._feed(step, rows, step.starts[rows])

    def _feed(self, step: Step, rows: slice, starts: Int32) -> None:
        """Feed these rows of a step from `starts` on, without drafting."""
        slots, ends = step.slots[rows], step.ends[rows]
        if (starts < ends).any():
            out, drafted = np.empty((len(slots), 1), np.int32), np.empty(len(slots), np.int32)
            self.pool.step(slots, step.token_rows[rows], ends - starts, 0, out, drafted, starts=starts)
            self.records["fed"][slots] = ends

    def draft(
        self, step: Step, max_drafts: int | Int32, k: int, index_later: bool = False
    ) -> tuple[Int32, Int32, Float32]:
        """Feed all requests of an open step, and draft: see `Pool.step`.

        Returns drafts int32 [B, k] and their lengths int32 [B], and the scores of their tokens float32 [B, k].
        """
        batch, counts, starts = len(step.slots), step.counts, step.starts
        out, scores = np.zeros((batch, k), np.int32), np.zeros((batch, k), np.float32)
        lengths, rows = np.empty(batch, np.int32), step.token_rows
        self.pool.step(
            step.slots, rows, counts, max_drafts, out, lengths, scores, starts=starts, index_later=index_later
        )
        self.records["fed"][step.index] = step.ends
        return out, lengths, scores

    def finish(self, req_ids: Iterable[str]) -> None:
        """Close requests that finished or were aborted; unknown ids are ignored.

        Missing tokens are fed from the rows of the last step: call this before the engine moves or reuses them, or
        after `forget_rows`.

        If `history` names a folder, a thread saves the history when the last request ends, and at times before.
        """
        ended = [req_id for req_id in req_ids if req_id in self._slots]
        if step := self._step:
            for req_id in ended:
                if req_id in step.req_ids:
                    row = step.req_ids.index(req_id)
                    request = self.records[self._slots[req_id]]
                    if step.prompts[row] == request["prompt"]:  # else the pool has an earlier turn of a session
                        self._feed(step, slice(row, row + 1), request["fed"][None])
        for req_id in ended:
            self._close(req_id)
        if self.saved and (self._unsaved or self.saved.failed):
            self._unsaved = not self.saved.save(self.pool, self.switch, idle=not self._slots)

    def forget_rows(self) -> None:
        """Feed nothing more from the rows of the last step, which the engine moves or reuses."""
        self._step = None

    def complete(self, req_id: str, prompt_length: int, answer: Sequence[int]) -> None:
        """Feed the missing part of a request's whole `answer`, after the request has left the engine's rows.

        The answer ends before its first negative number, a token that the engine does not know yet. Nothing is fed if
        the prompt has grown since it was indexed, as it does in each turn of a session.
        """
        slot = self._slots.get(req_id)
        if slot is not None and prompt_length == self.records["prompt"][slot]:
            request = self.records[slot]
            rest = [*itertools.takewhile(lambda token: token >= 0, answer[request["fed"] - request["prompt"] :])]
            if rest:
                self.pool.append(slot, np.array(rest, np.int32))
                request["fed"] += len(rest)

    def take_back(self, req_id: str, length: int) -> None:
        """Forget a request, until its next step, if the pool has more than `length` tokens of its prompt and answer.

        The engine has dropped the rest, and may sample the same number of new tokens before that step.
        """
        slot = self._slots.get(req_id)
        if slot is not None and self.records["fed"][slot] > length:
            self._close(req_id, keep=False)

    def stats(self) -> dict[str, Any]:
        """Counters that all proposers have, see SamProposer.stats; `proposed` counts the pool's draft tokens."""
        pool = self.pool.stats()
        by_source: dict[str, Any] = {**pool["by_source"]}
        return {
            "steps": self.switch.steps,
            "steps_on": self.switch.steps_on,
            "transitions": self.switch.transitions,
            "proposed": pool["drafted_tokens"],
            "padding": 0,
            "padding_accepted": 0,
            "requests": len(self._slots),
            **{f"excluded_{reason}": self._excluded[reason] for reason in EXCLUSION_REASONS},
            **{f"proposed_{source}": counts["drafted_tokens"] for source, counts in by_source.items()},
            **{f"accepted_{source}": counts["accepted_tokens"] for source, counts in by_source.items()},
            **{name: pool[name] for name in ("bytes_used", "exhausted", "evicted_groups", "evicted_history")},
        }
