# SPDX-License-Identifier: Apache-2.0
"""The drafter of vLLM's second model runner (vllm/v1/worker/gpu), where drafts stay on the device.

The runner schedules a step while the previous one still runs, so the host does not know the tokens of the latest one or
two steps. It drafts chains that continue the tokens it knows, and the device completes them (see `sam_core.kernels`):
if the tokens sampled since are the beginning of the chain, the draft is its rest, otherwise what a table of the texts
holds. No step waits for the host, even if the engine schedules synchronously. A thread drafts the chains while the
runner launches the step, so drafting adds no time to it.

All requests get k draft tokens, or none if the engine's schedule by batch size says 0. With adaptive verification each
token has a confidence, from which the engine chooses the number of tokens to verify per request.

The runner calls `update_requests` when a step begins, `observe_output` with the sampled tokens, which are still being
copied to the host, and `propose` for the drafts of the next step.

Shapes: B requests of a step; W is the maximum number of sampled tokens per request that the host does not know.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from sam_core.counters import Positions, Reports
from sam_core.device_drafts import (
    COMMON,
    MAX_TOKEN,
    NO_GROUP,
    PAGE,
    SCALE,
    NgramTable,
    pack,
    step_probabilities,
    unpack,
)
from sam_core.engines.vllm.config import LOGGER
from sam_core.engines.vllm.groups import request_group, request_salt
from sam_core.engines.vllm.passes import Passes
from sam_core.engines.vllm.pauses import Pauses
from sam_core.engines.vllm.sampling import renew_noise
from sam_core.engines.vllm.texts import BatchTexts, Output, Sampled, Text
from sam_core.groups import Group
from sam_core.kernels import NUM_FIELDS, Drafter, ModelDrafts
from sam_core.options import VERIFY, Options
from sam_core.request_texts import Float32, Int32, RequestTexts, Step
from sam_core.switch import Switch

MAX_SLOTS = 1 << 22
"""Maximum n-grams in the table, and maximum tokens of its texts: 48 MiB."""
TABLE_SHARE = 16
"""The table uses at most 1 / TABLE_SHARE of `memory_bytes`, on the device and on the host."""
SLOT_BYTES = 13
"""Bytes of the table per n-gram and token, rounded up."""
MAX_CHAIN = 64
"""Maximum tokens that a pool drafts."""
WARMUP_REQUESTS = ("_warmup_", "_v2_mixed_warmup")
"""Prefixes of the ids of vLLM's warm-up requests (gpu/warmup.py), after which it reseeds its random numbers."""


class Chains(NamedTuple):
    """Drafts of B requests.

    tokens: int32 [B, chain_length].
    lengths: int32 [B].
    probabilities: conditional probability of each token, float32 [B, chain_length].
    """

    tokens: Int32
    lengths: Int32
    probabilities: Float32


@dataclass
class OpenGroup:
    """A group with requests in the batch.

    table_group: its number in the table.
    requests: how many of them are in the batch.
    """

    table_group: int
    requests: int = 0


class ChainProposer:
    """Drafts chains that the device completes. Verified tokens are counted once the host knows them.

    Args:
        k, sam, drafting: as for SamProposer, but options `switch` and `min_prob` are not used: the engine says when to
            draft, and each request gets k tokens.
        max_concurrent: number of steps that a chain spans, limited by MAX_CHAIN.
        texts: other arguments of RequestTexts.
    """

    def __init__(
        self, k: int, sam: Mapping[str, Any] | None, max_concurrent: int, drafting: bool = True, **texts: Any
    ) -> None:
        self.options = Options.from_engine(k, sam, verify=VERIFY)
        self.k, self.drafting = k, drafting
        self.chain_length = min(max_concurrent * (k + 1) + k, MAX_CHAIN)
        self.texts = RequestTexts(self.options, Switch(LOGGER), drafting=drafting, **texts)
        self.texts.pool.min_prob = 0.0
        self._reports, self._positions = Reports(), Positions()
        self._num_verified, self._seconds = 0, 0.0
        self._model_tokens = [0, 0]
        self._thread = ThreadPoolExecutor(1, "sam-draft")
        self._drafting: Future[Chains] | None = None

    def begin(self, req_ids: list[str], token_rows: Int32, ends: Int32, prompts: Int32, should_draft: bool) -> None:
        """Feed the requests' tokens and start drafting chains that continue them. Rows must not change before `chains`.

        Args:
            req_ids: ids of the B requests.
            token_rows: int32 [>= B, max_model_len].
            ends, prompts: int32 [>= B].
            should_draft: whether to draft; if not, only a part of the requests is fed.
        """
        start = time.perf_counter()
        self.texts.switch.count(should_draft)
        step, _ = self.texts.begin(req_ids, token_rows, ends, prompts)
        self.texts.open(step)
        if should_draft:
            self._drafting = self._thread.submit(self._draft_chains, step)
        else:
            self.texts.feed_turn(step, num_steps=1)
        self._seconds += time.perf_counter() - start

    def chains(self) -> Chains | None:
        """Wait for the chains that `begin` started and return them; None if it started none."""
        drafting, self._drafting = self._drafting, None
        if drafting is None:
            return None
        start = time.perf_counter()
        found = drafting.result()
        self._seconds += time.perf_counter() - start
        return found

    def _draft_chains(self, step: Step) -> Chains:
        tokens, lengths, scores = self.texts.draft(step, self.chain_length, self.chain_length)
        return Chains(tokens, lengths, step_probabilities(scores))

    def count(self, verified: list[int], positions: list[int], gained: list[int]) -> None:
        """Count `verified` draft tokens and `gained` tokens of requests, after `positions` tokens of their answers."""
        self._num_verified += sum(verified)
        self._positions.add(positions, gained)

    def count_model_tokens(self, verified: int, accepted: int) -> None:
        """Count tokens of the model drafter."""
        self._model_tokens[0] += verified
        self._model_tokens[1] += accepted

    def stats(self) -> dict[str, Any]:
        """Like SamProposer.stats, except that `proposed` counts verified tokens, from chains and the table together."""
        verified, accepted = self._model_tokens
        counted = {"proposed": self._num_verified, "model_tokens": verified, "accepted_model_tokens": accepted}
        return self.texts.stats() | counted | {"draft_s": self._seconds, **self._positions.counts()}

    def report(self) -> dict[str, Any] | None:
        """Like SamProposer.report."""
        return self._reports.take(self.stats, self.texts.switch.on) if self.drafting else None


def table_size(max_num_reqs: int, max_model_len: int, memory_bytes: int) -> tuple[int, int]:
    """Tokens and slots of the table: for twice the texts that can run, each of maximum length, within the limits."""
    num_tokens = 2 * max_num_reqs * -(-max_model_len // PAGE) * PAGE
    most = memory_bytes // (TABLE_SHARE * SLOT_BYTES)
    num_slots = min(1 << (2 * num_tokens - 1).bit_length(), 1 << (most.bit_length() - 1), MAX_SLOTS)
    return min(num_tokens, num_slots), num_slots


class Speculator:
    """Drafts that stay on the device, with the attributes of vLLM's BaseSpeculator (gpu/spec_decode/speculator.py).

    Args:
        proposer: drafts on the host; its `drafting` is true on the rank that drafts.
        max_num_reqs, max_model_len: limits of the engine.
        device: the device of the drafts.
        tp_group: the tensor-parallel group; its first rank drafts, and the others receive its drafts.
        vocab_size: tokens of the model's vocabulary.
        max_concurrent: maximum number of launched steps, including the one being launched.
        adaptive: whether the engine chooses the tokens to verify by their confidences.
        num_model_tokens: maximum draft tokens of the model drafter; 0 without one.
        graph_sizes: rows of the graphs that the engine captures, to which it pads its steps.

    req_states: the runner's RequestState, which holds the whole texts on the device; the runner sets it.
    num_planned: draft tokens per request that the scheduler plans for the next step.
    wants_all_passes: whether the model drafter's later passes are to run, by the latest step that the host has read.
    runs_all_passes: an earlier `wants_all_passes`, which the scheduler has sent to all ranks.
    """

    num_query_per_req = 1
    num_extra_query_per_req = 0
    supports_mm_inputs = False
    draft_logits = None  # a draft token has probability 1

    def __init__(
        self,
        proposer: ChainProposer,
        max_num_reqs: int,
        max_model_len: int,
        device: torch.device,
        tp_group: Any,
        vocab_size: int,
        max_concurrent: int,
        adaptive: bool = False,
        num_model_tokens: int = 0,
        graph_sizes: Iterable[int] = (),
    ) -> None:
        self.proposer, self.k = proposer, proposer.k
        self.device, self.tp_group = device, tp_group
        self.req_states: Any = None
        self.num_planned = 0
        self.max_concurrent = max_concurrent
        self.width = max_concurrent * (self.k + 1)
        self.enable_adaptive_verification = adaptive
        self.num_model_tokens = num_model_tokens
        self.wants_all_passes = self.runs_all_passes = True
        self.passes = Passes(num_model_tokens) if num_model_tokens else None
        self.drafts = torch.zeros(max_num_reqs, self.k, dtype=torch.int64, device=device)
        self.draft_token_confidence_probs = torch.zeros(max_num_reqs, self.k, device=device)
        self.texts = BatchTexts(max_num_reqs, max_model_len)
        self.unread: deque[Output] = deque()
        self._preempted: dict[str, Text] = {}  # steps in flight may end their answers
        self.groups: dict[str, Group] = {}
        self._salted: set[str] = set()
        proposer.texts.group_of = lambda req_id: self.groups[req_id].key
        proposer.texts.is_isolated = self._salted.__contains__
        self._renew_noise = proposer.options.repeats_noise
        times = adaptive and proposer.drafting
        self.pauses = Pauses(graph_sizes=graph_sizes, passes=self.passes) if times else None
        if not proposer.drafting:
            return
        sources, size = proposer.options.sources, table_size(max_num_reqs, max_model_len, proposer.options.memory_bytes)
        own = "request" in sources or "group" in sources
        self.table = NgramTable(*size, vocab_size, of_groups=own, of_all="common" in sources)
        self.drafter = Drafter(self.table, max_num_reqs, self.k, self.width, device, self._has_confidences)
        self._sources = sources
        self._open_groups: dict[int, OpenGroup] = {}  # by Group.number
        self._num_opened = 0
        # By row of self.texts: the page in the table, Group.number, the group in the table, and tokens in the table.
        self._pages = np.zeros(max_num_reqs, np.int64)
        self._group_numbers = np.zeros(max_num_reqs, np.int64)
        self._table_groups, self._tabled = np.zeros((2, max_num_reqs), np.int32)

    @property
    def _has_confidences(self) -> bool:
        return self.enable_adaptive_verification or self.num_model_tokens > 0

    @property
    def is_paused(self) -> bool:
        """Whether drafting is paused, since drafts do not pay or plain steps are being measured."""
        return self.pauses is not None and self.pauses.pause

    # ---- what the runner calls

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """The drafter has no graphs."""

    def capture(self) -> None:
        """The drafter has no graphs."""

    def update_requests(self, scheduler_output: Any) -> None:
        """Begin a step: handle new, ended and preempted requests, and start drafting."""
        self.num_planned = scheduler_output.num_spec_tokens_to_schedule
        self.runs_all_passes = getattr(scheduler_output, "sam_wants_all_passes", True)
        new = scheduler_output.scheduled_new_reqs
        if self._renew_noise and any(not request.req_id.startswith(WARMUP_REQUESTS) for request in new):
            renew_noise(self.tp_group)
            self._renew_noise = False
        if not self.proposer.drafting:
            return
        self.proposer.chains()  # left by a step that was not sampled
        self._read()
        scheduled = scheduler_output.num_scheduled_tokens
        if self.pauses:
            self.pauses.begin(len(scheduled), joined=len(new), launches=len(scheduled) > 0)
        finished = scheduler_output.finished_req_ids
        by_id, preempted = self.texts.by_id, scheduler_output.preempted_req_ids or ()
        self._preempted.update((req_id, by_id[req_id]) for req_id in preempted if req_id in by_id)
        for req_id in finished:
            if text := by_id.get(req_id) or self._preempted.get(req_id):
                self._finish(text)
        self.proposer.texts.finish(finished)
        for req_id in (*finished, *preempted, *(request.req_id for request in new)):
            if (row := self.texts.remove(req_id)) is not None:
                self._leave(row)
                self.proposer.texts.forget_rows()
        for req_id in finished:
            self.groups.pop(req_id, None)
            self._salted.discard(req_id)
            self._preempted.pop(req_id, None)
        for request in new:
            self._preempted.pop(request.req_id, None)
            self.groups[request.req_id] = request_group(request)
            if request_salt(request) is not None:
                self._salted.add(request.req_id)
            self.proposer.texts.take_back(request.req_id, len(request.prefill_token_ids))
            tokens = request.prefill_token_ids
            prompt_length = getattr(request, "prompt_len", None) or len(request.prompt_token_ids)  # vLLM 0.28 lacks it
            self._join(self.texts.add(request.req_id, prompt_length, tokens, request.sampling_params))
        if scheduled:
            texts = self.texts
            should_draft = self.num_planned > 0 and not self.is_paused
            self.proposer.begin(texts.req_ids, texts.tokens, texts.ends, texts.prompts, should_draft)

    def observe_output(self, output: Any) -> None:
        """Record the output of a step, whose tokens are being copied to the host."""
        if self.proposer.drafting:
            req_ids = output.model_runner_output.req_ids
            states = [self.req_states.req_id_to_index[req_id] for req_id in req_ids] if self.num_model_tokens else []
            self.unread.append(Output(output, [self.texts.by_id.get(req_id) for req_id in req_ids], states))

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any = None,
        slot_mappings: Any = None,
        last_hidden_states: Any = None,
        aux_hidden_states: Any = None,
        num_sampled: Any = None,
        num_rejected: Any = None,
        *args: Any,
        model: ModelDrafts | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Drafts for the next step: int64 [B, k], of which the planned number per row is verified.

        Args:
            input_batch: the runner's InputBatch.
            num_sampled, num_rejected: int32 [B] on the device, results of the step's verification.
            model: drafts of the model drafter.
            kwargs: other arguments of vLLM's BaseSpeculator.propose; only `dummy_run` is used.
        """
        drafts = self.drafts[: input_batch.num_reqs]
        if kwargs.get("dummy_run"):
            return drafts
        if self.proposer.drafting:
            if self._has_confidences:
                self.drafter.learn(input_batch.idx_mapping, num_sampled, num_rejected)
            self._draft(input_batch, drafts, model)
        is_used = self.num_planned > 0 or self.enable_adaptive_verification
        return self._broadcast(drafts) if is_used else drafts

    # ---- requests

    def _join(self, text: Text) -> None:
        """Record the group of a request that has joined the batch."""
        row, group = text.row, self.groups[text.req_id]
        if group.key is None or "group" not in self._sources:
            group = Group(None, text.req_id.encode())  # a group of its own
        if group.number not in self._open_groups:
            self._num_opened += 1
            # With history, a group gets the same number in the table whenever it is opened.
            number = group.number if "history" in self._sources else self._num_opened
            self._open_groups[group.number] = OpenGroup(COMMON + 1 + number % (MAX_TOKEN - COMMON - 1))
        opened = self._open_groups[group.number]
        opened.requests += 1
        self._group_numbers[row], self._tabled[row] = group.number, 0
        self._table_groups[row] = NO_GROUP if text.req_id in self._salted else opened.table_group

    def _finish(self, text: Text) -> None:
        self.proposer.texts.complete(text.req_id, text.prompt_length, self.texts.answer(text))
        if text.row >= 0:
            self._tabulate(slice(text.row, text.row + 1))

    def _leave(self, row: int) -> None:
        """Remove a request that has left the batch; the request of the last row has moved to its row."""
        group = self._open_groups[self._group_numbers[row]]
        group.requests -= 1
        if not group.requests:
            del self._open_groups[self._group_numbers[row]]
        last = len(self.texts.req_ids)
        for values in (self._pages, self._group_numbers, self._table_groups, self._tabled):
            values[row] = values[last]

    def _read(self) -> None:
        """Read the outputs that are on the host, and wait for those that the engine has already received."""
        while self.unread and (len(self.unread) >= self.max_concurrent or self.unread[0].is_there()):
            output = self.unread.popleft()
            sampled = output.read()
            if self.pauses:
                self.pauses.ended(sampled)
            counted = []
            for text, tokens, num_verified in zip(output.texts, *sampled, strict=True):
                if text is None:
                    continue
                gained = self.texts.append(text, tokens)
                if num_verified and gained:
                    counted.append((num_verified, int(self.texts.ends[text.row]) - gained - text.prompt_length, gained))
            if counted:
                self.proposer.count(*map(list, zip(*counted, strict=True)))
            if self.passes and any(sampled.verified):
                self._read_model(self.passes, output, sampled)

    def _read_model(self, passes: Passes, output: Output, sampled: Sampled) -> None:
        """Count the tokens of the model drafter, and decide whether its later passes are to run."""
        of_model, worth = output.of_model()
        one, full = len(of_model) + worth.sum(0)
        self.wants_all_passes = passes.choose(one, full, explores=self.pauses is not None)
        verified = [min(*each) for each in zip(of_model, sampled.verified, strict=True) if each[0] > 0]
        accepted = [
            min(most, len(tokens) - 1)
            for most, tokens in zip(of_model, sampled.tokens, strict=True)
            if most > 0 and tokens
        ]
        self.proposer.count_model_tokens(sum(verified), sum(accepted))

    # ---- drafts

    def _draft(self, input_batch: Any, drafts: torch.Tensor, model: ModelDrafts | None) -> None:
        """Write drafts for the next step and their confidences; without chains, token 0 with confidence 0."""
        texts = self.texts
        self._tabulate(slice(len(texts.req_ids)))
        found = self.proposer.chains()
        confidences = self.draft_token_confidence_probs[: len(drafts)]
        if found is None:
            drafts.zero_()  # vLLM wrote -1 if it planned none, and may still verify these
            if self._has_confidences:
                confidences.zero_()
                self.drafter.num_of_model.zero_()
            return
        rows = np.array([texts.by_id[req_id].row for req_id in input_batch.req_ids])
        chains, lengths, probabilities = (each[rows] for each in found)
        requests = np.zeros((len(rows), NUM_FIELDS + self.width + self.k), np.int64)
        requests[:, :NUM_FIELDS] = np.stack([texts.ends[rows], self._table_groups[rows], lengths], 1)
        requests[:, NUM_FIELDS : NUM_FIELDS + chains.shape[1]] = pack(chains, probabilities)
        states = self.req_states
        self.drafter.draft(
            requests,
            *self.table.changes(),
            input_batch.idx_mapping,
            states.all_token_ids.gpu,
            states.total_len.gpu,
            drafts,
            confidences,
            model,
            self.num_planned,
        )

    def _tabulate(self, rows: slice) -> None:
        """Add new tokens to the table on the host."""
        groups = self._table_groups[rows]
        ends = np.where(groups == NO_GROUP, 0, self.texts.ends[rows])
        self.table.append(self._pages[rows], groups, self.texts.tokens[rows], self._tabled[rows], ends)
        self._tabled[rows] = ends

    def _broadcast(self, drafts: torch.Tensor) -> torch.Tensor:
        """Broadcast the first rank's drafts and confidences to all ranks of the tensor-parallel group."""
        if not self.enable_adaptive_verification or self.tp_group.world_size == 1:
            return self.tp_group.broadcast(drafts)
        confidences = self.draft_token_confidence_probs[: len(drafts)]
        both = self.tp_group.broadcast(drafts + (confidences * SCALE).round().long() * MAX_TOKEN)
        tokens, scaled = unpack(both)
        confidences.copy_(scaled / SCALE)
        return drafts.copy_(tokens)


@functools.cache
def _gumbel_sample() -> Callable[..., torch.Tensor]:
    """vLLM's gumbel_sample (gpu/sample/gumbel.py) with the arguments that its sampler passes."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    accepts_is_drafting = "is_drafting" in inspect.signature(gumbel_sample).parameters  # not in vLLM 0.28
    return functools.partial(gumbel_sample, is_drafting=False) if accepts_is_drafting else gumbel_sample


def keep_equal(
    logits: torch.Tensor,
    draft_logits: None,
    drafts: torch.Tensor,
    starts: torch.Tensor,
    positions: torch.Tensor,
    requests: torch.Tensor,
    request_of_row: torch.Tensor,
    column_of_row: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    k: int,
    *args: Any,
    use_fp64: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample all rows by seed and position, as without drafts, and keep draft tokens while they equal the samples.

    Replaces vLLM's rejection_sample (gpu/spec_decode/rejection_sampler_utils.py) and accepts its arguments.

    Args:
        logits: float [R, V], logits of the sampling distribution.
        drafts: int [R], the input token of each row: in row i + 1 of a request its draft token i; -1 if invalid.
        starts: int32 [B + 1], the first row of each request.
        positions, request_of_row: [R].
        temperature, seeds: by row of request state.
        k: length of the longest draft.

    Returns:
        Tokens int64 [B, k + 1], and the number of tokens that each request gets, int32 [B].
    """
    own = _gumbel_sample()(
        logits, request_of_row, temperature, seeds, positions, apply_temperature=False, use_fp64=use_fp64
    )
    rows = starts[:-1, None] + torch.arange(k + 1, device=own.device)
    sampled = own[rows.clamp(max=len(own) - 1)]
    following = drafts[(rows + 1).clamp(max=len(own) - 1)]
    kept = (sampled == following) & (rows + 1 < starts[1:, None])
    return sampled, (kept.cumprod(1).sum(1) + 1).int()
