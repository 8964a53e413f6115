# SPDX-License-Identifier: Apache-2.0
"""An engine that runs schedules in this process, and its answers."""

from __future__ import annotations

import collections
import concurrent.futures
import copy
from dataclasses import dataclass, field
from typing import Any

import sessions
from schedule_draws import BLOCK, MAX_LEN, MAX_SEQS, Ask

BLOCKS, MAX_K = 128, 15
MAX_STEPS = 4000
PAUSE = 6


@dataclass
class Answer:
    """One sequence of a request. logprobs: {token: (log-probability, rank)} for each token."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    stop: int | str | None = None
    logprobs: list[Any] | None = None


@dataclass
class Result:
    answers: list[Answer] = field(default_factory=list)
    prompt_logprobs: list[Any] | None = None
    refused: str | None = None
    aborted: bool = False


def readable(logprobs):
    return logprobs and [
        entry and {token: (each.logprob, each.rank) for token, each in entry.items()} for entry in logprobs
    ]


def sampling(params):
    """The SamplingParams for the params of an Ask."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    params = {**params, "output_kind": RequestOutputKind[params.get("output_kind", "CUMULATIVE")]}
    if "structured_outputs" in params:
        params["structured_outputs"] = StructuredOutputsParams(regex=params["structured_outputs"])
    return SamplingParams(**params)


class Engine:
    """An engine whose core is in this process; `covered` counts events in it."""

    def __init__(self, model, arm=None, covered=None):
        from vllm.config.reasoning import ReasoningConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        when, self.verify = arm.split() if arm else ("sync", "seeded")
        speculative = {"method": "sam", "num_speculative_tokens": MAX_K, "sam": {"verify": self.verify}}
        sizes = {"max_model_len": MAX_LEN, "max_num_seqs": MAX_SEQS, "max_num_batched_tokens": 1024}
        sizes |= {"block_size": BLOCK, "num_gpu_blocks_override": BLOCKS}
        arguments = EngineArgs(
            **{"model": str(model), "dtype": "float32", "enforce_eager": True, "seed": 0, **sizes},
            **{"enable_prefix_caching": arm is not None, "enable_prompt_embeds": True},
            async_scheduling=when == "async",
            disable_log_stats=True,  # vLLM's counters by position are made once, for one k
            reasoning_config=ReasoningConfig(reasoning_start_str="THINK", reasoning_end_str="STOP"),
            additional_config={"sam_verify": self.verify},
            speculative_config=speculative if arm else None,
        )
        self.engine = LLMEngine.from_engine_args(arguments)
        self.core = self.engine.engine_core.engine_core
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
        self.results: dict[int, Result] = {}
        self.current: dict[str, Ask] = {}
        self.verified, self.accepted, self.covered = collections.Counter(), collections.Counter(), covered
        if arm:
            assert self.runner.vllm_config.scheduler_config.async_scheduling == (when == "async")
            self.watch()

    def watch(self):
        """Count preemptions, turns of sessions, and steps by their content."""
        scheduler, covered = self.core.scheduler, self.covered
        preempt, update = scheduler._preempt_request, scheduler.update_from_output
        begin_turn = scheduler._update_request_as_session

        def preempting(*args, **kwargs):
            covered["preemptions"] += 1
            return preempt(*args, **kwargs)

        def updating(planned, output):
            drafts = {name: draft for name, draft in planned.scheduled_spec_decode_tokens.items() if draft}
            if drafts:
                covered["steps with drafts"] += 1
            else:
                covered["steps without" if planned.num_scheduled_tokens else "empty steps"] += 1
            for name in drafts.keys() & output.req_id_to_index.keys() & scheduler.requests.keys():
                self.verified[name] += 1
                self.accepted[name] += len(output.sampled_token_ids[output.req_id_to_index[name]]) > 1
            return update(planned, output)

        def turning(*args):
            covered["turns"] += 1
            return begin_turn(*args)

        scheduler._preempt_request, scheduler.update_from_output = preempting, updating
        scheduler._update_request_as_session = turning

    def set_up(self, setup):
        """Reconfigure the engine, which must have no requests."""
        from noting_pool import note_answers
        from sam_core.engines.vllm import runner1_async
        from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

        scheduler, k = self.core.scheduler, setup["k"]
        scheduler.max_num_running_reqs, scheduler.max_num_scheduled_tokens = setup["seqs"], setup["tokens"]
        scheduler.scheduler_config.long_prefill_token_threshold = setup["long_prefill"]
        scheduler.policy = SchedulingPolicy(setup["policy"])
        scheduler.waiting, scheduler.skipped_waiting = (create_request_queue(scheduler.policy) for _ in range(2))
        scheduler.num_spec_tokens = self.runner.num_spec_tokens = k
        self.runner.drafter = renewed(self.runner.drafter, k, setup["sam"] | {"verify": self.verify})
        if self.runner.async_drafts:
            scheduler._spec_token_placeholders = [-1] * k
            runner1_async.MANY_REQUESTS = setup["many"]
            self.runner.drafter.async_drafts = runner1_async.AsyncDrafts(self.runner, self.runner.drafter.tp_group)
        note_answers(self.runner.drafter, setup["feed_all"])
        self.engine.reset_prefix_cache()
        self.blocks = scheduler.kv_cache_manager.block_pool
        self.held = self.blocks.get_new_blocks(self.blocks.get_num_free_blocks() - setup["blocks"])
        self.blocks.num_gpu_blocks = setup["blocks"] + 1  # one is vLLM's own

    def clean_up(self):
        """Return the answers that were indexed. Raises AssertionError if a request remains in the drafter."""
        from noting_pool import noted_answers

        self.blocks.free_blocks(self.held)
        self.blocks.num_gpu_blocks = BLOCKS
        left = self.runner.drafter.stats()["requests"]
        assert not left, f"{left} requests are left in the drafter"
        assert self.blocks.get_num_free_blocks() == BLOCKS - 1, "blocks of the cache were not given back"
        return noted_answers(self.runner.drafter)

    def run(self, schedule):
        """Run a schedule; return the results of all requests by their keys."""
        self.results, self.current = {}, {}
        for number, wave in enumerate(schedule.waves):
            events = {step: what for at, step, what in schedule.events if at == number}
            self.run_wave(wave, events, schedule.setup["drain"])
        for _ in range(MAX_STEPS):
            if self.is_idle():
                return self.results
            self.engine.step()
        raise AssertionError("the engine is never idle")

    def is_idle(self):
        return not self.core.batch_queue and not self.core.scheduler.has_requests()

    def run_wave(self, wave, events, drain):
        todo = collections.defaultdict(list)
        for ask in wave:
            todo[ask.at].append((self.add, ask))
            for at, prompt, max_tokens in ask.turns:
                todo[ask.at + at].append((self.add_turn, ask, prompt, max_tokens))
            if ask.turns:
                todo[ask.at + ask.turns[-1][0]].append((self.add_turn, ask, []))
            if ask.abort is not None:
                todo[ask.at + ask.abort].insert(0, (self.abort, ask))
        resume = None
        for step in range(MAX_STEPS):
            for method, ask, *rest in todo.pop(step, ()):
                self.do(method, ask, *rest)
            if what := events.get(step):
                self.covered[what] += 1
                if what == "pause":
                    self.core.pause_scheduler("keep", False)
                    resume = step + PAUSE
                for _ in range(("pause", "reset", "two resets").index(what)):
                    self.engine.reset_prefix_cache(reset_running_requests=True)
            if step == resume:
                self.core.resume_scheduler()
            self.wait_for_grammars()
            for output in self.engine.step():
                self.collect(self.current[output.request_id], output)
            has_ended = not self.engine.has_unfinished_requests() and (not drain or self.is_idle())
            if has_ended and not todo and (resume is None or step >= resume):
                return
        raise AssertionError(f"{sorted(self.engine.output_processor.request_states)} do not end in {MAX_STEPS} steps")

    def wait_for_grammars(self):
        """Wait for the threads that compile grammars if no other request is left, because the number of empty steps
        until then depends on the machine's load."""
        requests = self.core.scheduler.requests.values()
        if all(request.status.name == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR" for request in requests):
            grammars = [request.structured_output_request._grammar for request in requests]
            concurrent.futures.wait([each for each in grammars if isinstance(each, concurrent.futures.Future)])

    def do(self, method, ask, *rest):
        if method == self.add:
            self.count_drafts(ask.name)
            self.current[ask.name], self.results[ask.key] = ask, Result()
        result = self.results.get(ask.key)
        if result is None or self.current[ask.name] is not ask or result.refused or result.aborted:
            return
        try:
            method(ask, *rest)
        except ValueError as error:
            result.refused = str(error)

    def add(self, ask):
        if ask.turns:
            self.add_turn(ask, ask.prompt, None)
        else:
            self.engine.add_request(ask.name, self.prompt(ask), sampling(ask.params), priority=ask.priority)

    def prompt(self, ask):
        import torch

        if not ask.embeds:
            return {"prompt_token_ids": list(ask.prompt)}
        table = self.runner.get_model().model.embed_tokens.weight.detach()
        return {"prompt_embeds": table[torch.tensor(ask.prompt)].cpu().clone()}

    def add_turn(self, ask, prompt, max_tokens=None):
        params = sampling(ask.params | ({"max_tokens": max_tokens} if max_tokens else {}))
        sessions.add_turn(self.engine, ask.name, prompt, params, priority=ask.priority)

    def abort(self, ask):
        if ask.name in self.engine.output_processor.external_req_ids:
            self.covered["aborts"] += 1
            self.results[ask.key].aborted = True
            self.engine.abort_request([ask.name])

    def collect(self, ask, output):
        result = self.results[ask.key]
        for part in output.outputs:
            while len(result.answers) <= part.index:
                result.answers.append(Answer())
            answer, logprobs = result.answers[part.index], readable(part.logprobs)
            if ask.params.get("output_kind") == "DELTA":
                answer.tokens += part.token_ids
                answer.text += part.text
                answer.logprobs = logprobs if answer.logprobs is None else answer.logprobs + (logprobs or [])
            else:
                answer.tokens, answer.text, answer.logprobs = list(part.token_ids), part.text, logprobs
            if part.finish_reason:
                answer.finish, answer.stop = part.finish_reason, part.stop_reason
        result.prompt_logprobs = readable(output.prompt_logprobs) or result.prompt_logprobs

    def count_drafts(self, name):
        """Count the drafts of the request that had this name."""
        for counts, what in ((self.verified, "verified"), (self.accepted, "accepted")):
            n = sum(counts.pop(f"{child}{name}", 0) for child in ("", "0_", "1_", "2_"))
            if n and name in self.current:
                self.covered.update({f"{what} {family}": n for family in self.current[name].families()} | {what: n})


def keep_settings():
    """Make SamProposers created from now on keep their settings, for `renewed`."""
    from sam_core.proposer import SamProposer

    make = SamProposer.__init__

    def making(drafter, k, sam, **settings):
        make(drafter, k, sam, **settings)
        drafter.settings = settings

    SamProposer.__init__ = making


def renewed(drafter, k, sam):
    """Return a new drafter with the settings of this one and other options."""
    from sam_core.proposer import SamProposer

    new = copy.copy(drafter)
    SamProposer.__init__(new, k, sam, **drafter.settings)
    return new
