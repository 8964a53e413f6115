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
"""Seconds between two reports of the counters, at least, and between two calls with news for the engine, at most."""
FEED_INTERVAL = 32
"""Steps in which each request is fed once while there are no drafts."""
MAX_THREADS = 8
"""Threads that draft for 1,024 requests or more, where the process may use as many processors."""
MIN_FEED_BATCH = 64
"""Requests that are fed together, if so many run: a call costs more than the tokens of a few requests."""


_LOGGER = logging.getLogger("sam_core")


class Step:
    """The B requests of a step.

    slots, ends, prompts: int32 [B]; ends and prompts are the tokens of each row that are certain, and those of its
    prompt.
    index: the slots as int64 [B], by which NumPy indexes five times as fast.
    """

    __slots__ = ("req_ids", "slots", "index", "token_rows", "ends", "prompts")

    def __init__(self, req_ids: list[str], slots: Int32) -> None:
        self.req_ids, self.slots, self.index = req_ids, slots, slots.astype(np.int64)
        self.token_rows: Int32
        self.ends: Int32
        self.prompts: Int32


class SamProposer:
    """Drafts for an engine's requests, which it knows by their ids.

    Feeds row[fed:length] of each request, so that every token enters the indexes exactly once, whatever the engine did
    meanwhile: chunked prefill, preemption and resumption, steps with the switch off. In a step with drafts all requests
    are fed; without drafts each is fed once in FEED_INTERVAL steps, and when it ends.

    An engine whose graphs of decoding hold exactly k + 1 tokens per request calls `make_uniform`.

    Args:
        k: maximum tokens of a draft.
        sam: the engine's `speculative_config["sam"]`, or None for the defaults. ValueError names a wrong one.
        max_model_len: no draft reaches beyond it.
        vocab_size: tokens of the model's vocabulary, to which drafts are limited; None: unknown.
        tokenizer: the folder of the model's tokenizer, or a name, which is ignored: a corpus or a history of another
            tokenizer is refused if both are known.
        drafting: False on ranks whose drafts the engine does not use; they keep no index.
        rank: of the engine among those that share options, as data-parallel ranks do; names its files in `history`.
        exclusion_reason: why the request with this id is never drafted, one of EXCLUSION_REASONS, or None.
        group_of: the group of the request with this id, which shares drafts: BY_PROMPT, the requests with the same
            prompt; bytes, those with this name, where a request continues the text of an ended one that its prompt
            begins with; None, no other. Called when the request is first in a step.
        is_isolated: whether nothing of the request with this id may reach other groups or later requests (see
            `Pool.open`).
        renew_noise: called once on each rank, by the first `propose`, if `Options.repeats_noise`.
        logger: the engine's, which reports each time the switch turns.
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
        logger: logging.Logger = _LOGGER,
    ) -> None:
        options = Options.from_engine(k, sam, verify=VERIFY)
        self.k = k
        self.max_model_len = max_model_len
        self.drafting = drafting
        self.exclusion_reason = exclusion_reason
        self.group_of = group_of
        self.is_isolated = is_isolated
        self.options = options
        self._renew_noise = renew_noise if options.repeats_noise else None
        self.switch: Switch = BatchSwitch(options.threshold, logger)
        if options.switch == "auto":
            self.switch = AutoSwitch(k, logger)
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
            ("prompt", np.int32),  # tokens of the engine's prompt
            ("answer_start", np.int32),  # of these, those before the answer, which an earlier request may have begun
            ("fed", np.int32),  # tokens in the pool
            ("unpadded", np.int32),  # tokens of a padded draft that are no padding; k: no padding is to be counted
            ("padded", np.int32, (k,)),  # that draft
            ("excluded", np.bool_),
            ("drafted", np.bool_),  # whether it got a draft in the last step
        ]
        self._requests = np.zeros(1, np.dtype(fields, align=True))  # by slot
        self._step: Step | None = None
        self._has_drafts = False
        self._turn = 0
        self.has_news = True
        """Whether the engine must receive the last step's drafts; False if there are none, as in the step before."""
        self._news_time = self._report_time = -REPORT_INTERVAL_S
        self._reported: dict[str, Any] = {}
        self._positions = Positions()
        # of the last step with drafts: slots, tokens of each row before it and in it, and whether there was a draft
        self._gained: tuple[npt.NDArray[np.int64], Int32, Int32, npt.NDArray[np.bool_]] | None = None
        self._excluded: Counter[str] = Counter()
        self._withheld = self._padding = self._padding_accepted = 0
        self._seconds = 0.0

    def make_uniform(self) -> None:
        """From now on all requests of a step get drafts of k tokens, or all get none; call it before the first request.

        A draft that ends sooner is padded: by the pool's further guesses, however improbable, then by repetitions of
        its last token, or of the text's. Padding is verified like any draft and accepted with the probability that the
        model gives it, so it changes no distribution. It is only counted apart.

        All get none if there would be nothing but padding, or if one request cannot take k tokens: because it must not
        be drafted, or max_model_len is near. A step in which a prompt is still being read is not uniform with any
        drafts; its drafts are not padded.
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
                place: rows may be at any distance, but each must be contiguous.
            lengths: tokens of row i that are certain: prompt and sampled tokens, no drafts.
            prompt_lengths: tokens of row i that are its prompt.
            may_draft: false for a request that must not be drafted, such as a partial prefill.
            num_tokens: all tokens that the step computed, prompts and drafts included.
            num_steps: engine steps since the last call, up to FEED_INTERVAL: a caller may leave out calls while the
                switch is off and the requests stay the same.
            planned: False: the next step was planned without drafts, so the switch only decides whether later ones are
                planned with some.
            index_later: draft before this step's tokens are indexed, which takes half of the time. `catch_up` indexes
                them and lets the switch learn: call it where the host would wait for the device. Without it the next
                call does.

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
        """The step of these requests, and whether they are those of the last step."""
        step = self._step
        if step is not None and step.req_ids == req_ids:
            return step, True
        slots = np.fromiter(map(self._slots.get, req_ids, itertools.repeat(-1)), np.int32, len(req_ids))
        self._step = step = Step(list(req_ids), slots)
        return step, False

    def _open_changed(self, step: Step) -> Int32:
        """Open slots for new requests and for those whose text changed: the engine took tokens back, or a prompt grew.

        Returns int32 [B], the tokens of each row that are in the pool.
        """
        fed = self._requests["fed"][step.index]
        changed = (step.slots < 0) | (step.ends < fed) | (step.prompts != self._requests["prompt"][step.index])
        if np.count_nonzero(changed):
            for i in np.flatnonzero(changed).tolist():
                req_id, prompt = step.req_ids[i], step.token_rows[i, : step.prompts[i]]
                self._close(req_id, keep=False)
                step.slots[i] = step.index[i] = self._open(req_id, np.ascontiguousarray(prompt))
            self._step = step  # closing forgets it
            fed = self._requests["fed"][step.index]
        return fed

    def _open(self, req_id: str, prompt: Int32) -> int:
        self._count_gained()  # of the slot's last request too
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
        """Feed these rows of a step from `starts` on, and draft nothing."""
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
        """The engine's drafts: of the first `guessed` tokens of each row of `out` those that the switch chooses."""
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
        """Drafts of k tokens: the `guessed` tokens of each row, of which `lengths` are no padding, then fillers."""
        rows = np.arange(len(out))
        filler = np.where(guessed > 0, out[rows, guessed - 1], step.token_rows[rows, step.ends - 1])
        padded_drafts = np.where(np.arange(self.k) < guessed[:, None], out, filler[:, None])
        padded = lengths < self.k
        self._requests["unpadded"][step.slots[padded]] = lengths[padded]
        self._requests["padded"][step.slots[padded]] = padded_drafts[padded]
        drafts: list[list[int]] = padded_drafts.tolist()
        return drafts

    def _count_padding(self, step: Step, starts: Int32, counts: Int32) -> None:
        """Count the padding of the last drafts, and how much of it the tokens fed now confirm."""
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
        """Index what a `propose` with `index_later` has left, learn from the step before, and count it."""
        self.pool.catch_up()
        self.switch.learn()
        self._count_gained()

    def _count_gained(self) -> None:
        if self._gained:
            index, starts, counts, drafted = self._gained
            gained = drafted & (counts > 0)
            answered = starts[gained] - self._requests["answer_start"][index[gained]]
            self._positions.add(answered, counts[gained])
            self._gained = None

    def finish(self, req_ids: Iterable[str]) -> None:
        """Requests have ended (finished or aborted); unknown ids are ignored.

        Call it before the engine moves or reuses rows of the last step, from which missing tokens are fed, or after
        `forget_rows`.

        If `history` names a folder, a thread saves the history: with the last request, and now and then before that.
        """
        ended = [req_id for req_id in req_ids if req_id in self._slots]
        if step := self._step:
            for req_id in ended:
                if req_id in step.req_ids:
                    row = step.req_ids.index(req_id)
                    request = self._requests[self._slots[req_id]]
                    if step.prompts[row] == request["prompt"]:  # else what the pool has is a session's turn before
                        self._feed(step, slice(row, row + 1), request["fed"][None])
        for req_id in ended:
            self._close(req_id)
        if self.saved and (self._unsaved or self.saved.failed):
            self._unsaved = not self.saved.save(self.pool, self.switch, idle=not self._slots)

    def forget_rows(self) -> None:
        """The engine moves or reuses rows of the last step: nothing more is fed from them."""
        self._step = None

    def complete(self, req_id: str, prompt_length: int, answer: Sequence[int]) -> None:
        """Feed what the indexes lack of a request's answer, given whole: for a request that has left the engine's rows.

        The answer ends before its first negative number, a token that the engine does not know yet. Nothing is fed if
        the prompt has grown, as that of a session does with each turn, and the indexes do not have it yet.
        """
        slot = self._slots.get(req_id)
        if slot is not None and prompt_length == self._requests["prompt"][slot]:
            request = self._requests[slot]
            rest = [*itertools.takewhile(lambda token: token >= 0, answer[request["fed"] - request["prompt"] :])]
            if rest:
                self.pool.append(slot, np.array(rest, np.int32))
                request["fed"] += len(rest)

    def take_back(self, req_id: str, length: int) -> None:
        """Forget a request, until it is in a step again, if the pool has more than `length` tokens of its prompt and
        answer: the engine has dropped the others and may sample as many anew before that step."""
        slot = self._slots.get(req_id)
        if slot is not None and self._requests["fed"][slot] > length:
            self._close(req_id, keep=False)

    def stats(self) -> dict[str, Any]:
        """Counters since the start: flat, numbers only, so that two snapshots can be subtracted.

        excluded_<reason>: requests that are not drafted, by EXCLUSION_REASONS.
        proposed: draft tokens without padding.
        padding: tokens that make_uniform added and the engine verified.
        proposed_<source>: the pool's guesses, if drafts are padded also those too improbable for a draft.
        accepted_<source>, padding_accepted: tokens that the tokens fed next confirmed, whether the engine verified them
            or not.
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
        """counters.since the last report, and switch_on, 1 or 0; None within REPORT_INTERVAL_S of it.

        An engine may give each report to another of its front ends, which add them up.
        """
        now = time.monotonic()
        if not self.drafting or now - self._report_time < REPORT_INTERVAL_S:
            return None
        self._report_time = now
        before, self._reported = self._reported, self.stats()
        return since(before, self._reported) | {"switch_on": int(bool(self.switch.on))}
