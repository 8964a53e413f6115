# SPDX-License-Identifier: Apache-2.0
"""The drafter that an engine calls: maps its request ids and token rows to slots of a Pool."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sam_core import BY_PROMPT, Pool
from sam_core._sam import to_lists
from sam_core.counters import EXCLUSION_REASONS, Positions, since
from sam_core.history import SavedHistory
from sam_core.options import VERIFY, Options
from sam_core.switch import AutoSwitch, BatchSwitch, Switch
from sam_core.tokenizer import fingerprint

Int32 = npt.NDArray[np.int32]
REPORT_INTERVAL_S = 1.0
"""Minimum seconds between two reports of the counters, and maximum seconds between two steps with `has_news`."""
FEED_INTERVAL = 32
"""While there are no drafts, each request is fed once in this number of steps."""
MAX_THREADS = 8
"""Maximum threads, used for 1,024 requests or more; limited to the processors that the process may use."""
MIN_FEED_BATCH = 64
"""Minimum requests to feed together, if that many run: a call costs more than the tokens of a few requests."""


_LOGGER = logging.getLogger("sam_core")


class Step:
    """The B requests of a step.

    slots, ends, prompts: int32 [B]; `ends` counts the certain tokens of each row, `prompts` those of its prompt.
    index: the slots as int64 [B], with which NumPy indexes five times as fast.
    """

    __slots__ = ("req_ids", "slots", "index", "token_rows", "ends", "prompts")

    def __init__(self, req_ids: list[str], slots: Int32) -> None:
        self.req_ids, self.slots, self.index = req_ids, slots, slots.astype(np.int64)
        self.token_rows: Int32
        self.ends: Int32
        self.prompts: Int32


class SamProposer:
    """Drafts for an engine's requests, which are identified by their ids.

    Feeds row[fed:length] of each request, so that every token enters the indexes exactly once, whatever the engine
    does: chunked prefill, preemption and resumption, steps with the switch off. In a step with drafts all requests are
    fed; without drafts each is fed once in FEED_INTERVAL steps, and when it ends.

    An engine whose decode graphs hold exactly k + 1 tokens per request calls `make_uniform`.

    Args:
        k: maximum tokens of a draft.
        sam: the engine's `speculative_config["sam"]`, or None for the defaults. Raises ValueError for an invalid
            option.
        max_model_len: maximum length of a text, drafts included.
        vocab_size: tokens of the model's vocabulary, to which drafts are limited; None: unknown.
        tokenizer: folder of the model's tokenizer; a name on a hub is ignored. A corpus or history of another tokenizer
            is refused if both are known.
        drafting: False on ranks whose drafts the engine does not use; they keep no index.
        rank: the engine's number among those that share options, such as data-parallel ranks; names its files in
            `history`.
        exclusion_reason: returns why the request with this id is never drafted, one of EXCLUSION_REASONS, or None.
        group_of: returns the group of the request with this id; the requests of a group share drafts. BY_PROMPT: the
            requests with the same prompt. bytes: the requests with this name; one whose prompt begins with the text of
            an ended one continues that text. None: no other request. Called in the request's first step.
        is_isolated: returns whether the text of the request with this id is kept from other groups and later requests
            (see `Pool.open`).
        renew_noise: called once on each rank, by the first `propose`, if `Options.repeats_noise`.
        graph_sizes: rows of the graphs that the engine captures, to which it pads its steps.
        logger: the engine's; it receives a message whenever the switch turns.
    """

    def __init__(
        self,
        k: int,
        sam: Mapping[str, Any] | None,
        *,
        max_model_len: int,
        vocab_size: int | None = None,
        tokenizer: str | None = None,
        drafting: bool = True,
        rank: int = 0,
        exclusion_reason: Callable[[str], str | None] = lambda req_id: None,
        group_of: Callable[[str], bytes | Literal["by_prompt"] | None] = lambda req_id: BY_PROMPT,
        is_isolated: Callable[[str], bool] = lambda req_id: False,
        renew_noise: Callable[[], None] | None = None,
        graph_sizes: Iterable[int] = (),
        logger: logging.Logger = _LOGGER,
    ) -> None:
        options = Options.from_engine(k, sam, verify=VERIFY)
        self.k = k
        self.max_model_len = max_model_len
        self.graph_sizes = graph_sizes
        self.drafting = drafting
        self.exclusion_reason = exclusion_reason
        self.group_of = group_of
        self.is_isolated = is_isolated
        self.options = options
        self._renew_noise = renew_noise if options.repeats_noise else None
        self.switch: Switch = BatchSwitch(options.threshold, logger)
        if options.switch == "auto":
            self.switch = AutoSwitch(k, logger, graph_sizes=graph_sizes)
        self.uniform = False
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
            self.saved.restore_switch(self.switch)
        self._slots: dict[str, int] = {}
        fields = [
            ("prompt", np.int32),  # prompt tokens
            ("answer_start", np.int32),  # prompt tokens before the answer, which an earlier request may have begun
            ("fed", np.int32),  # tokens in the pool
            ("unpadded", np.int32),  # tokens of a padded draft before its padding; k: no padding to count
            ("padded", np.int32, (k,)),  # the padded draft
            ("excluded", np.bool_),
            ("drafted", np.bool_),  # whether the last step gave it a draft
        ]
        self._requests = np.zeros(1, np.dtype(fields, align=True))  # by slot
        self._step: Step | None = None
        self._has_drafts = False
        self._turn = 0
        self.has_news = True
        """Whether the engine must receive the result of the last `propose`; mostly False while there are no drafts."""
        self._news_time = self._report_time = -REPORT_INTERVAL_S
        self._reported: dict[str, Any] = {}
        self._positions = Positions()
        # of the last step with drafts: slots, tokens of each row before it, tokens gained in it, whether it had a draft
        self._gained: tuple[npt.NDArray[np.int64], Int32, Int32, npt.NDArray[np.bool_]] | None = None
        self._excluded: Counter[str] = Counter()
        self._withheld = self._padding = self._padding_accepted = 0
        self._seconds = 0.0

    def make_uniform(self) -> None:
        """From now on, give all requests of a step drafts of k tokens, or none. Call it before the first request.

        A shorter draft is padded: first with the pool's further guesses, however improbable, then with repetitions of
        its last token, or of the text's. Padding is verified like any draft and accepted with the probability that the
        model gives it, so it changes no distribution. It is only counted separately.

        No request gets a draft if there would be only padding, or if one request must not be drafted or is within k
        tokens of max_model_len. A step that still reads a prompt is not uniform with any drafts, so its drafts are not
        padded.
        """
        self.uniform = True
        self.pool.min_prob = 0.0

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Engines call this on every drafter; there is no model to load."""

    def propose(
        self,
        req_ids: Sequence[str],
        token_rows: Int32,
        lengths: Sequence[int] | npt.NDArray[Any],
        prompt_lengths: Sequence[int] | npt.NDArray[Any],
        may_draft: Sequence[Any],
        num_tokens: int,
        num_steps: int = 1,
        planned: bool = True,
        index_later: bool = False,
    ) -> list[list[int]]:
        """Feed this step's tokens and draft for the next step.

        Args:
            req_ids: the B requests of the step.
            token_rows: int32 [>= B, max_model_len], row i holds prompt and answer of request i. The pool reads it in
                place: rows may have any stride, but each must be contiguous.
            lengths: number of certain tokens in row i: prompt and sampled tokens, no drafts.
            prompt_lengths: number of prompt tokens in row i.
            may_draft: false for a request that must not be drafted, such as a partial prefill.
            num_tokens: all tokens that the step computed, including prompts and drafts.
            num_steps: engine steps since the previous call, up to FEED_INTERVAL: a caller may skip calls while the
                switch is off and the requests stay the same.
            planned: whether the next step was planned with drafts. If not, the switch only decides whether later steps
                are planned with drafts.
            index_later: draft before this step's tokens are indexed, which halves the time. `catch_up` indexes them:
                call it where the host would wait for the device. Otherwise the next `propose` does it.

        Returns:
            One list of at most k tokens per request, all empty while the switch is off; see also `make_uniform`.
        """
        batch = len(req_ids)
        if self._renew_noise:
            self._renew_noise()
            self._renew_noise = None
        if not self.drafting:
            return [[] for _ in range(batch)]
        start = time.perf_counter()
        step, same_requests = self._step_of(req_ids)
        step.token_rows = token_rows
        step.ends = np.array(lengths[:batch], np.int32)
        step.prompts = np.asarray(prompt_lengths[:batch], np.int32)
        had_drafts = self._has_drafts
        may_be_on = self.switch.may_be_on(batch)
        starts = self._open_changed(step) if had_drafts or may_be_on or not same_requests else None
        if starts is not None and may_be_on:
            self.switch.observe(step.slots, step.ends - starts, num_tokens)
        should_draft = self.switch.should_draft(batch, planned)
        if starts is not None and (should_draft or had_drafts):
            drafts = self._draft(step, starts, may_draft, should_draft, planned, index_later)
        else:
            self._feed_turn(step, starts, num_steps)
            self.switch.skip(step.slots, step.ends)
            drafts = [[] for _ in range(batch)]
        self.has_news = (
            had_drafts or self._has_drafts or not same_requests or start - self._news_time >= REPORT_INTERVAL_S
        )
        if self.has_news:
            self._news_time = start
        self._seconds += time.perf_counter() - start
        return drafts

    def _step_of(self, req_ids: Sequence[str]) -> tuple[Step, bool]:
        """The step of these requests, and whether they are the same as in the previous step."""
        step = self._step
        if step is not None and step.req_ids == req_ids:
            return step, True
        slots = np.fromiter(map(self._slots.get, req_ids, itertools.repeat(-1)), np.int32, len(req_ids))
        self._step = step = Step(list(req_ids), slots)
        return step, False

    def _open_changed(self, step: Step) -> Int32:
        """Open slots for new requests and for those whose text changed: the engine took tokens back, or a prompt grew.

        Returns the number of tokens of each row that are in the pool, int32 [B].
        """
        fed = self._requests["fed"][step.index]
        changed = (step.slots < 0) | (step.ends < fed) | (step.prompts != self._requests["prompt"][step.index])
        if np.count_nonzero(changed):
            for i in np.flatnonzero(changed).tolist():
                req_id, prompt = step.req_ids[i], step.token_rows[i, : step.prompts[i]]
                self._close(req_id, keep=False)
                step.slots[i] = step.index[i] = self._open(req_id, np.ascontiguousarray(prompt))
            self._step = step  # closing a request clears it
            fed = self._requests["fed"][step.index]
        return fed

    def _open(self, req_id: str, prompt: Int32) -> int:
        self._count_gained()  # also for the slot's previous request
        slot = self.pool.open(prompt, self.group_of(req_id), self.is_isolated(req_id))
        self._slots[req_id] = slot
        if slot >= len(self._requests):
            self._requests = np.concatenate([self._requests, np.zeros(slot, self._requests.dtype)])
        reason = self.exclusion_reason(req_id)
        if reason:
            self._excluded[reason] += 1
        answer_start = self.pool.prompt_size(slot)
        self._requests[slot] = (len(prompt), answer_start, len(prompt), self.k, 0, bool(reason), False)
        return slot

    def _close(self, req_id: str, keep: bool = True) -> None:
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            self._step = None
            self.pool.close(slot, keep=keep)
            self.switch.forget(slot)
            self._unsaved = True

    def _feed_turn(self, step: Step, starts: Int32 | None, num_steps: int) -> None:
        """Feed the requests whose turn it is; `starts` is the result of _open_changed, if it was called."""
        batch = len(step.req_ids)
        first = (self._turn + 1) % FEED_INTERVAL
        self._turn = (self._turn + num_steps) % FEED_INTERVAL
        size = max(MIN_FEED_BATCH, -(-batch // FEED_INTERVAL))
        rows = slice(first * size, min((first + num_steps) * size, batch))
        if first + num_steps > FEED_INTERVAL:
            rows = slice(0, batch)
        if rows.start < rows.stop:
            starts = self._open_changed(step) if starts is None else starts
            self._feed(step, rows, starts[rows])

    def _feed(self, step: Step, rows: slice, starts: Int32) -> None:
        """Feed these rows of a step from `starts` on, without drafting."""
        slots, ends = step.slots[rows], step.ends[rows]
        if (starts >= ends).all():
            return
        out, drafted = np.empty((len(slots), 1), np.int32), np.empty(len(slots), np.int32)
        self.pool.step(slots, step.token_rows[rows], ends - starts, 0, out, drafted, starts=starts)
        self._requests["fed"][slots] = ends

    def _draft(
        self, step: Step, starts: Int32, may_draft: Sequence[Any], should_draft: bool, planned: bool, index_later: bool
    ) -> list[list[int]]:
        """Feed all requests, and draft if the switch says so."""
        counts = step.ends - starts
        decoding = all(may_draft)
        max_drafts = self._max_drafts(step, may_draft, decoding) if should_draft else 0
        out = np.empty((len(starts), self.k), np.int32)
        guessed = np.empty(len(starts), np.int32)
        scores = np.zeros((len(starts), self.k), np.float32)
        if not self.uniform:
            self.pool.min_prob = max(self.options.pool_min_prob, self.switch.min_score)
        self.pool.step(
            step.slots,
            step.token_rows,
            counts,
            max_drafts,
            out,
            guessed,
            scores,
            starts=starts,
            index_later=index_later,
        )
        self._requests["fed"][step.index] = step.ends
        if self.uniform:
            self._count_padding(step, starts, counts)
        if self._has_drafts:
            self._count_gained()
            self._gained = step.index, starts, counts, self._requests["drafted"][step.index]
        return self._select_drafts(step, decoding, out, guessed, scores, planned)

    def _max_drafts(self, step: Step, may_draft: Sequence[Any], decoding: bool) -> Int32:
        """The maximum draft tokens of each request: int32 [B]."""
        limits = np.maximum(np.minimum(self.max_model_len - 1 - step.ends, self.k), 0)
        if not decoding:
            limits *= np.fromiter(map(bool, may_draft), bool, len(limits))
        limits[self._requests["excluded"][step.index]] = 0
        if self.uniform and decoding and (limits < self.k).any():
            limits[:] = 0
        return limits

    def _select_drafts(
        self, step: Step, decoding: bool, out: Int32, guessed: Int32, scores: npt.NDArray[np.float32], planned: bool
    ) -> list[list[int]]:
        """The engine's drafts: the part of the first `guessed` tokens of each row of `out` that the switch chooses."""
        lengths = guessed
        if self.uniform:
            probable = (np.arange(self.k) < guessed[:, None]) & (scores >= self.options.min_prob)
            lengths = probable.sum(1).astype(np.int32)
        pad = self.uniform and decoding and bool(lengths.any())
        chosen = self.switch.choose(step.slots, step.ends, guessed if pad else lengths, scores, pad, planned)
        pad = pad and bool(chosen.any())
        if chosen is not lengths:
            lengths = np.minimum(lengths, chosen)
        if lengths is not guessed:
            self._withheld += int(guessed.sum() - lengths.sum())
        drafted = lengths > 0
        if self._has_drafts:
            self._requests["drafted"] = False
        self._has_drafts = pad or bool(drafted.any())
        self._requests["drafted"][step.index] = pad | drafted
        if pad:
            return self._pad(step, out, guessed, lengths)
        if not self._has_drafts:
            return [[] for _ in range(len(lengths))]
        return to_lists(out, lengths)

    def _pad(self, step: Step, out: Int32, guessed: Int32, lengths: Int32) -> list[list[int]]:
        """Drafts of k tokens: the `guessed` tokens of each row, then fillers; all but `lengths` tokens are padding."""
        rows = np.arange(len(out))
        filler = np.where(guessed > 0, out[rows, guessed - 1], step.token_rows[rows, step.ends - 1])
        padded_drafts = np.where(np.arange(self.k) < guessed[:, None], out, filler[:, None])
        padded = lengths < self.k
        self._requests["unpadded"][step.slots[padded]] = lengths[padded]
        self._requests["padded"][step.slots[padded]] = padded_drafts[padded]
        drafts: list[list[int]] = padded_drafts.tolist()
        return drafts

    def _count_padding(self, step: Step, starts: Int32, counts: Int32) -> None:
        """Count the padding of the previous drafts, and how much of it the tokens fed now confirm."""
        rows = np.flatnonzero((self._requests["unpadded"][step.index] < self.k) & (counts > 0))
        slots, ahead = step.index[rows], np.arange(self.k)
        columns = np.minimum(starts[rows, None] + ahead, step.token_rows.shape[1] - 1)
        same = (self._requests["padded"][slots] == step.token_rows[rows[:, None], columns]) & (
            ahead < counts[rows, None]
        )
        confirmed = np.logical_and.accumulate(same, axis=1).sum(1)
        unpadded = self._requests["unpadded"][slots]
        self._padding += int((self.k - unpadded).sum())
        self._padding_accepted += int(np.maximum(0, confirmed - unpadded).sum())
        self._requests["unpadded"][slots] = self.k

    def catch_up(self) -> None:
        """Index the tokens that `propose` with `index_later` left, and count the previous step."""
        self.pool.catch_up()
        self._count_gained()

    def _count_gained(self) -> None:
        if self._gained:
            index, starts, counts, drafted = self._gained
            gained = drafted & (counts > 0)
            answered = starts[gained] - self._requests["answer_start"][index[gained]]
            self._positions.add(answered, counts[gained])
            self._gained = None

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
                    request = self._requests[self._slots[req_id]]
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
        if slot is not None and prompt_length == self._requests["prompt"][slot]:
            request = self._requests[slot]
            rest = [*itertools.takewhile(lambda token: token >= 0, answer[request["fed"] - request["prompt"] :])]
            if rest:
                self.pool.append(slot, np.array(rest, np.int32))
                request["fed"] += len(rest)

    def take_back(self, req_id: str, length: int) -> None:
        """Forget a request, until its next step, if the pool has more than `length` tokens of its prompt and answer.

        The engine has dropped the rest, and may sample the same number of new tokens before that step.
        """
        slot = self._slots.get(req_id)
        if slot is not None and self._requests["fed"][slot] > length:
            self._close(req_id, keep=False)

    def stats(self) -> dict[str, Any]:
        """Counters since the start: a flat mapping to numbers, so that two snapshots can be subtracted.

        excluded_<reason>: requests that are not drafted, by EXCLUSION_REASONS.
        proposed: draft tokens without padding.
        padding: tokens that make_uniform added and the engine verified.
        proposed_<source>: the pool's guesses; if drafts are padded, including those too improbable for a draft.
        accepted_<source>, padding_accepted: those that the tokens fed next confirmed, verified by the engine or not.
        steps_from_<position>, tokens_from_<position>: what requests gained after a draft (see counters.Positions).
        """
        pool = self.pool.stats()
        by_source: dict[str, Any] = {**pool["by_source"]}
        self._count_gained()
        return {
            "steps": self.switch.steps,
            "steps_on": self.switch.steps_on,
            "transitions": self.switch.transitions,
            "proposed": pool["drafted_tokens"] - self._withheld,
            "padding": self._padding,
            "padding_accepted": self._padding_accepted,
            "draft_s": self._seconds,
            "requests": len(self._slots),
            **{f"excluded_{reason}": self._excluded[reason] for reason in EXCLUSION_REASONS},
            **{f"proposed_{source}": counts["drafted_tokens"] for source, counts in by_source.items()},
            **{f"accepted_{source}": counts["accepted_tokens"] for source, counts in by_source.items()},
            **self._positions.counts(),
            **{name: pool[name] for name in ("bytes_used", "exhausted", "evicted_groups", "evicted_history")},
        }

    def report(self) -> dict[str, Any] | None:
        """The counts since the previous report, and switch_on, 1 or 0; None within REPORT_INTERVAL_S of it.

        An engine with several front ends sends each report to one of them, and each adds up its own.
        """
        now = time.monotonic()
        if not self.drafting or now - self._report_time < REPORT_INTERVAL_S:
            return None
        self._report_time = now
        before, self._reported = self._reported, self.stats()
        return since(before, self._reported) | {"switch_on": int(bool(self.switch.on))}
