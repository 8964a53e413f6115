# SPDX-License-Identifier: Apache-2.0
"""The drafter an engine calls: maps its request ids and token rows to slots of a Pool."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sam_core import BY_PROMPT, Pool
from sam_core.exclusion import REASONS
from sam_core.history import SavedHistory
from sam_core.options import VERIFY, Options
from sam_core.stats import Positions
from sam_core.switch import AutoSwitch, BatchSwitch
from sam_core.tokenizer import fingerprint

Int32 = npt.NDArray[np.int32]
REPORT_S = 1.0
"""Least seconds between two reports of the counters to the engine's metrics, most seconds without news for it."""
TURNS = 32
"""Steps in which each request is fed once while nothing is drafted."""
FEWEST = 64
"""Requests that are fed together, if so many run: a call costs more than the tokens of a few requests."""


class SamProposer:
    """Per-request state keyed by the engine's request ids.

    Feeding a request means row[fed:length], so that every token enters the indexes exactly once, whatever the engine did
    in between: chunked prefill, preemption and resumption, steps with the switch off. In a step that drafts all are
    fed; while nothing is drafted each is fed once in TURNS steps, and when it ends.

    An engine whose graphs of decoding hold exactly k + 1 tokens a request calls `make_uniform`.

    Args:
        k: longest draft, in tokens.
        sam: the engine's `speculative_config["sam"]`, or None for the defaults; ValueError names a bad option.
        max_model_len: no draft reaches beyond it.
        vocab_size: tokens of the model's vocabulary, of which no draft has others; None: unknown.
        tokenizer: the folder of the model's tokenizer, or its name, which tells nothing: a corpus or a history of
            another tokenizer is refused where both are known.
        drafting: False on ranks whose drafts the engine does not use; they keep no index.
        rank: the engine's among those that share options, as data-parallel ranks do; names its files in `history`.
        why_not: gives the reason, one of exclusion.REASONS, for which a request (its id) is never drafted, or None.
        group_of: gives the group of a request (its id), with whose requests it shares drafts: BY_PROMPT, those with the
            same prompt; bytes, those with this name; None, nobody. Asked when the request is first seen.
        logger: the engine's, which says each time the switch turns.
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
        why_not: Callable[[str], str | None] = lambda req_id: None,
        group_of: Callable[[str], bytes | Literal["by_prompt"] | None] = lambda req_id: BY_PROMPT,
        logger: logging.Logger = logging.getLogger("sam_core"),
    ) -> None:
        options = Options.from_engine(k, sam, verify=VERIFY)
        self.k = k
        self.max_model_len = max_model_len
        self.drafting = drafting
        self.why_not = why_not
        self.group_of = group_of
        auto = options.switch == "auto"
        self.switch = AutoSwitch(k, logger) if auto else BatchSwitch(options.threshold, logger)
        self.options = options
        self.uniform = False
        known = fingerprint(tokenizer) if tokenizer and drafting and (options.corpus or options.history) else None
        self.saved = None
        if options.history and drafting:
            self.saved = SavedHistory(options, rank, logger, vocab_size, known)
        self._unsaved = False
        self.pool = (self.saved and self.saved.load()) or Pool(
            memory_bytes=options.memory_bytes,
            rule=options.rule,
            sources=options.sources,
            corpus=options.corpus if drafting else None,
            min_prob=options.min_prob,
            vocab_size=vocab_size,
            tokenizer=known,
        )
        if self.saved and isinstance(self.switch, AutoSwitch):
            self.saved.teach(self.switch)
        self._slots: dict[str, int] = {}
        # by slot: tokens of the prompt; tokens in the pool; tokens of the last draft that are no padding, or k if that was
        # counted; whether it is never drafted; whether it got a draft in the last step; that draft, if it was padded
        self._prompt, self._fed, self._believed = np.zeros((3, 1), np.int32)
        self._excluded, self._drafted = np.zeros((2, 1), bool)
        self._padded = np.zeros((1, k), np.int32)
        # of the last step: ids, slots, rows, and tokens of each row; whether anything was drafted in it
        self._ids: list[str] | None = None
        self._rows = np.zeros((1, 1), np.int32), *np.zeros((2, 0), np.int32)
        self._gave = False
        self._turn = 0
        self.has_news = True
        """Whether the engine must hear of the last step's drafts; False where it would hear what it has heard, nothing."""
        self._heard = -REPORT_S
        self._positions = Positions()
        self._reasons: Counter[str] = Counter()
        self._withheld = self._padding = self._padding_accepted = 0
        self._seconds = 0.0
        self._reported = -REPORT_S

    def make_uniform(self) -> None:
        """From now on all requests of a step get drafts of k tokens, or all get none; called before the first request.

        A draft that ends sooner is padded: by the pool's further guesses, however improbable, then by its last token
        again, or the text's, which the model's vocabulary has. Padding is verified like any draft, accepted with the
        probability that the model gives it, so it changes no distribution. It is only counted apart.

        All get none where nothing is drafted but padding, or where one request cannot take k tokens: it must not be
        drafted, or max_model_len is near. A step beside which a prompt is still being read is not uniform whatever is
        drafted; drafts then end where they would without this.
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
    ) -> list[list[int]]:
        """Feed this step's tokens and draft for the next step.

        Args:
            req_ids: the B requests of the step.
            token_rows: int32[>= B, max_model_len], row i holds prompt and answer of request i. The pool reads it in
                place: rows may lie apart, but each must be contiguous.
            lengths: tokens of row i that are certain: prompt and sampled tokens, no drafts.
            prompt_lengths: tokens of row i that are its prompt.
            may_draft: false for a request that must not be drafted, such as a partial prefill.
            num_tokens: all that the step computed, prompts and drafts included.

        Returns:
            One list of at most k tokens a request, all empty while the switch is off; see also `make_uniform`.
        """
        batch = len(req_ids)
        if not self.drafting:
            return [[] for _ in range(batch)]
        start = time.perf_counter()
        same, gave = self._ids == req_ids, self._gave
        ends = np.array(lengths[:batch], np.int32)
        auto = isinstance(self.switch, AutoSwitch)
        on = not auto and self.switch.step(batch)
        turn = slice(0, batch) if on or gave else self._next_turn(batch)
        drafts: list[list[int]] | None = None
        if same and not auto and turn.start == turn.stop:
            self._rows = token_rows, self._rows[1], ends
        else:
            prompts = np.asarray(prompt_lengths[:batch], np.int32)
            slots = self._find(req_ids, token_rows, ends, prompts)
            starts = self._fed[slots]
            counts = ends - starts
            if auto:
                self.switch.observe(slots, counts, num_tokens)
                on = self.switch.wanted(batch)
            if on or gave:
                drafts = self._step(slots, token_rows, starts, counts, ends, may_draft, on)
            else:
                self._feed(turn)
                if auto:
                    nothing = np.zeros((batch, self.k), np.float32)
                    self.switch.choose(slots, ends, np.zeros(batch, np.int32), nothing)
        self.has_news = not same or gave or self._gave or start - self._heard >= REPORT_S
        if self.has_news:
            self._heard = start
        if drafts is None:
            drafts = [[] for _ in range(batch)]
        self._seconds += time.perf_counter() - start
        return drafts

    def _find(self, req_ids: Sequence[str], token_rows: Int32, ends: Int32, prompts: Int32) -> Int32:
        """The slots of the requests; opens those of new ones."""
        if self._ids == req_ids:
            slots = self._rows[1]
        else:
            numbers = map(self._slots.get, req_ids, itertools.repeat(-1))
            slots = np.fromiter(numbers, np.int32, len(req_ids))
        # the engine took tokens back, or a streamed prompt grew over sampled ones: index what there is now
        fresh = (slots < 0) | (ends < self._fed[slots]) | (prompts != self._prompt[slots])
        if fresh.any():
            slots = slots.copy()
            for i in np.flatnonzero(fresh).tolist():
                self._end(req_ids[i], keep=False)
                slots[i] = self._open(req_ids[i], np.ascontiguousarray(token_rows[i, : prompts[i]]))
        self._ids = list(req_ids)
        self._rows = token_rows, slots, ends
        return slots

    def _next_turn(self, batch: int) -> slice:
        """The requests whose turn it is to be fed."""
        self._turn = (self._turn + 1) % TURNS
        size = max(FEWEST, -(-batch // TURNS))
        return slice(min(self._turn * size, batch), min((self._turn + 1) * size, batch))

    def _feed(self, rows: slice) -> None:
        """Feed these requests of the last step, and draft nothing."""
        token_rows, slots, ends = (part[rows] for part in self._rows)
        starts = self._fed[slots]
        if (starts >= ends).all():
            return
        out, drafted = np.empty((len(slots), 1), np.int32), np.empty(len(slots), np.int32)
        self.pool.step(slots, token_rows, ends - starts, 0, out, drafted, starts=starts)
        self._fed[slots] = ends

    def _step(
        self,
        slots: Int32,
        token_rows: Int32,
        starts: Int32,
        counts: Int32,
        ends: Int32,
        may_draft: Sequence[Any],
        on: bool,
    ) -> list[list[int]]:
        """Feed all requests, and draft where the switch is on."""
        batch = len(slots)
        decoding = all(may_draft)
        room = self._room(slots, ends, may_draft, decoding) if on else 0
        out = np.empty((batch, self.k), np.int32)
        drafted = np.empty(batch, np.int32)
        scores = np.zeros((batch, self.k), np.float32)
        self.pool.step(slots, token_rows, counts, room, out, drafted, scores, starts=starts)
        self._fed[slots] = ends
        if self.uniform:
            self._count_padding(slots, token_rows, starts, counts)
        if self._gave:
            gained = self._drafted[slots] & (counts > 0)
            self._positions.add((starts - self._prompt[slots])[gained], counts[gained])
        return self._give(slots, ends, token_rows, decoding, out, drafted, scores)

    def _open(self, req_id: str, prompt: Int32) -> int:
        slot = self.pool.open(prompt, self.group_of(req_id))
        self._slots[req_id] = slot
        if slot >= len(self._fed):
            more = np.zeros((3, slot), np.int32)
            self._prompt, self._fed, self._believed = np.hstack([[self._prompt, self._fed, self._believed], more])
            self._excluded, self._drafted = np.hstack([[self._excluded, self._drafted], np.zeros((2, slot), bool)])
            self._padded = np.concatenate([self._padded, np.zeros((slot, self.k), np.int32)])
        reason = self.why_not(req_id)
        if reason:
            self._reasons[reason] += 1
        self._prompt[slot] = self._fed[slot] = len(prompt)
        self._believed[slot], self._excluded[slot], self._drafted[slot] = self.k, bool(reason), False
        return slot

    def _room(self, slots: Int32, ends: Int32, may_draft: Sequence[Any], decoding: bool) -> Int32:
        """The longest draft that each request may get."""
        room = np.maximum(np.minimum(self.max_model_len - 1 - ends, self.k), 0)
        if not decoding:
            room *= np.fromiter(map(bool, may_draft), bool, len(slots))
        room[self._excluded[slots]] = 0
        if self.uniform and decoding and (room < self.k).any():
            room[:] = 0
        return room

    def _give(
        self,
        slots: Int32,
        ends: Int32,
        token_rows: Int32,
        decoding: bool,
        out: Int32,
        drafted: Int32,
        scores: npt.NDArray[np.float32],
    ) -> list[list[int]]:
        """What the engine gets of the pool's drafts."""
        given = drafted
        if self.uniform:
            guessed = np.arange(self.k) < drafted[:, None]
            given = (guessed & (scores >= self.options.min_prob)).sum(1).astype(np.int32)
        pad = self.uniform and decoding and bool(given.any())
        if isinstance(self.switch, AutoSwitch):
            chosen = self.switch.choose(slots, ends, drafted if pad else given, scores, uniform=pad)
            pad = pad and bool(chosen.any())
            given = np.minimum(given, chosen)
        if given is not drafted:
            self._withheld += int(drafted.sum() - given.sum())
        some = given > 0
        if self._gave:
            self._drafted[:] = False
        self._gave = pad or bool(some.any())
        self._drafted[slots] = pad | some
        if pad:
            last = token_rows[np.arange(len(slots)), ends - 1]
            return self._pad(slots, out, drafted, given, last)
        if not self._gave:
            return [[] for _ in range(len(slots))]
        drafts: list[list[int]] = out.tolist()
        for draft, n in zip(drafts, given.tolist(), strict=True):
            del draft[n:]
        return drafts

    def _pad(self, slots: Int32, out: Int32, guessed: Int32, believed: Int32, last: Int32) -> list[list[int]]:
        """Drafts of k tokens: the pool's `guessed` tokens of each row, of which `believed` are drafts, then fillers."""
        filler = np.where(guessed > 0, out[np.arange(len(out)), guessed - 1], last)
        drafts = np.where(np.arange(self.k) < guessed[:, None], out, filler[:, None])
        padded = believed < self.k
        self._believed[slots[padded]] = believed[padded]
        self._padded[slots[padded]] = drafts[padded]
        return drafts.tolist()

    def _count_padding(self, slots: Int32, token_rows: Int32, starts: Int32, counts: Int32) -> None:
        """Count the padding of the last drafts, and how much of it the tokens fed now confirm."""
        rows = np.flatnonzero((self._believed[slots] < self.k) & (counts > 0))
        slots, counts = slots[rows], counts[rows, None]
        ahead = np.arange(self.k)
        columns = np.minimum(starts[rows, None] + ahead, token_rows.shape[1] - 1)
        same = (self._padded[slots] == token_rows[rows[:, None], columns]) & (ahead < counts)
        confirmed = np.logical_and.accumulate(same, axis=1).sum(1)
        believed = self._believed[slots]
        self._padding += int((self.k - believed).sum())
        self._padding_accepted += int(np.maximum(0, confirmed - believed).sum())
        self._believed[slots] = self.k

    def finish(self, req_ids: Iterable[str]) -> None:
        """Requests have ended (finished or aborted); ids that were never seen are ignored.

        Called before the engine moves or reuses their rows of the last step, of which they are fed what is missing.

        With the last one, the history is saved where `history` names a folder; before that, by a thread.
        """
        ended = [req_id for req_id in req_ids if req_id in self._slots]
        rows = [self._ids.index(req_id) for req_id in ended if req_id in self._ids] if self._ids else []
        for row in rows:
            self._feed(slice(row, row + 1))
        for req_id in ended:
            self._end(req_id)
        if self.saved and self._unsaved:
            save = self.saved.save_busy if self._slots else self.saved.save
            self._unsaved = not save(self.pool, self.switch if isinstance(self.switch, AutoSwitch) else None)

    def _end(self, req_id: str, keep: bool = True) -> None:
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            self._ids = None
            self.pool.close(slot, keep=keep)
            if isinstance(self.switch, AutoSwitch):
                self.switch.forget(slot)
            self._unsaved = True

    def stats(self) -> dict[str, Any]:
        """Counters since the start: flat, numbers only, so that two snapshots can be subtracted.

        excluded_<reason>: requests that are not drafted (see exclusion.py).
        proposed: drafted tokens; padding: those that make_uniform added and the engine verified, not in `proposed`.
        proposed_<source>: the pool's guesses, where drafts are padded also those too improbable for a draft.
        accepted_<source>, padding_accepted: those that the tokens fed next confirmed, whether the engine verified them
            or not.
        steps_from_<position>, tokens_from_<position>: what requests gained after a draft (see stats.Positions).
        """
        pool = self.pool.stats()
        return {
            "steps": self.switch.steps,
            "steps_on": self.switch.steps_on,
            "transitions": self.switch.transitions,
            "proposed": pool["drafted_tokens"] - self._withheld,
            "padding": self._padding,
            "padding_accepted": self._padding_accepted,
            "draft_s": self._seconds,
            "requests": len(self._slots),
            **{f"excluded_{reason}": self._reasons[reason] for reason in REASONS},
            **{f"proposed_{source}": counts["drafted_tokens"] for source, counts in pool["by_source"].items()},
            **{f"accepted_{source}": counts["accepted_tokens"] for source, counts in pool["by_source"].items()},
            **self._positions.counts(),
            **{name: pool[name] for name in ("bytes_used", "exhausted", "evicted_groups", "evicted_history")},
        }

    def report(self) -> dict[str, Any] | None:
        """stats() for the engine's metrics, with switch_on, 1 or 0; None within REPORT_S of the last report."""
        now = time.monotonic()
        if not self.drafting or now - self._reported < REPORT_S:
            return None
        self._reported = now
        return self.stats() | {"switch_on": int(bool(self.switch.on))}
