# SPDX-License-Identifier: Apache-2.0
"""The drafter that an engine calls, and which returns its drafts at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sam_core._sam import to_lists
from sam_core.counters import REPORT_INTERVAL_S, Positions, Reports
from sam_core.options import VERIFY, Options
from sam_core.request_texts import LOGGER, Float32, Int32, RequestTexts, Step
from sam_core.switch import AutoSwitch, BatchSwitch, Switch


class SamProposer:
    """Drafts for an engine's requests, which are identified by their ids.

    In a step with drafts all requests are fed; without drafts each is fed once in FEED_INTERVAL steps, and when it
    ends. See RequestTexts.

    An engine whose decode graphs hold exactly k + 1 tokens per request calls `make_uniform`.

    Args:
        k: maximum tokens of a draft.
        sam: the engine's `speculative_config["sam"]`, or None for the defaults. Raises ValueError for an invalid
            option.
        max_model_len: maximum length of a text, drafts included.
        drafting: False on ranks whose drafts the engine does not use.
        renew_noise: called once on each rank, by the first `propose`, if `Options.repeats_noise`.
        graph_sizes: rows of the graphs that the engine captures, to which it pads its steps.
        logger: the engine's; it receives a message whenever the switch turns on or off.
        texts: other arguments of RequestTexts.
    """

    def __init__(
        self,
        k: int,
        sam: Mapping[str, Any] | None,
        *,
        max_model_len: int,
        drafting: bool = True,
        renew_noise: Callable[[], None] | None = None,
        graph_sizes: Iterable[int] = (),
        logger: logging.Logger = LOGGER,
        **texts: Any,
    ) -> None:
        self.options = options = Options.from_engine(k, sam, verify=VERIFY)
        self.k = k
        self.max_model_len = max_model_len
        self.drafting = drafting
        self._renew_noise = renew_noise if options.repeats_noise else None
        self.switch: Switch = BatchSwitch(options.threshold, logger)
        if options.switch == "auto":
            self.switch = AutoSwitch(k, logger, graph_sizes=graph_sizes)
        self.uniform = False
        fields = [
            ("padding", np.int32),  # padding tokens of a padded draft that are not counted yet
            ("padded", np.int32, (k,)),  # the padded draft
            ("drafted", np.bool_),  # whether the last step gave it a draft
        ]
        self.texts = RequestTexts(options, self.switch, logger=logger, drafting=drafting, fields=fields, **texts)
        self._has_drafts = False
        self.has_news = True
        """Whether the engine must receive the result of the last `propose`; mostly False while there are no drafts."""
        self._news_time = -REPORT_INTERVAL_S
        self._reports = Reports()
        self._positions = Positions()
        # of the last step with drafts: tokens of each answer before it, tokens gained in it, whether it had a draft
        self._gained: tuple[Int32, Int32, npt.NDArray[np.bool_]] | None = None
        self._withheld = self._padding = self._padding_accepted = 0
        self._seconds = 0.0

    def make_uniform(self) -> None:
        """From now on, give all requests of a step drafts of k tokens, or none. Call it before the first request.

        A shorter draft is padded: first with the pool's further guesses, however improbable, then with repetitions of
        its last token, or of the text's. Padding is verified like any draft and accepted with the probability that the
        model gives it, so it changes no distribution. It is only counted separately.

        No request gets a draft if there would be only padding, or if one request must not be drafted or is within k
        tokens of max_model_len. A step that still reads a prompt cannot be uniform, so its drafts are not padded.
        """
        self.uniform = True
        self.texts.pool.min_prob = 0.0

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
        step, same_requests = self.texts.begin(req_ids, token_rows, lengths, prompt_lengths)
        had_drafts = self._has_drafts
        may_be_on = self.switch.may_be_on(batch)
        if had_drafts or may_be_on or not same_requests:
            self.texts.open(step)
        if may_be_on:
            self.switch.observe(step.slots, step.counts, num_tokens)
        should_draft = self.switch.should_draft(batch, planned)
        if step.is_open and (should_draft or had_drafts):
            drafts = self._draft(step, may_draft, should_draft, planned, index_later)
        else:
            self.texts.feed_turn(step, num_steps)
            self.switch.skip(step.slots, step.ends)
            drafts = [[] for _ in range(batch)]
        self.has_news = (
            had_drafts or self._has_drafts or not same_requests or start - self._news_time >= REPORT_INTERVAL_S
        )
        if self.has_news:
            self._news_time = start
        self._seconds += time.perf_counter() - start
        return drafts

    def _draft(
        self, step: Step, may_draft: Sequence[Any], should_draft: bool, planned: bool, index_later: bool
    ) -> list[list[int]]:
        """Feed all requests, and draft if the switch says so."""
        decoding = all(may_draft)
        max_drafts = self._max_drafts(step, may_draft, decoding) if should_draft else 0
        if not self.uniform:
            self.texts.pool.min_prob = max(self.options.pool_min_prob, self.switch.min_score)
        out, guessed, scores = self.texts.draft(step, max_drafts, self.k, index_later)
        if self.uniform:
            self._count_padding(step)
        if self._has_drafts:
            self._count_gained()
            answered = step.starts - self.texts.records["answer_start"][step.index]
            self._gained = answered, step.counts, self.texts.records["drafted"][step.index]
        return self._select_drafts(step, decoding, out, guessed, scores, planned)

    def _max_drafts(self, step: Step, may_draft: Sequence[Any], decoding: bool) -> Int32:
        """The maximum draft tokens of each request: int32 [B]."""
        limits = np.maximum(np.minimum(self.max_model_len - 1 - step.ends, self.k), 0)
        if not decoding:
            limits *= np.fromiter(map(bool, may_draft), bool, len(limits))
        limits[self.texts.records["excluded"][step.index]] = 0
        if self.uniform and decoding and (limits < self.k).any():
            limits[:] = 0
        return limits

    def _select_drafts(
        self, step: Step, decoding: bool, out: Int32, guessed: Int32, scores: Float32, planned: bool
    ) -> list[list[int]]:
        """The drafts for the engine.

        Row i of `out` has a draft of `guessed[i]` tokens, of which the switch chooses the first ones, or none. With
        `uniform`, if any row of a batch that only decodes gets a draft, all rows are padded to k tokens.
        """
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
            self.texts.records["drafted"] = False
        self._has_drafts = pad or bool(drafted.any())
        self.texts.records["drafted"][step.index] = pad | drafted
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
        self.texts.records["padding"][step.slots[padded]] = self.k - lengths[padded]
        self.texts.records["padded"][step.slots[padded]] = padded_drafts[padded]
        drafts: list[list[int]] = padded_drafts.tolist()
        return drafts

    def _count_padding(self, step: Step) -> None:
        """Count the padding of the previous drafts, and how much of it the tokens fed now confirm."""
        rows = np.flatnonzero((self.texts.records["padding"][step.index] > 0) & (step.counts > 0))
        slots, ahead = step.index[rows], np.arange(self.k)
        columns = np.minimum(step.starts[rows, None] + ahead, step.token_rows.shape[1] - 1)
        same = (self.texts.records["padded"][slots] == step.token_rows[rows[:, None], columns]) & (
            ahead < step.counts[rows, None]
        )
        confirmed = np.logical_and.accumulate(same, axis=1).sum(1)
        padding = self.texts.records["padding"][slots]
        self._padding += int(padding.sum())
        self._padding_accepted += int(np.maximum(0, confirmed - (self.k - padding)).sum())
        self.texts.records["padding"][slots] = 0

    def catch_up(self) -> None:
        """Index the tokens that `propose` with `index_later` left, and count the previous step."""
        self.texts.pool.catch_up()
        self._count_gained()

    def _count_gained(self) -> None:
        if self._gained:
            answered, counts, drafted = self._gained
            gained = drafted & (counts > 0)
            self._positions.add(answered[gained], counts[gained])
            self._gained = None

    def finish(self, req_ids: Iterable[str]) -> None:
        """Close requests that have ended: see RequestTexts.finish."""
        self.texts.finish(req_ids)

    def stats(self) -> dict[str, Any]:
        """Counters since the start: a flat mapping to numbers, so that two snapshots can be subtracted.

        excluded_<reason>: requests that are not drafted, by EXCLUSION_REASONS.
        proposed: draft tokens without padding.
        model_tokens, accepted_model_tokens: verified and accepted draft tokens of a model drafter (second runner).
        padding: tokens that make_uniform added and the engine verified.
        proposed_<source>: the pool's guesses; if drafts are padded, including those too improbable for a draft.
        accepted_<source>, padding_accepted: those that the tokens fed next confirmed, verified by the engine or not.
        steps_from_<position>, tokens_from_<position>: what requests gained after a draft (see counters.Positions).
        """
        self._count_gained()
        counts = self.texts.stats()
        return counts | {
            "proposed": counts["proposed"] - self._withheld,
            "model_tokens": 0,
            "accepted_model_tokens": 0,
            "padding": self._padding,
            "padding_accepted": self._padding_accepted,
            "draft_s": self._seconds,
            **self._positions.counts(),
        }

    def report(self) -> dict[str, Any] | None:
        """The counts since the previous report: see Reports. None on ranks that do not draft."""
        return self._reports.take(self.stats, self.switch.on) if self.drafting else None
