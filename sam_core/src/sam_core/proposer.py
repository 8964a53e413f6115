# SPDX-License-Identifier: Apache-2.0
"""The drafter an engine calls: maps its request ids and token rows to slots of a Pool."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core import Pool
from sam_core.exclusion import REASONS
from sam_core.history import SavedHistory
from sam_core.options import VERIFY, Options
from sam_core.stats import Positions
from sam_core.switch import AutoSwitch, BatchSwitch

Int32 = npt.NDArray[np.int32]
REPORT_S = 1.0
"""Least seconds between two reports of the counters to the engine's metrics."""


class SamProposer:
    """Per-request state keyed by the engine's request ids.

    Each call feeds `row[fed:length]` of every request, so that every token enters the indexes exactly once, whatever the
    engine did in between: chunked prefill, preemption and resumption, steps with the switch off.

    An engine whose graphs of decoding hold exactly k + 1 tokens a request calls `make_uniform`.

    Args:
        k: longest draft, in tokens.
        sam: the engine's `speculative_config["sam"]`, or None for the defaults; ValueError names a bad option.
        max_model_len: no draft reaches beyond it.
        drafting: False on ranks whose drafts the engine does not use; they keep no index.
        rank: the engine's among those that share options, as data-parallel ranks do; names its files in `history`.
        why_not: gives the reason, one of exclusion.REASONS, for which a request (its id) is never drafted, or None.
        logger: the engine's, which says each time the switch turns.
    """

    def __init__(
        self,
        k: int,
        sam: Mapping[str, Any] | None,
        *,
        max_model_len: int,
        drafting: bool = True,
        rank: int = 0,
        why_not: Callable[[str], str | None] = lambda req_id: None,
        logger: logging.Logger = logging.getLogger("sam_core"),
    ) -> None:
        options = Options.from_engine(k, sam, verify=VERIFY)
        self.k = k
        self.max_model_len = max_model_len
        self.drafting = drafting
        self.why_not = why_not
        auto = options.switch == "auto"
        self.switch = AutoSwitch(k, logger, options.threshold) if auto else BatchSwitch(options.threshold, logger)
        self.options = options
        self.uniform = False
        self.saved = SavedHistory(options, rank, logger) if options.history and drafting else None
        self._unsaved = False
        self.pool = self._new_pool(options.min_prob)
        if self.saved and isinstance(self.switch, AutoSwitch):
            self.saved.teach(self.switch)
        self._slots: dict[str, int] = {}
        self._prompts: dict[str, int] = {}
        self._fed: dict[str, int] = {}
        self._excluded: set[str] = set()
        self._drafted: set[str] = set()
        self._positions = Positions()
        self._reasons: Counter[str] = Counter()
        self._padded: dict[str, tuple[int, list[int]]] = {}
        self._withheld = self._padding = self._padding_accepted = 0
        self._seconds = 0.0
        self._reported = -REPORT_S

    def _new_pool(self, min_prob: float) -> Pool:
        if self.saved and (pool := self.saved.load(min_prob)):
            return pool
        return Pool(
            memory_bytes=self.options.memory_bytes,
            rule=self.options.rule,
            sources=self.options.sources,
            corpus=self.options.corpus if self.drafting else None,
            min_prob=min_prob,
        )

    def make_uniform(self) -> None:
        """From now on all requests of a step get drafts of k tokens, or all get none; called before the first request.

        A draft that ends sooner is padded: by the pool's further guesses, however improbable, then by its last token
        again, or the text's, which the model's vocabulary has. Padding is verified like any draft, accepted with the
        probability that the model gives it, so it changes no distribution. It is only counted apart.

        All get none where nothing is drafted but padding, or where one request cannot take k tokens: it must not be
        drafted, or max_model_len is near. A step beside which a prompt is still being read is not uniform whatever is
        drafted; drafts then end where they would without this.
        """
        if not self.uniform:
            self.uniform = True
            self.pool = self._new_pool(0.0)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Engines call this on every drafter; there is no model to load."""

    def propose(
        self,
        req_ids: Sequence[str],
        token_rows: Int32,
        lengths: Sequence[int] | npt.NDArray[Any],
        prompt_lengths: Sequence[int] | npt.NDArray[Any],
        may_draft: Sequence[Any],
    ) -> list[list[int]]:
        """Feed this step's tokens and draft for the next step.

        Args:
            req_ids: the B requests of the step.
            token_rows: int32[>= B, max_model_len], row i holds prompt and answer of request i.
            lengths: tokens of row i that are certain: prompt and sampled tokens, no drafts.
            prompt_lengths: tokens of row i that are its prompt.
            may_draft: false for a request that must not be drafted, such as a partial prefill.

        Returns:
            One list of at most k tokens a request, all empty while the switch is off; see also `make_uniform`.
        """
        batch = len(req_ids)
        if not self.drafting:
            return [[] for _ in range(batch)]
        start = time.perf_counter()
        slots = np.empty(batch, np.int32)
        counts = np.empty(batch, np.int32)
        room = np.zeros(batch, np.int32)
        new: list[Int32] = []
        for i, req_id in enumerate(req_ids):
            length, prompt = int(lengths[i]), int(prompt_lengths[i])
            row = token_rows[i]
            if length < self._fed.get(req_id, 0) or prompt != self._prompts.get(req_id, prompt):
                # the engine took tokens back, or a streamed prompt grew over sampled ones: index what there is now
                self._end(req_id, keep=False)
            if req_id not in self._slots:
                self._slots[req_id] = self.pool.open(np.ascontiguousarray(row[:prompt], np.int32))
                self._prompts[req_id] = self._fed[req_id] = prompt
                if reason := self.why_not(req_id):
                    self._excluded.add(req_id)
                    self._reasons[reason] += 1
            fed = self._fed[req_id]
            if req_id in self._padded and fed < length:
                self._count_padding(req_id, row[fed:length].tolist())
            slots[i] = self._slots[req_id]
            counts[i] = length - fed
            if req_id in self._drafted and length > fed:
                self._positions.add(fed - prompt, length - fed)
            new.append(row[fed:length])
            self._fed[req_id] = length
            if may_draft[i] and req_id not in self._excluded:
                room[i] = max(0, min(self.k, self.max_model_len - length - 1))
        decoding = all(may_draft)
        if isinstance(self.switch, AutoSwitch):
            self.switch.observe(slots, counts, decoding)
            on = self.switch.wanted(batch)
        else:
            on = self.switch.step(batch)
        if not on or (self.uniform and decoding and (room < self.k).any()):
            room[:] = 0
        tokens = np.concatenate(new).astype(np.int32, copy=False) if new else np.empty(0, np.int32)
        out = np.empty((batch, self.k), np.int32)
        drafted = np.empty(batch, np.int32)
        scores = np.zeros((batch, self.k), np.float32)
        self.pool.step(slots, tokens, counts, room, out, drafted, scores)
        drafts = self._give(req_ids, slots, lengths, token_rows, decoding, out, drafted, scores)
        self._drafted = {req_id for req_id, draft in zip(req_ids, drafts, strict=True) if draft}
        self._seconds += time.perf_counter() - start
        return drafts

    def _give(
        self,
        req_ids: Sequence[str],
        slots: Int32,
        lengths: Sequence[int] | npt.NDArray[Any],
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
        pad = self.uniform and decoding and given.any()
        if isinstance(self.switch, AutoSwitch):
            chosen = self.switch.choose(slots, np.asarray(lengths), drafted if pad else given, scores, uniform=pad)
            pad = pad and chosen.any()
            given = np.minimum(given, chosen)
        self._withheld += int(drafted.sum() - given.sum())
        if not pad:
            return [out[i, :n].tolist() for i, n in enumerate(given.tolist())]
        last = [token_rows[i][int(lengths[i]) - 1] for i in range(len(req_ids))]
        return self._pad(req_ids, out, drafted.tolist(), given.tolist(), last)

    def _pad(
        self, req_ids: Sequence[str], out: Int32, guessed: list[int], believed: list[int], last: list[Any]
    ) -> list[list[int]]:
        """Drafts of k tokens: the pool's `guessed` tokens of each row, of which `believed` are drafts, then fillers."""
        for i, n in enumerate(guessed):
            out[i, n:] = out[i, n - 1] if n else last[i]
        drafts: list[list[int]] = out.tolist()
        for req_id, draft, n in zip(req_ids, drafts, believed, strict=True):
            if n < self.k:
                self._padded[req_id] = n, draft
        return drafts

    def _count_padding(self, req_id: str, tokens: list[int]) -> None:
        """Count the padding of the last draft, and how much of it the tokens fed next confirmed."""
        believed, draft = self._padded.pop(req_id)
        same = next((i for i, pair in enumerate(zip(draft, tokens, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(draft), len(tokens)) if same is None else same
        self._padding += self.k - believed
        self._padding_accepted += max(0, same - believed)

    def finish(self, req_ids: Iterable[str]) -> None:
        """Requests have ended (finished or aborted); ids that were never seen are ignored.

        With the last one, the history is saved where `history` names a folder.
        """
        for req_id in req_ids:
            self._end(req_id)
        if self.saved and self._unsaved and not self._slots:
            self._unsaved = not self.saved.save(self.pool, self.switch if isinstance(self.switch, AutoSwitch) else None)

    def _end(self, req_id: str, keep: bool = True) -> None:
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            self.pool.close(slot, keep=keep)
            if isinstance(self.switch, AutoSwitch):
                self.switch.forget(slot)
            del self._prompts[req_id], self._fed[req_id]
            self._padded.pop(req_id, None)
            self._excluded.discard(req_id)
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
