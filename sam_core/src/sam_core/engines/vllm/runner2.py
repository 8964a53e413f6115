# SPDX-License-Identifier: Apache-2.0
"""The drafter of vLLM's second model runner (vllm/v1/worker/gpu), where drafts stay on the device.

The runner calls a speculator in each step: `update_requests` when it begins, `observe_output` with the copy of the
sampled tokens that is on its way to the host, `propose` for the drafts of the next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from sam_core.engines.vllm.answers import stop_tokens, tokens_of_answer
from sam_core.engines.vllm.config import proposer_settings, verify_mode
from sam_core.engines.vllm.groups import request_group
from sam_core.engines.vllm.sampling import renew_noise
from sam_core.proposer import SamProposer
from sam_core.verify import to_device

Int32 = npt.NDArray[np.int32]
WARMUP_REQUESTS = ("_warmup_", "_v2_mixed_warmup")
"""Beginnings of the ids of vLLM's own requests (gpu/warmup.py), after which it seeds its random numbers anew."""


class Text:
    """A request in the batch.

    row: of its text in Texts; -1 once it has left the batch.
    """

    def __init__(self, req_id: str, row: int, params: Any) -> None:
        self.req_id, self.row, self.params = req_id, row, params
        self.stops = stop_tokens(params)


class Texts:
    """Prompts and answers of the requests in the batch as far as the host knows them, one a row, without gaps.

    tokens: int32 [max_num_reqs, max_model_len].
    ends, prompts: int32 [max_num_reqs], tokens of each row, and those of its prompt.
    req_ids: of the rows in use.
    """

    def __init__(self, max_num_reqs: int, max_model_len: int) -> None:
        self.tokens = np.zeros((max_num_reqs, max_model_len), np.int32)
        self.ends, self.prompts = np.zeros((2, max_num_reqs), np.int32)
        self.req_ids: list[str] = []
        self.by_id: dict[str, Text] = {}

    def add(self, req_id: str, prompt_length: int, tokens: Sequence[int], params: Any) -> Text:
        """A request joins the batch with these tokens, also one that was preempted."""
        row = len(self.req_ids)
        self.req_ids.append(req_id)
        self.tokens[row, : len(tokens)] = tokens
        self.ends[row], self.prompts[row] = len(tokens), prompt_length
        self.by_id[req_id] = text = Text(req_id, row, params)
        return text

    def append(self, text: Text, tokens: list[int]) -> int:
        """Append what a step sampled, without what lies behind the end of the answer. Returns how many tokens that
        is."""
        if text.row < 0:
            return 0
        row, start = self.tokens[text.row], int(self.ends[text.row])
        tokens = tokens_of_answer(
            tokens, text.params, text.stops, row[self.prompts[text.row] : start], len(row) - start
        )
        row[start : start + len(tokens)] = tokens
        self.ends[text.row] = start + len(tokens)
        return len(tokens)

    def answer(self, req_id: str) -> list[int]:
        row = self.by_id[req_id].row
        tokens: list[int] = self.tokens[row, self.prompts[row] : self.ends[row]].tolist()
        return tokens

    def remove(self, req_id: str) -> int | None:
        """A request has left the batch: the last row takes the place of its own, which is returned; None: unknown."""
        text = self.by_id.pop(req_id, None)
        if text is None:
            return None
        row, text.row = text.row, -1
        moved = self.req_ids.pop()
        if moved != req_id:
            last = len(self.req_ids)
            end = self.ends[last]
            self.tokens[row, :end] = self.tokens[last, :end]
            self.ends[row], self.prompts[row] = end, self.prompts[last]
            self.req_ids[row] = moved
            self.by_id[moved].row = row
        return row


class Output:
    """What a step samples.

    texts: of the B requests of the step, None for one that is unknown.
    num_drafts: draft tokens of each that the step verifies.
    source: the runner's AsyncOutput.
    """

    def __init__(self, source: Any, texts: list[Text | None], num_drafts: list[int]) -> None:
        self.source, self.texts, self.num_drafts = source, texts, num_drafts

    def read(self) -> list[list[int]]:
        """The tokens of each request; waits for them if they are not on the host yet."""
        self.source.copy_event.synchronize()
        rows: list[list[int]] = self.source.sampled_token_ids.tolist()
        for row, count in zip(rows, self.source.num_sampled_tokens_np.tolist(), strict=True):
            del row[count:]
        return rows


class Speculator:
    """What drafters of both kinds do, with the attributes of vLLM's BaseSpeculator (gpu/spec_decode/speculator.py).

    Args:
        proposer: knows the requests by their ids; its `drafting` is true on the rank that drafts.
        max_num_reqs, max_model_len: limits of the engine.
        device: that of the drafts.
        tp_group: the tensor-parallel group; its first rank drafts, and the others receive its drafts.
    """

    num_query_per_req = 1
    num_extra_query_per_req = 0
    supports_mm_inputs = False
    draft_logits = None  # a draft token has probability 1

    def __init__(
        self, proposer: SamProposer, max_num_reqs: int, max_model_len: int, device: torch.device, tp_group: Any
    ) -> None:
        self.proposer = proposer
        self.k = proposer.k
        self.device = device
        self.tp_group = tp_group
        self.texts = Texts(max_num_reqs, max_model_len)
        self.drafts = torch.zeros(max_num_reqs, self.k, dtype=torch.int64, device=device)
        self.unread: deque[Output] = deque()
        self._num_drafts: dict[str, int] = {}
        self._renew_noise = proposer.options.repeats_noise
        self.groups: dict[str, bytes | Literal["by_prompt"] | None] = {}
        proposer.group_of = self.groups.__getitem__

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """The engine has decided on its graphs."""

    def capture(self) -> None:
        """The drafter has no graphs."""

    def update_requests(self, scheduler_output: Any) -> None:
        """A step begins, with these requests that are new, have ended or are preempted."""
        new = scheduler_output.scheduled_new_reqs
        if self._renew_noise and any(not request.req_id.startswith(WARMUP_REQUESTS) for request in new):
            renew_noise(self.tp_group)
            self._renew_noise = False
        if not self.proposer.drafting:
            return
        self.read_outputs()
        planned = scheduler_output.scheduled_spec_decode_tokens
        self._num_drafts = {req_id: len(tokens) for req_id, tokens in planned.items()}
        finished = scheduler_output.finished_req_ids
        for req_id in finished:
            if req_id in self.texts.by_id:
                self.finish(req_id)
        self.proposer.finish(finished)
        preempted = scheduler_output.preempted_req_ids or ()
        for req_id in (*finished, *preempted, *(request.req_id for request in new)):
            if (row := self.texts.remove(req_id)) is not None:
                self.leave(row)
                self.proposer.forget_rows()
        for req_id in finished:
            self.groups.pop(req_id, None)
        for request in new:
            self.groups[request.req_id] = request_group(request)
            self.proposer.take_back(request.req_id, len(request.prefill_token_ids))
            text = self.texts.add(
                request.req_id, request.prompt_len, request.prefill_token_ids, request.sampling_params
            )
            self.join(text)

    def observe_output(self, output: Any) -> None:
        """The step's tokens are on their way to the host."""
        if self.proposer.drafting:
            req_ids = output.model_runner_output.req_ids
            texts = [self.texts.by_id.get(req_id) for req_id in req_ids]
            self.unread.append(Output(output, texts, [self._num_drafts.get(req_id, 0) for req_id in req_ids]))

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Drafts for the next step: int64 [B, k], as many of a row as the scheduler plans are verified.

        Args:
            input_batch: the runner's InputBatch.
            args, kwargs: those of vLLM's BaseSpeculator.propose; `dummy_run` and `num_speculative_tokens` are used.
        """
        drafts = self.drafts[: input_batch.num_reqs]
        if kwargs.get("dummy_run"):
            return drafts
        k = kwargs.get("num_speculative_tokens")
        k = self.k if k is None else k
        if self.proposer.drafting:
            self.draft(input_batch, drafts, k)
        return self.tp_group.broadcast(drafts) if k else drafts

    def take_draft_token_ids(self) -> Any:
        """Drafts of different lengths for a scheduler that waits for them, as DraftTokenIds; None: k for each
        request."""
        return None

    def report(self) -> dict[str, Any] | None:
        """The counters for the engine's metrics, now and then."""
        return self.proposer.report()

    def stats(self) -> dict[str, Any]:
        """The counters since the start."""
        return self.proposer.stats()

    def read_outputs(self) -> None:
        """Read the outputs of finished steps, before requests change."""

    def draft(self, input_batch: Any, drafts: torch.Tensor, k: int) -> None:
        """Write drafts of at most k tokens for the next step."""
        raise NotImplementedError

    def join(self, text: Text) -> None:
        """A request has joined the batch."""

    def finish(self, req_id: str) -> None:
        """A request in the batch has ended."""

    def leave(self, row: int) -> None:
        """A request has left the batch; that of the last row has moved to this one."""


class HostSpeculator(Speculator):
    """Waits for the step's tokens, then drafts from the whole text: for an engine that schedules synchronously."""

    _drafts: tuple[list[str], list[list[int]]] = ([], [])

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        if cudagraph_mode.separate_routine():
            self.proposer.make_uniform()

    def draft(self, input_batch: Any, drafts: torch.Tensor, k: int) -> None:
        output, texts = self.unread.pop(), self.texts
        self.proposer.catch_up()
        sampled = set()
        for text, tokens in zip(output.texts, output.read(), strict=True):
            if text and tokens:
                texts.append(text, tokens)
                sampled.add(text.req_id)
        proposed = self.proposer.propose(
            texts.req_ids,
            texts.tokens,
            texts.ends,
            texts.prompts,
            [req_id in sampled for req_id in texts.req_ids],
            input_batch.num_tokens,
            early=True,
        )
        by_id = dict(zip(texts.req_ids, proposed, strict=True))
        lists = [by_id.get(req_id, [])[:k] for req_id in input_batch.req_ids]
        self._drafts = input_batch.req_ids, lists
        if any(lists):
            padded = np.zeros((len(lists), self.k), np.int64)
            for row, draft in zip(padded, lists, strict=True):
                row[: len(draft)] = draft
            drafts.copy_(to_device(padded, self.device), non_blocking=True)

    def take_draft_token_ids(self) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        return DraftTokenIds(*self._drafts)


def make_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Speculator:
    """The drafter of an engine with this VllmConfig, of method sam.

    Args:
        device: where the engine keeps drafts.
        req_states: the runner's RequestState.
    """
    from vllm.distributed.parallel_state import get_tp_group

    speculative, model = vllm_config.speculative_config, vllm_config.model_config
    tp_group = get_tp_group()
    settings = proposer_settings(vllm_config, tp_group)
    k, scheduler = speculative.num_speculative_tokens, vllm_config.scheduler_config
    common = scheduler.max_num_seqs, model.max_model_len, device, tp_group
    if not scheduler.async_scheduling:
        return HostSpeculator(SamProposer(k, speculative.sam, **settings), *common)
    from sam_core.engines.vllm.runner2_device import ChainProposer, DeviceSpeculator

    max_concurrent = vllm_config.max_concurrent_batches
    proposer = ChainProposer(k, speculative.sam, max_concurrent, **settings)
    return DeviceSpeculator(proposer, *common, req_states, model.get_vocab_size(), max_concurrent)


def verification(sam: Any, rejection_sample: Callable[..., Any]) -> Callable[..., Any]:
    """How an engine with these options of method sam verifies drafts: by its `rejection_sample`, or by `keep_equal`."""
    return keep_equal if verify_mode(sam) == "seeded" else rejection_sample


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
    """Sample all rows as without drafts, by seed and position, and keep drafts while they are equal.

    In the place of vLLM's rejection_sample (gpu/spec_decode/rejection_sampler_utils.py), whose arguments it takes.

    Args:
        logits: float [R, V], those of the tokens' distribution.
        drafts: int [R], the token that each row's input is: in a request's row i + 1 its draft i; -1: an invalid one.
        starts: int32 [B + 1], the first row of each request.
        positions, request_of_row: [R].
        temperature, seeds: by request state.
        k: the longest draft.

    Returns:
        Tokens int64 [B, k + 1], and of how many each request gets, int32 [B].
    """
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    own = gumbel_sample(
        logits,
        request_of_row,
        temperature,
        seeds,
        positions,
        apply_temperature=False,
        is_drafting=False,
        use_fp64=use_fp64,
    )
    rows = starts[:-1, None] + torch.arange(k + 1, device=own.device)
    sampled = own[rows.clamp(max=len(own) - 1)]
    following = drafts[(rows + 1).clamp(max=len(own) - 1)]
    kept = (sampled == following) & (rows + 1 < starts[1:, None])
    return sampled, (kept.cumprod(1).sum(1) + 1).int()
