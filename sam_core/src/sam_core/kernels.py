# SPDX-License-Identifier: Apache-2.0
"""Triton kernels that complete drafts on a device and learn their acceptance rates (see `device_drafts`).

With a model drafter (MTP, EAGLE, a draft model), a request's draft is the one with more expected accepted tokens: that
of the chain and the table, or the model drafter's, extended from the table.

The host reads no value, and no kernel is recompiled for another number of requests.

Shapes: B requests of a step; per request at most k draft tokens, of which a model drafter makes at most M, and at
most W tokens that the host does not know.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from sam_core import device_drafts as table
from sam_core.budget import Calibration
from sam_core.verify import to_device

NUM_FIELDS = 3
"""Numbers that precede a request's chain."""
_NUM_FIELDS, _NUM_NGRAMS = tl.constexpr(NUM_FIELDS), tl.constexpr(len(table.NGRAMS))
_MAX_NGRAM, _MAX_TOKEN, _UNIT = (tl.constexpr(each) for each in (table.MAX_NGRAM, table.MAX_TOKEN, table.UNIT))
_CHECK, _COMMON, _LOOK_UPS = (tl.constexpr(each) for each in (table.CHECK, table.COMMON, table.LOOK_UPS))
_NO_GROUP = tl.constexpr(table.NO_GROUP)
_NUM_BINS, _NUM_MATCHES, _FILLER = (tl.constexpr(each) for each in (table.NUM_BINS, table.NUM_MATCHES, table.FILLER))
_NUM_CLASSES, _SCALE = tl.constexpr(table.NUM_CLASSES), tl.constexpr(table.SCALE)
_MODEL = tl.constexpr(table.MODEL)
_PRIOR_SAMPLES, _DECAY = tl.constexpr(Calibration.PRIOR_SAMPLES), tl.constexpr(Calibration.DECAY)


class ModelDrafts(NamedTuple):
    """Drafts of the model drafter for B requests.

    tokens: int64 [B, M].
    confidences: float32 [B, M], the estimated probability that each token is accepted if all tokens before it are;
        None: the measured acceptance rate of each position.
    longest: the drafter's maximum length.
    """

    tokens: torch.Tensor
    confidences: torch.Tensor | None
    longest: int


class Drafter:
    """Completes drafts on a device, where it holds a copy of the table and counts of verified tokens.

    For each class of draft tokens it counts how many were verified and how many of them were accepted. As in
    budget.Calibration, counts decay and rates tend to a prior, so classes that are no longer verified are tried again.

    Args:
        ngrams: the table on the host.
        num_states: rows of the engine's request states; each request keeps its row.
        k: maximum tokens of a draft.
        width: W.
        adaptive: whether drafts get confidences.

    num_of_model: int32 [num_states], the number of tokens in each request's latest draft that the model drafter made.
    worth: float32 [num_states, 2], the expected number of accepted tokens of its better draft if the model drafter
        runs one pass, and if it runs all.
    """

    def __init__(
        self, ngrams: table.NgramTable, num_states: int, k: int, width: int, device: torch.device, adaptive: bool
    ) -> None:
        self.k = k
        self._sizes = {"K": k, "W": width, "SAMPLED": triton.next_power_of_2(width), "ADAPTIVE": adaptive}
        self._sizes["COLUMNS"] = triton.next_power_of_2(table.MAX_NGRAM + k)
        self._sizes["LOOKED_UP"] = triton.next_power_of_2(2 * len(table.NGRAMS))
        self.num_slots, self.base = ngrams.num_slots, ngrams.base
        self.memory = torch.from_numpy(ngrams.memory).to(device, copy=True)
        self.constants = torch.from_numpy(np.vstack([table.factors(), table.priorities()])).to(device)
        self.rates = torch.zeros(3, table.NUM_CLASSES, device=device)
        self.counts, self.prior = self.rates[:2], self.rates[2]  # verified and accepted; acceptance rate
        self.prior.copy_(torch.from_numpy(table.class_priors()))
        self.classes = torch.full((num_states, k), table.FILLER, dtype=torch.int32, device=device)
        self.num_of_model = torch.zeros(num_states, dtype=torch.int32, device=device)
        self.worth = torch.zeros(num_states, 2, device=device)

    def learn(self, states: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor) -> None:
        """Learn from a step that has verified the latest drafts of B requests.

        Args:
            states: int [B], rows of the requests' states.
            num_sampled: int [B], accepted draft tokens plus one.
            num_rejected: int [B], draft tokens that were verified and not accepted.
        """
        _learn[(1,)](
            states,
            num_sampled,
            num_rejected,
            len(states),
            self.counts,
            self.classes,
            K=self.k,
            COLUMNS=triton.next_power_of_2(self.k),
            REQUESTS=64,
            COUNTS=triton.next_power_of_2(2 * table.NUM_CLASSES),
        )

    def draft(
        self,
        requests: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int64],
        values: npt.NDArray[np.int32],
        states: torch.Tensor,
        texts: torch.Tensor,
        lengths: torch.Tensor,
        drafts: torch.Tensor,
        confidences: torch.Tensor,
        model: ModelDrafts | None = None,
        num_planned: int | None = None,
    ) -> None:
        """Draft what may follow the tokens that steps have sampled since the host read them.

        Args:
            requests: int64 [B, NUM_FIELDS + W + k], on the host: the number of tokens of each text that the host knows,
                the number of its group, the length of its chain, and the chain itself, as `device_drafts.pack` returns
                it.
            indices, values: changes of the table, as NgramTable.changes returns them.
            states: int [B], rows of the requests' states.
            texts: int32 [num_states, T], tokens of the texts; the host lacks at most the last W of each.
            lengths: int32 [num_states], tokens of each text.
            drafts: int64 [B, k], written; after a draft's end its last token is repeated.
            confidences: float32 [B, k], written if adaptive: the estimated probability that each token is accepted if
                all tokens before it are; 0 after a draft's end.
            model: drafts of the model drafter, which need adaptive.
            num_planned: draft tokens that the engine verifies at most; None: k. Only these count in the choice.
        """
        tokens, estimated, longest = (drafts, None, 0) if model is None else model
        own = confidences if estimated is None else estimated
        _draft[(len(requests),)](
            self._upload(requests, indices, values),
            states,
            texts,
            texts.stride(0),
            lengths,
            self.memory,
            self.base,
            self.num_slots,
            self.constants,
            drafts,
            self.rates,
            self.classes,
            confidences,
            self.num_of_model,
            self.worth,
            tokens,
            tokens.stride(0),
            own,
            own.stride(0),
            tokens.size(1),
            self.k if num_planned is None else num_planned,
            LONGEST=longest,
            ESTIMATED=estimated is not None,
            **self._sizes,
            num_warps=1,
        )

    def _upload(
        self, requests: npt.NDArray[np.int64], indices: npt.NDArray[np.int64], values: npt.NDArray[np.int32]
    ) -> torch.Tensor:
        """Copy `requests` to the device, flat, and change the table there; in one transfer."""
        num_numbers, num_changed = requests.size, len(indices)
        pairs = np.pad(values, (0, num_changed % 2)).view(np.int64)
        uploaded = to_device(np.concatenate([requests.ravel(), indices, pairs]), self.memory.device)
        if num_changed:
            places = uploaded[num_numbers : num_numbers + num_changed]
            self.memory.index_copy_(0, places, uploaded[num_numbers + num_changed :].view(torch.int32)[:num_changed])
        return uploaded


@triton.jit(do_not_specialize=["num_model_tokens", "num_planned"], do_not_specialize_on_alignment=["states_ptr"])
def _draft(
    requests_ptr,
    states_ptr,
    texts_ptr,
    texts_stride,
    lengths_ptr,
    memory_ptr,
    base,
    num_slots,
    constants_ptr,
    drafts_ptr,
    rates_ptr,
    classes_ptr,
    confidences_ptr,
    num_of_model_ptr,
    worth_ptr,
    model_tokens_ptr,
    model_tokens_stride,
    model_confidences_ptr,
    model_confidences_stride,
    num_model_tokens,
    num_planned,
    LONGEST: tl.constexpr,
    ESTIMATED: tl.constexpr,
    K: tl.constexpr,
    W: tl.constexpr,
    SAMPLED: tl.constexpr,
    COLUMNS: tl.constexpr,
    LOOKED_UP: tl.constexpr,
    ADAPTIVE: tl.constexpr,
):
    """One program per request. Blocks: SAMPLED tokens that the host does not know; COLUMNS for MAX_NGRAM tokens before
    the draft, and the draft; LOOKED_UP n-grams, in the group and in all texts."""
    request = tl.program_id(0).to(tl.int64)
    requests_ptr += request * (_NUM_FIELDS + W + K)
    state = tl.load(states_ptr + request).to(tl.int64)
    length = tl.load(lengths_ptr + state).to(tl.int64)
    column = tl.arange(0, COLUMNS) - _MAX_NGRAM
    is_column = (column >= 0) & (column < K)
    text_ptr = texts_ptr + state * texts_stride
    tokens, classes, probability, drafted = _chain(requests_ptr, text_ptr, texts_stride, length, column, K, W, SAMPLED)
    ngrams = (constants_ptr, memory_ptr, base, num_slots, tl.load(requests_ptr + 1))
    tokens, classes, drafted = _copy(tokens, classes, drafted, column, ngrams, K, LOOKED_UP)
    if ADAPTIVE:
        classes = tl.where(is_column & (column < drafted), classes, _FILLER)
        confidence = _confidence(classes, probability, rates_ptr)
        if LONGEST > 0:
            model_tokens_ptr += request * model_tokens_stride
            model_confidences_ptr += request * model_confidences_stride
            draft = (tokens, classes, confidence, drafted)
            model = (model_tokens_ptr, model_confidences_ptr, num_model_tokens)
            choice = (num_of_model_ptr + state, worth_ptr + 2 * state, num_planned)
            tokens, classes, confidence, drafted = _choose(
                draft, model, choice, probability, column, ngrams, rates_ptr, LONGEST, ESTIMATED, K, LOOKED_UP
            )
        tl.store(classes_ptr + state * K + column, classes, mask=is_column)
        tl.store(confidences_ptr + request * K + column, confidence, mask=is_column)
    end = tl.sum(tl.where(column == drafted - 1, tokens, 0), 0)
    tl.store(drafts_ptr + request * K + column, tl.where(column < drafted, tokens, end), mask=is_column)


@triton.jit
def _chain(
    requests_ptr,
    text_ptr,
    text_size,
    length,
    column,
    K: tl.constexpr,
    W: tl.constexpr,
    SAMPLED: tl.constexpr,
):
    """The rest of a request's chain if the tokens that the host does not know are its beginning.

    Returns tokens by column, with those of the text before the draft; classes; probabilities times _SCALE; the number
    of draft tokens.
    """
    known, chain_length, chain_ptr = tl.load(requests_ptr), tl.load(requests_ptr + 2), requests_ptr + _NUM_FIELDS
    count = tl.minimum(tl.maximum(length - known, 0), W)
    place = tl.arange(0, SAMPLED)
    is_sampled = place < count
    sampled = tl.load(text_ptr + tl.minimum(known + place, text_size - 1), mask=is_sampled, other=0)
    chained = tl.load(chain_ptr + place, mask=is_sampled, other=0) % _MAX_TOKEN
    follows = tl.min((chained == sampled).to(tl.int32), 0)
    drafted = tl.minimum(tl.maximum(chain_length - count, 0), K) * follows

    is_chained = (column >= 0) & (column < drafted)
    before = tl.minimum(tl.maximum(known + count + column, 0), text_size - 1)
    last_tokens = tl.load(text_ptr + before, mask=column < 0, other=0)
    packed = tl.load(chain_ptr + count + column, mask=is_chained, other=0)
    tokens = tl.where(is_chained, (packed % _MAX_TOKEN).to(tl.int32), last_tokens)
    probability = packed // _MAX_TOKEN
    classes = tl.where(is_chained, probability * _NUM_BINS // (_SCALE + 1), _FILLER).to(tl.int32)
    return tokens, classes, probability, drafted


@triton.jit
def _copy(tokens, classes, drafted, column, ngrams, K: tl.constexpr, LOOKED_UP: tl.constexpr):
    """Look up the last tokens of a draft of `drafted` tokens, and copy what followed them in the table's texts.

    ngrams: constants, memory, base and slots of the table, and the number of the request's group.
    """
    constants_ptr, memory_ptr, base, num_slots, group = ngrams
    looked_up, key = tl.arange(0, LOOKED_UP), tl.arange(0, _MAX_NGRAM)
    is_looked_up = (looked_up < 2 * _NUM_NGRAMS) & (group != _NO_GROUP)
    factor_ptr = constants_ptr + looked_up % _NUM_NGRAMS
    number = tl.where(looked_up < _NUM_NGRAMS, group, _COMMON)
    slot_of_group = number * tl.load(factor_ptr)
    check_of_group = number * tl.load(factor_ptr + _NUM_NGRAMS)
    key_ptr = factor_ptr[None, :] + (1 + key[:, None]) * (2 * _NUM_NGRAMS)
    slot_factors, check_factors = tl.load(key_ptr), tl.load(key_ptr + _NUM_NGRAMS)
    priority_ptr = constants_ptr + (1 + _MAX_NGRAM) * 2 * _NUM_NGRAMS
    priority = tl.load(priority_ptr + looked_up, mask=is_looked_up, other=0)
    is_column = (column >= 0) & (column < K)
    for _ in range(_LOOK_UPS):
        is_last = column[None, :] + _MAX_NGRAM == key[:, None] + drafted
        last = tl.sum(tl.where(is_last, tokens[None, :], 0), 1).to(tl.int64)[:, None]
        slot = (slot_of_group + tl.sum(last * slot_factors, 0)) & (num_slots - 1)
        check = (check_of_group + tl.sum(last * check_factors, 0)) & _CHECK
        entry_ptr = memory_ptr + base + 2 * slot
        entry = tl.load(entry_ptr, mask=is_looked_up, other=0).to(tl.int64)
        is_match = is_looked_up & (tl.load(entry_ptr + 1, mask=is_looked_up, other=0) == check)
        rank = tl.where(is_match, priority + entry, 0)
        best = tl.max(rank, 0)
        which = tl.min(tl.where(rank == best, looked_up, LOOKED_UP), 0)
        confirmed = tl.sum(tl.where(looked_up == which, entry, 0), 0) // _UNIT
        match = (confirmed * 2 * _NUM_NGRAMS + which + _NUM_BINS).to(tl.int32)
        ahead = column - drafted
        is_new = is_column & (ahead >= 0)
        # Without a match the position is 0, that of the most frequent token.
        copied = tl.load(memory_ptr + best % _UNIT + ahead, mask=is_new, other=0)
        found = tl.min(tl.where(is_new & (copied < 0), ahead, K), 0)
        tokens = tl.where(is_new, tl.maximum(copied, 0), tokens)
        copied_class = tl.where(best > 0, tl.where(ahead > 0, match + _NUM_MATCHES, match), _FILLER)
        classes = tl.where(is_new, copied_class, classes)
        # The position may hold NO_TOKEN if a shorter text has reused the page since.
        drafted = tl.minimum(drafted + tl.maximum(found, 1), K)
    return tokens, classes, drafted


@triton.jit
def _choose(
    draft,
    model,
    choice,
    probability,
    column,
    ngrams,
    rates_ptr,
    LONGEST: tl.constexpr,
    ESTIMATED: tl.constexpr,
    K: tl.constexpr,
    LOOKED_UP: tl.constexpr,
):
    """The better of two drafts: `draft`, and the model drafter's, extended from the table.

    draft: tokens, classes, confidences and length, as what is returned.
    model: tokens and confidences of the model drafter, and their number.
    choice: where num_of_model and worth are written; the number of draft tokens that count.
    """
    tokens, classes, confidence, drafted = draft
    model_tokens_ptr, model_confidences_ptr, num_model_tokens = model
    num_of_model_ptr, worth_ptr, num_planned = choice
    is_column, offset = (column >= 0) & (column < K), tl.maximum(column, 0)
    is_model = (column >= 0) & (column < num_model_tokens)
    own = tl.load(model_tokens_ptr + offset, mask=is_model, other=0)
    agrees = tl.min(tl.where(is_model, ((column < drafted) & (own == tokens)).to(tl.int32), 1), 0)
    # If the other draft begins with the model's tokens, its rest extends them; otherwise a look-up does.
    model_tokens = tl.where(is_model, own.to(tl.int32), tokens)
    model_classes = tl.where(is_model, _MODEL + column, classes).to(tl.int32)
    model_drafted = tl.where(agrees > 0, drafted, num_model_tokens)
    model_tokens, model_classes, model_drafted = _copy(
        model_tokens, model_classes, model_drafted, column, ngrams, K, LOOKED_UP
    )
    model_classes = tl.where(is_column & (column < model_drafted), model_classes, _FILLER)
    model_confidence = _confidence(model_classes, probability, rates_ptr)
    if ESTIMATED:
        estimated = tl.load(model_confidences_ptr + offset, mask=is_model, other=0.0)
        model_confidence = tl.where(is_model, estimated, model_confidence)
    is_planned = is_column & (column < num_planned)
    expected, expected_of_model = _expected(confidence, is_planned), _expected(model_confidence, is_planned)
    is_better = expected_of_model > expected
    tl.store(num_of_model_ptr, tl.where(is_better, num_model_tokens, 0))
    one, full = _expected_of_passes(
        model_confidence, expected_of_model, column, is_planned, rates_ptr, num_model_tokens, LONGEST
    )
    tl.store(worth_ptr, tl.maximum(expected, one))
    tl.store(worth_ptr + 1, tl.maximum(expected, full))
    tokens = tl.where(is_better, model_tokens, tokens)
    classes = tl.where(is_better, model_classes, classes)
    confidence = tl.where(is_better, model_confidence, confidence)
    return tokens, classes, confidence, tl.where(is_better, model_drafted, drafted)


@triton.jit
def _expected_of_passes(confidence, expected, column, is_planned, rates_ptr, num_tokens, LONGEST: tl.constexpr):
    """The expected numbers of accepted tokens if the model drafter runs one pass, and if it runs all.

    confidence, expected, num_tokens: those of its latest draft. From other passes the first token counts alone, and
    later tokens by their position.
    """
    first = tl.sum(tl.where(column == 0, confidence, 0.0), 0)
    is_longer = (column >= num_tokens) & (column < LONGEST)
    later = _confidence(tl.where(is_longer, _MODEL + column, _FILLER).to(tl.int32), 0, rates_ptr)
    full = tl.where(is_longer, later, tl.where(column < num_tokens, confidence, 0.0))
    one = tl.where(num_tokens == 1, expected, first)
    return one, tl.where(num_tokens == LONGEST, expected, _expected(full, is_planned))


@triton.jit
def _confidence(classes, probability, rates_ptr):
    """The probability that a token of each class is accepted. probability: of a chain's tokens, times _SCALE."""
    verified, accepted = tl.load(rates_ptr + classes), tl.load(rates_ptr + _NUM_CLASSES + classes)
    prior = tl.load(rates_ptr + 2 * _NUM_CLASSES + classes)
    rate = (accepted + _PRIOR_SAMPLES * prior) / (verified + _PRIOR_SAMPLES)
    # A chain's probability is finer than its bin: scale it by the bin's acceptance rate over its prior.
    fine = rate * (probability * (1.0 / _SCALE)) / tl.maximum(prior, 1e-6)
    return tl.minimum(tl.maximum(tl.where(classes < _NUM_BINS, fine, rate), 0.0), 1.0)


@triton.jit
def _expected(confidence, is_planned):
    """The expected number of accepted tokens of a draft: the sum of the probabilities of its paths."""
    paths = tl.cumprod(tl.where(is_planned, confidence, 1.0), 0)
    return tl.sum(tl.where(is_planned, paths, 0.0), 0)


@triton.jit(
    do_not_specialize=["num_requests"],
    do_not_specialize_on_alignment=["states_ptr", "num_sampled_ptr", "num_rejected_ptr"],
)
def _learn(
    states_ptr,
    num_sampled_ptr,
    num_rejected_ptr,
    num_requests,
    counts_ptr,
    classes_ptr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    REQUESTS: tl.constexpr,
    COUNTS: tl.constexpr,
):
    """One program, so that all counts decay before any is increased."""
    count_ptr, is_count = counts_ptr + tl.arange(0, COUNTS), tl.arange(0, COUNTS) < 2 * _NUM_CLASSES
    tl.store(count_ptr, tl.load(count_ptr, mask=is_count, other=0.0) * _DECAY, mask=is_count)
    tl.debug_barrier()
    column = tl.arange(0, COLUMNS)[None, :]
    for first in range(0, num_requests, REQUESTS):
        request = first + tl.arange(0, REQUESTS)
        is_request = request < num_requests
        state = tl.load(states_ptr + request, mask=is_request, other=0).to(tl.int64)[:, None]
        accepted = tl.maximum(tl.load(num_sampled_ptr + request, mask=is_request, other=0) - 1, 0)[:, None]
        is_refused = tl.load(num_rejected_ptr + request, mask=is_request, other=0)[:, None] > 0
        # Tokens after the first refused one say nothing.
        is_graded = is_request[:, None] & (column < K) & (column < accepted + is_refused.to(tl.int32))
        classes = tl.load(classes_ptr + state * K + column, mask=is_graded, other=0)
        ones = tl.full((REQUESTS, COLUMNS), 1.0, tl.float32)
        tl.atomic_add(counts_ptr + classes, ones, mask=is_graded)
        tl.atomic_add(counts_ptr + _NUM_CLASSES + classes, ones, mask=is_graded & (column < accepted))
