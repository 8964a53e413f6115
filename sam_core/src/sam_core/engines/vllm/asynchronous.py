# SPDX-License-Identifier: Apache-2.0
"""Drafts for vLLM's first runner while the engine schedules asynchronously.

The scheduler plans step s + 1 while step s runs, with k placeholders for the drafts of each request. When the runner
begins step s + 1 it reads what step s sampled, drafts, and removes from the plan what is not drafted and what step s
refused. So scheduling and the output of earlier steps overlap with the device's work, and drafts follow the newest
text. The host waits for step s only if that had drafts or s + 1 may have some; other steps are those of an engine
without speculation.

Upstream's drafters on the device (vLLM 0.23, v1/worker/gpu_model_runner.py, use_async_spec_decode) leave the host's
lengths too large until a step later. Here they are exact when a step begins, so none of that code runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

from sam_core.proposer import SamProposer


@dataclass
class _Sampled:
    """Tokens that a step samples.

    rows: of each request that gets tokens, its row, and where in its text the first one belongs.
    tokens: int [requests, 1 or k + 1] on the host, valid after `ready`; -1 behind a request's last token.
    """

    rows: dict[str, tuple[int, int]]
    tokens: Any
    ready: Any

    @property
    def had_drafts(self) -> bool:
        return self.tokens.shape[1] > 1


class AsyncDrafts:
    """What a runner calls for method sam: `begin` before a step, `launched` after it.

    Args:
        runner: vLLM's GPUModelRunner or a subclass; its `drafter` is a SamProposer.
        tp_group: the tensor-parallel group; its first rank drafts, and the others receive its drafts.
    """

    def __init__(self, runner: Any, tp_group: Any) -> None:
        self.runner = runner
        self.tp_group = tp_group
        self._unread: deque[_Sampled] = deque()
        self._num_tokens = 0
        self._verified: dict[str, list[int]] = {}

    def launched(self, output: Any, discarded: Container[int]) -> None:
        """A step was launched.

        Args:
            output: its AsyncGPUModelRunnerOutput.
            discarded: rows without a token, of partial prefills.
        """
        batch = self.runner.input_batch
        ends = batch.num_tokens_no_spec[: batch.num_reqs].tolist()
        rows = {req_id: (i, ends[i] - 1) for i, req_id in enumerate(batch.req_ids) if i not in discarded}
        self._unread.append(_Sampled(rows, output.sampled_token_ids_cpu, output.async_copy_ready_event))

    def begin(self, scheduler_output: Any) -> Any:
        """The SchedulerOutput of the next step with its drafts; the argument stays as it is."""
        batch, drafter = self.runner.input_batch, self.runner.drafter
        planned = scheduler_output.scheduled_spec_decode_tokens
        latest = self._unread[-1] if self._unread else None
        may_draft = bool(planned) and drafter.switch.may_be_on(len(scheduler_output.num_scheduled_tokens))
        read = latest is not None and (latest.had_drafts or may_draft)
        if read:
            latest.ready.synchronize()
        elif latest and scheduler_output.finished_req_ids:
            read = latest.ready.query()  # its last tokens may be those of a request that has ended
        sampled: set[str] = set()
        # Of earlier steps the scheduler has had the output, so their tokens are on the host.
        while self._unread and (read or self._unread[0] is not latest):
            sampled = self._read(self._unread.popleft())
        if read:
            batch.prev_sampled_token_ids = batch.prev_req_id_to_index = batch.sampled_token_ids_cpu = None
        for req_id in scheduler_output.finished_req_ids:
            if state := self.runner.requests.get(req_id):
                drafter.complete(req_id, state.output_token_ids)
        lengths = batch.num_tokens_no_spec[: batch.num_reqs].copy()
        for step in self._unread:
            for req_id, (_, start) in step.rows.items():
                if (index := batch.req_id_to_index.get(req_id)) is not None:
                    lengths[index] = start
        drafts = SamProposer.propose(
            drafter,
            batch.req_ids,
            batch.token_ids_cpu,
            lengths,
            batch.num_prompt_tokens,
            [req_id in sampled for req_id in batch.req_ids],
            self._num_tokens,
        )
        if may_draft and self.tp_group.world_size > 1:
            drafts = self.tp_group.broadcast_object(drafts, src=0)
        scheduler_output = self._with_drafts(scheduler_output, dict(zip(batch.req_ids, drafts, strict=True)))
        self._num_tokens = scheduler_output.total_num_scheduled_tokens
        return scheduler_output

    def report(self) -> Any:
        """DraftTokenIds: the drafts that the step which was begun verifies, and the drafter's counters."""
        from vllm.v1.outputs import DraftTokenIds

        drafts = [list(draft) for draft in self._verified.values()]
        return DraftTokenIds(list(self._verified), drafts, self.runner.drafter.report())

    def _read(self, step: _Sampled) -> set[str]:
        """Write a step's tokens into the texts. Returns the requests in the batch that it sampled for."""
        batch, sampled = self.runner.input_batch, set()
        rows = step.tokens.tolist()
        for req_id, (row, start) in step.rows.items():
            state = self.runner.requests.get(req_id)
            if state is None:  # ended in an earlier step
                continue
            tokens = self._kept(state, start, [token for token in rows[row] if token >= 0])
            first, end = start - state.num_prompt_tokens, start + len(tokens)
            state.output_token_ids[first : first + 1] = tokens
            index = batch.req_id_to_index.get(req_id)
            if index is None:  # preempted, or complete and not yet reported as finished
                continue
            batch.token_ids_cpu[index, start:end] = tokens
            batch.is_token_ids[index, start:end] = True
            batch.num_tokens_no_spec[index] += len(tokens) - 1
            sampled.add(req_id)
        return sampled

    def _kept(self, state: Any, start: int, tokens: list[int]) -> list[int]:
        """Those of a step's tokens that belong to the text. Steps run beyond its end until the scheduler knows of it."""
        params = state.sampling_params
        stops = {params.eos_token_id, *(params.stop_token_ids or ())}
        first = start - state.num_prompt_tokens
        if first and first >= params.min_tokens and state.output_token_ids[first - 1] in stops:
            return []
        room = self.runner.max_model_len - start
        if params.max_tokens is not None:
            room = min(room, params.max_tokens - first)
        tokens = tokens[: max(room, 0)]
        for i, token in enumerate(tokens, 1):
            if token in stops and first + i >= params.min_tokens:
                return tokens[:i]
        return tokens

    def _with_drafts(self, scheduler_output: Any, drafts: dict[str, list[int]]) -> Any:
        """The plan without tokens that the step before refused, and with drafts in the place of placeholders."""
        cached = scheduler_output.scheduled_cached_reqs
        computed, outputs = list(cached.num_computed_tokens), list(cached.num_output_tokens)
        for i, req_id in enumerate(cached.req_ids):
            state = self.runner.requests[req_id]
            state.prev_num_draft_len = 0
            if req_id in self.runner.input_batch.req_id_to_index:
                refused = max(0, outputs[i] - len(state.output_token_ids))
                computed[i] -= refused
                outputs[i] -= refused
        planned = scheduler_output.scheduled_spec_decode_tokens
        self._verified = {req_id: drafts.get(req_id, [])[: len(room)] for req_id, room in planned.items()}
        num_scheduled = self._num_scheduled(scheduler_output)
        counts = set(num_scheduled.values())
        if self.runner.drafter.uniform and len(counts) > 1 and max(counts) <= self.runner.num_spec_tokens + 1:
            # beside a request without room, or that was not in the step before, no request of a decoding step drafts
            self._verified = dict.fromkeys(planned, [])
            num_scheduled = self._num_scheduled(scheduler_output)
        return replace(
            scheduler_output,
            scheduled_cached_reqs=replace(cached, num_computed_tokens=computed, num_output_tokens=outputs),
            num_scheduled_tokens=num_scheduled,
            total_num_scheduled_tokens=sum(num_scheduled.values()),
            scheduled_spec_decode_tokens={req_id: draft for req_id, draft in self._verified.items() if draft},
        )

    def _num_scheduled(self, scheduler_output: Any) -> dict[str, int]:
        """Tokens of each request, with its draft in the place of its placeholders."""
        counts = dict(scheduler_output.num_scheduled_tokens)
        for req_id, room in scheduler_output.scheduled_spec_decode_tokens.items():
            counts[req_id] += len(self._verified[req_id]) - len(room)
        return counts
