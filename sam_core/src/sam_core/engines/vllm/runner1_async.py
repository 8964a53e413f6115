# SPDX-License-Identifier: Apache-2.0
"""Drafts for vLLM's first runner while the engine schedules asynchronously.

The scheduler plans step s + 1 while step s runs, with k placeholders for the drafts of each request. When the runner
begins step s + 1, it reads what step s sampled, drafts, and removes unused placeholders and refused draft tokens from
the plan. So scheduling and the output of earlier steps overlap with the device's work, and drafts follow the newest
text. While the host waits for step s, it indexes the tokens of step s - 1, so drafts come from texts without those of
step s. It waits only if step s had drafts or step s + 1 may have some. While the switch is off, steps are planned
without placeholders and run as without speculation. Switch `auto` then decides from drafts that follow the tokens that
the host knows, one fewer than were sampled.

Upstream's drafters on the device (vLLM 0.23, v1/worker/gpu_model_runner.py, use_async_spec_decode) leave the host's
lengths too large until one step later. Here they are exact when a step begins, so none of that code runs.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sam_core._sam import to_lists
from sam_core.engines.vllm.answers import has_grammar, looks_for_repetition, stop_tokens, tokens_of_answer
from sam_core.request_texts import FEED_INTERVAL

MANY_REQUESTS = 64
"""Minimum requests in a step for which writing all tokens at once is faster than request by request."""


@dataclass
class _Sampled:
    """Tokens that a step samples for N requests.

    req_ids: ids of the requests.
    rows, starts: int [N], each request's row in `tokens`, and the position of its first token in its text.
    tokens: int [N or more, 1 or k + 1] on the host, valid after `ready`; -1 after a request's last token.
    ended: requests that had ended before; these tokens do not belong to their answers.
    """

    req_ids: list[str]
    rows: npt.NDArray[np.integer]
    starts: npt.NDArray[np.integer]
    tokens: Any
    ready: Any
    ended: list[str]

    @property
    def had_drafts(self) -> bool:
        return bool(self.tokens.shape[1] > 1)


class AsyncDrafts:
    """Drafts for asynchronous steps: the runner calls `begin` before each step and `launched` after it.

    Tokens of steps without drafts are read late, up to FEED_INTERVAL steps at once, and written only into the rows of
    the batch. The runner leaves -1 for them in a request's list of output tokens, which is completed when the request
    leaves its row.

    Args:
        runner: vLLM's GPUModelRunner or a subclass; its `drafter` is a SamProposer.
        tp_group: the tensor-parallel group; its first rank drafts, and the others receive its drafts.
    """

    def __init__(self, runner: Any, tp_group: Any) -> None:
        self.runner = runner
        self.tp_group = tp_group
        self._unread: deque[_Sampled] = deque()
        self._num_tokens = self._running = self._skipped = 0
        self._verified: dict[str, list[int]] = {}
        self._had_placeholders = self._has_grammars = False
        self._plan_drafts = True
        # arguments and result of the previous call of _ends
        self._params: list[Any] = []
        self._max_tokens, self._stops = np.zeros(0, np.int64), list[int]()

    def launched(self, output: Any, discarded: Collection[int], grammar_output: Any) -> None:
        """Record a launched step.

        Args:
            output: its AsyncGPUModelRunnerOutput.
            discarded: rows of partial prefills, which get no token.
            grammar_output: its GrammarOutput, or None.
        """
        batch = self.runner.input_batch
        req_ids, starts = batch.req_ids.copy(), batch.num_tokens_no_spec[: batch.num_reqs] - 1
        rows = np.arange(len(req_ids))
        if discarded:
            rows = np.delete(rows, list(discarded))
            req_ids, starts = [req_ids[row] for row in rows.tolist()], starts[rows]
        self._unread.append(
            _Sampled(
                req_ids,
                rows,
                starts,
                output.sampled_token_ids_cpu,
                output.async_copy_ready_event,
                self._ended_by_grammar(req_ids, grammar_output),
            )
        )

    def _ended_by_grammar(self, req_ids: list[str], grammar_output: Any) -> list[str]:
        """The requests that had ended before the step sampled, since their grammar was not applied."""
        if not self._has_grammars:
            return []
        applied = grammar_output.structured_output_request_ids if grammar_output else ()
        states = self.runner.requests
        return [each for each in req_ids if each not in applied and has_grammar(states[each].sampling_params)]

    def begin(self, scheduler_output: Any) -> Any:
        """The SchedulerOutput of the next step with its drafts; the argument is not changed."""
        batch, drafter = self.runner.input_batch, self.runner.drafter
        planned = scheduler_output.scheduled_spec_decode_tokens
        self._running = len(scheduler_output.num_scheduled_tokens)
        self._has_grammars = scheduler_output.has_structured_output_requests
        beginning = {request.req_id for request in scheduler_output.scheduled_new_reqs}
        leaving = batch.req_id_to_index.keys() - scheduler_output.num_scheduled_tokens.keys()
        leaving |= batch.req_id_to_index.keys() & beginning
        if not (planned or leaving or scheduler_output.finished_req_ids) and self._skip():
            self._num_tokens = scheduler_output.total_num_scheduled_tokens
            return scheduler_output
        in_graph, planned_for_drafts = self._placeholders(scheduler_output)
        may_draft = planned_for_drafts and drafter.switch.may_be_on(self._running)
        decoding = self._read_steps(may_draft, bool(scheduler_output.finished_req_ids))
        self._complete_texts(leaving, scheduler_output.finished_req_ids)
        lengths = self._known_lengths(scheduler_output.scheduled_cached_reqs)
        self._forget_texts(beginning)
        if self._unread:
            decoding = set(self._unread[-1].req_ids)
        uniform = in_graph and may_draft  # also for a request that leaves
        drafts = drafter.propose(
            batch.req_ids,
            batch.token_ids_cpu,
            lengths,
            batch.num_prompt_tokens,
            [uniform or req_id in decoding and (not planned or req_id in planned) for req_id in batch.req_ids],
            self._num_tokens,
            self._skipped + 1,
            may_draft,
            index_later=True,
        )
        self._skipped = 0
        if may_draft and self.tp_group.world_size > 1:
            drafts = self.tp_group.broadcast_object(drafts, src=0)
        self._verified = {}
        if planned or self._had_placeholders:
            scheduler_output = self._with_drafts(scheduler_output, dict(zip(batch.req_ids, drafts, strict=True)))
        self._had_placeholders = bool(planned)
        self._num_tokens = scheduler_output.total_num_scheduled_tokens
        return scheduler_output

    def report(self) -> Any:
        """DraftTokenIds, or None if nothing has changed.

        They hold the drafts that the current step verifies, the drafter's counters, and whether to plan steps with
        placeholders.
        """
        drafter = self.runner.drafter
        counters, plan_drafts = drafter.report(), drafter.switch.plans_drafts(self._running)
        if not self._verified and counters is None and plan_drafts == self._plan_drafts:
            return None
        from vllm.v1.outputs import DraftTokenIds

        self._plan_drafts = plan_drafts
        drafts = [list(draft) for draft in self._verified.values()]
        return DraftTokenIds(list(self._verified), drafts, counters, plan_drafts)

    def _placeholders(self, scheduler_output: Any) -> tuple[bool, bool]:
        """Whether the next step may run in a graph of k + 1 tokens per request, and whether it may have drafts.

        In a step for such a graph, no request drafts if one has fewer than k placeholders or was not in the previous
        step.
        """
        planned, counts = scheduler_output.scheduled_spec_decode_tokens, scheduler_output.num_scheduled_tokens
        k = self.runner.num_spec_tokens
        if not planned or not self.runner.drafter.uniform or max(counts.values()) > k + 1:
            return False, bool(planned)
        decoding = set(self._unread[-1].req_ids) if self._unread else set()
        return True, all(len(planned.get(req_id, ())) == k and req_id in decoding for req_id in counts)

    def _index(self, step: _Sampled) -> npt.NDArray[np.integer]:
        """The current rows of a step's requests in the batch, int [N]; -1 for those that have left it."""
        batch = self.runner.input_batch
        if step.req_ids == batch.req_ids:
            return np.arange(len(step.req_ids))
        index = map(batch.req_id_to_index.get, step.req_ids, itertools.repeat(-1))
        return np.fromiter(index, np.int64, len(step.req_ids))

    def _skip(self) -> bool:
        """Whether to skip the work before the next step, since the switch is off and the requests are the same."""
        batch, switch = self.runner.input_batch, self.runner.drafter.switch
        if (
            self._had_placeholders
            or self._skipped == FEED_INTERVAL - 1
            or switch.may_be_on(batch.num_reqs)
            or not self._unread
            or self._unread[0].req_ids != batch.req_ids
        ):
            return False
        self._verified = {}
        self._skipped += 1
        switch.should_draft(batch.num_reqs)
        return True

    def _read_steps(self, may_draft: bool, any_ended: bool) -> set[str]:
        """Read the tokens of the steps in flight; return the requests of the latest step that are in the batch, if it
        was read.

        The latest step is read only if it had drafts, if the next step may have some, or if it is ready and may hold
        the last tokens of a request that has ended.
        """
        batch, latest = self.runner.input_batch, self._unread[-1] if self._unread else None
        read = latest is not None and (latest.had_drafts or may_draft)
        if latest is not None and read:
            self.runner.drafter.catch_up()
            latest.ready.synchronize()
        elif latest is not None and any_ended:
            read = latest.ready.query()
        self._read_without_drafts()
        if not read:
            return set()
        batch.prev_sampled_token_ids = batch.prev_req_id_to_index = batch.sampled_token_ids_cpu = None
        return self._read(self._unread.popleft())

    def _complete_texts(self, leaving: Collection[str], finished: Collection[str]) -> None:
        """Complete the output of requests that leave their rows, and the indexed texts of those that have finished."""
        for req_id in leaving:
            self._complete_output(req_id)
        for req_id in finished:
            if state := self.runner.requests.get(req_id):
                self.runner.drafter.texts.complete(req_id, state.num_prompt_tokens, state.output_token_ids)

    def _known_lengths(self, cached: Any) -> npt.NDArray[np.integer]:
        """The number of tokens of each row that are known, int [B], without those that a resumed request has lost.

        Args:
            cached: the scheduled_cached_reqs of the next step.
        """
        batch = self.runner.input_batch
        lengths: npt.NDArray[np.integer] = batch.num_tokens_no_spec[: batch.num_reqs].copy()
        for step in self._unread:
            index = self._index(step)
            lengths[index[index >= 0]] = step.starts[index >= 0]
        if cached.resumed_req_ids:  # resetting the cache may have dropped tokens in flight
            kept = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True))
            for req_id in cached.resumed_req_ids:
                length = self.runner.requests[req_id].num_prompt_tokens + kept[req_id]
                if (row := batch.req_id_to_index.get(req_id)) is None:
                    self.runner.drafter.texts.take_back(req_id, length)
                else:
                    lengths[row] = min(lengths[row], length)
        return lengths

    def _read_without_drafts(self) -> None:
        """Write the tokens of all steps but the latest into the rows of their requests.

        These steps had no drafts. On the first rank their tokens are on the host, since the scheduler has received
        them.
        """
        steps = [self._unread.popleft() for _ in range(len(self._unread) - 1)]
        if steps and not self.tp_group.is_first_rank:
            steps[-1].ready.synchronize()  # implies that earlier ones are ready
        for _, same in itertools.groupby(steps, lambda step: (step.req_ids, step.rows.tolist(), len(step.tokens))):
            part = list(same)
            index = self._index(part[0])
            tokens = torch.cat([step.tokens for step in part], 1).numpy()[part[0].rows]
            starts = np.stack([step.starts for step in part], 1)
            present = index >= 0
            self.runner.input_batch.token_ids_cpu[index[present, None], starts[present]] = tokens[present]
            for i in np.flatnonzero(~present).tolist():
                # preempted, or complete and not yet reported as finished; no state if it ended in an earlier step
                if state := self.runner.requests.get(part[0].req_ids[i]):
                    for start, token in zip(starts[i].tolist(), tokens[i].tolist(), strict=True):
                        state.output_token_ids[start - state.num_prompt_tokens] = token

    def _forget_texts(self, beginning: set[str]) -> None:
        """Discard what steps in flight sample for these ids, since it belongs to texts that have ended.

        Such a text is a session's turn or that of a request whose id is reused.
        """
        for step in self._unread:
            if not beginning.isdisjoint(step.req_ids):
                kept = [i for i, req_id in enumerate(step.req_ids) if req_id not in beginning]
                step.req_ids = [step.req_ids[i] for i in kept]
                step.rows, step.starts = step.rows[kept], step.starts[kept]

    def _complete_output(self, req_id: str) -> None:
        """Copy a request's row to the list of its output tokens."""
        batch, state = self.runner.input_batch, self.runner.requests[req_id]
        start, output = state.num_prompt_tokens, state.output_token_ids
        output[:] = batch.token_ids_cpu[batch.req_id_to_index[req_id], start : start + len(output)].tolist()

    def _read(self, step: _Sampled) -> set[str]:
        """Write a step's tokens into the texts. Returns those of its requests that are in the batch."""
        index = self._index(step)
        states = [*map(self.runner.requests.get, step.req_ids)]
        left = self._write(step, states, index) if len(states) >= MANY_REQUESTS else range(len(states))
        tokens = step.tokens.tolist() if left else []
        for i in left:
            if states[i]:  # otherwise it ended in an earlier step
                is_kept = step.req_ids[i] not in step.ended
                sampled = [token for token in tokens[step.rows[i]] if token >= 0 and is_kept]
                self._read_end(states[i], int(index[i]), int(step.starts[i]), sampled)
        if index.min(initial=0) >= 0:
            return set(step.req_ids)
        return {req_id for req_id, row in zip(step.req_ids, index.tolist(), strict=True) if row >= 0}

    def _write(self, step: _Sampled, states: list[Any], index: npt.NDArray[np.integer]) -> list[int]:
        """Write the tokens of most of a step's N requests into their texts, with few calls.

        Args:
            states: those of the requests; None for one that ended in an earlier step.
            index: int [N], their rows in the batch.

        Returns:
            The indices of the remaining requests, which may end with these tokens or are not in the batch.
        """
        batch, max_model_len = self.runner.input_batch, self.runner.max_model_len
        present = np.flatnonzero(index >= 0)
        if len(present) < len(states):
            states = [states[i] for i in present.tolist()]
        rows, starts, tokens = index[present], step.starts[present], step.tokens.numpy()[step.rows[present]]
        if step.ended:
            tokens[[step.req_ids[i] in step.ended for i in present.tolist()]] = -1
        max_tokens, stops = self._ends([state.sampling_params for state in states])
        prompts, counts = batch.num_prompt_tokens[rows], np.count_nonzero(tokens >= 0, axis=1)
        with_last = np.column_stack([batch.token_ids_cpu[rows, starts - 1], tokens])
        may_end = starts + counts > np.minimum(prompts + max_tokens, max_model_len)
        for stop in stops:  # usually one or two
            may_end |= (with_last == stop).any(1)
        counts[may_end] = 0
        which, depths = np.nonzero(np.arange(tokens.shape[1]) < counts[:, None])
        places = rows[which], starts[which] + depths
        batch.token_ids_cpu[places] = tokens[which, depths]
        batch.is_token_ids[places] = True
        batch.num_tokens_no_spec[rows] += np.maximum(counts - 1, 0)
        lists = to_lists(tokens.astype(np.int32), counts.astype(np.int32))
        for state, first, written in zip(states, (starts - prompts).tolist(), lists, strict=True):
            if written:
                state.output_token_ids[first : first + 1] = written
        left = np.ones(len(index), bool)
        left[present[counts > 0]] = False
        return np.flatnonzero(left).tolist()

    def _ends(self, params: list[Any]) -> tuple[npt.NDArray[np.int64], list[int]]:
        """The conditions that end the answers of requests with these N SamplingParams.

        Returns the maximum tokens of each answer, int64 [N], 0 for one that may also end by repetition, and the stop
        tokens of all. The result is cached, since most steps have the same requests as the previous one.
        """
        if len(params) != len(self._params) or not all(map(operator.is_, params, self._params)):
            unlimited = self.runner.max_model_len
            limits = [
                0 if looks_for_repetition(each) else unlimited if each.max_tokens is None else each.max_tokens
                for each in params
            ]
            self._params, self._max_tokens = params, np.array(limits, np.int64)
            self._stops = [*set[int]().union(*map(stop_tokens, params))]
        return self._max_tokens, self._stops

    def _read_end(self, state: Any, row: int, start: int, sampled: list[int]) -> None:
        """Write the tokens of a request that may end with them into its text.

        Args:
            state: that of the request.
            row: its row in the batch; -1 if it was preempted, or is complete and not yet reported as finished.
            start: position of the tokens in the text.
            sampled: the tokens that the step sampled.
        """
        batch, params, first = self.runner.input_batch, state.sampling_params, start - state.num_prompt_tokens
        answer = state.output_token_ids[:first] if row < 0 else batch.token_ids_cpu[row, start - first : start]
        tokens = tokens_of_answer(sampled, params, stop_tokens(params), answer, self.runner.max_model_len - start)
        state.output_token_ids[first : first + 1] = tokens
        if row >= 0:
            batch.token_ids_cpu[row, start : start + len(tokens)] = tokens
            batch.is_token_ids[row, start : start + len(tokens)] = True
            batch.num_tokens_no_spec[row] += len(tokens) - 1

    def _with_drafts(self, scheduler_output: Any, drafts: dict[str, list[int]]) -> Any:
        """The plan without tokens that the previous step refused, and with drafts instead of placeholders."""
        cached = scheduler_output.scheduled_cached_reqs
        computed, outputs = list(cached.num_computed_tokens), list(cached.num_output_tokens)
        in_batch, states = self.runner.input_batch.req_id_to_index, self.runner.requests
        for i, req_id in enumerate(cached.req_ids):
            state = states[req_id]
            state.prev_num_draft_len = 0
            refused = outputs[i] - len(state.output_token_ids)
            if refused > 0 and req_id in in_batch:
                computed[i] -= refused
                outputs[i] -= refused
        num_scheduled, with_drafts = dict(scheduler_output.num_scheduled_tokens), {}
        for req_id, placeholders in scheduler_output.scheduled_spec_decode_tokens.items():
            draft = drafts.get(req_id, [])
            if len(draft) != len(placeholders):
                draft = draft[: len(placeholders)]
                num_scheduled[req_id] += len(draft) - len(placeholders)
            self._verified[req_id] = draft
            if draft:
                with_drafts[req_id] = draft
        return replace(
            scheduler_output,
            scheduled_cached_reqs=replace(cached, num_computed_tokens=computed, num_output_tokens=outputs),
            num_scheduled_tokens=num_scheduled,
            total_num_scheduled_tokens=sum(num_scheduled.values()),
            scheduled_spec_decode_tokens=with_drafts,
        )
