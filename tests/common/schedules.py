# SPDX-License-Identifier: Apache-2.0
"""Random schedules: engines with sam answer as one without, whatever arrives, ends and is taken back meanwhile.

usage: schedules.py [--count N] [--first SEED] [--arm NAME] [--without FAMILY] [--shrink] [--cases [NAME ...]]

A schedule is drawn from its seed: requests in waves, with parameters of every family, and what happens meanwhile. No
text depends on when something happens. So an engine without speculation that has one request at a time gives the
answers, and each arm, an engine with sam, runs the schedule with little cache, few tokens a step, and a drafter of its
own. All engines are in this process, on vLLM's CPU backend or the stand-in for torch_npu.

Prints a JSON object a line: with --cases {"case", "faults": [sentence, ...], "accepted": drafts} for each name in
cases(); {"seed", "arm", "faults"} where an arm differs, with --shrink also "shrunk", a schedule that has fewer requests
and events and still differs; at the end {"covered": {what: how often}}, where "ran NAME" counts requests with a
parameter or of a kind, "verified NAME" and "accepted NAME" their drafts. With switch auto the clock decides what is
drafted, so such a schedule may agree the next time.
"""

from __future__ import annotations

import argparse
import collections
import copy
import itertools
import json
import os
import random
import string
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sessions
import tiny_qwen3
from scipy.optimize import linear_sum_assignment
from tiny_qwen3 import VOCAB

EOS = VOCAB - 1
WORDS = [
    *string.ascii_lowercase,
    *(a + b for a in "bdfgk" for b in "aeiou"),
    "xyz",
    "ab",
    "cab",
    "s ",
    " t",
    "é",
    "THINK",
    "STOP",
]
WORDS += [f"<{at}>" for at in range(len(WORDS), EOS)] + ["<eos>"]
THINK = WORDS.index("THINK")
MAX_LEN, BLOCK, BLOCKS, MAX_SEQS, MAX_K = 160, 16, 128, 16, 15
MAX_STEPS = 4000
PAUSE = 6
ARMS = ("sync rejection", "async rejection", "sync seeded", "async seeded")


# ---------------------------------------------------------------- schedules


@dataclass
class Ask:
    """A request.

    key: its number in the schedule; name: its id, which one before may have had.
    at: steps after the beginning of its wave.
    abort: steps after its arrival, None: never.
    turns: further inputs of a session: (steps after its arrival, token ids, max_tokens).
    embeds: it gives the embeddings of its prompt.
    """

    key: int
    name: str
    prompt: list[int]
    params: dict[str, Any]
    at: int
    priority: int = 0
    abort: int | None = None
    turns: list[tuple[int, list[int], int]] = field(default_factory=list)
    embeds: bool = False

    @property
    def draws(self) -> bool:
        """Whether its text depends on random numbers."""
        return self.params["temperature"] > 0 and not {"top_k", "top_p"} & self.params.keys()

    def families(self) -> set[str]:
        kinds = {"sessions": self.turns, "embeds": self.embeds, "priorities": self.priority}
        params = self.params.keys() - ({"temperature"} if not self.params["temperature"] else set())
        return params | {kind for kind, is_so in kinds.items() if is_so}


@dataclass
class Schedule:
    """waves: of requests, each of which begins when the one before has ended; events: (wave, step, what)."""

    seed: int
    setup: dict[str, Any]
    waves: list[list[Ask]]
    events: list[tuple[int, int, str]]


def tokens(rng, least, most):
    return sorted(rng.sample(range(EOS), rng.randint(least, most)))


FAMILIES = {
    "repetition_penalty": lambda rng: {"repetition_penalty": rng.choice([1.02, 1.3])},
    "penalties": lambda rng: rng.choice(
        [{"presence_penalty": 0.5}, {"frequency_penalty": 0.7, "presence_penalty": -0.3}]
    ),
    "temperature": lambda rng: {"temperature": rng.choice([0.5, 1.0])},
    "top_k": lambda rng: {"temperature": 1.0, "top_k": 1},
    "top_p": lambda rng: {"temperature": 1.0, "top_p": 1e-5},
    "seed": lambda rng: {"seed": rng.randrange(1 << 40)},
    "stop": lambda rng: {
        "stop": rng.sample(["a", "fa", "zz", "cab", "bo", "e", "ty", "xy", "gik", "s"], rng.randint(1, 4)),
        "include_stop_str_in_output": rng.random() < 0.5,
    },
    "stop_token_ids": lambda rng: {"stop_token_ids": tokens(rng, 1, 6)},
    "ignore_eos": lambda rng: {"ignore_eos": False},
    "max_tokens": lambda rng: {"max_tokens": None},
    "min_tokens": lambda rng: {"min_tokens": rng.randint(1, 30), "stop_token_ids": tokens(rng, 8, 30)},
    "logprobs": lambda rng: {"logprobs": rng.choice([0, 1, 4])},
    "prompt_logprobs": lambda rng: {"prompt_logprobs": rng.choice([0, 2])},
    "logprob_token_ids": lambda rng: {"logprob_token_ids": tokens(rng, 1, 3)},
    "flat_logprobs": lambda rng: {"logprobs": 2, "flat_logprobs": True},
    "detokenize": lambda rng: {"detokenize": False},
    "skip_special_tokens": lambda rng: {
        "skip_special_tokens": False,
        "spaces_between_special_tokens": rng.random() < 0.5,
        "ignore_eos": False,
    },
    "output_kind": lambda rng: {"output_kind": rng.choice(["DELTA", "FINAL_ONLY"])},
    "n": lambda rng: (
        {"n": rng.randint(2, 3), "temperature": 1.0} | rng.choice([{}, {"top_k": 1}])
    ),  # greedy ones may not
    "structured_outputs": lambda rng: {
        "structured_outputs": rng.choice(["[a-f]{40}", "(ba|de|f){5,30}"]),
        "ignore_eos": False,  # all that a grammar has after its end
    },
    "allowed_token_ids": lambda rng: {"allowed_token_ids": tokens(rng, 20, 45)},
    "bad_words": lambda rng: {"bad_words": rng.sample(WORDS[:50], rng.randint(1, 6))},
    "extra_args": lambda rng: {"extra_args": {"sam_group": rng.choice("xyz")}},
    "skip_reading_prefix_cache": lambda rng: {"skip_reading_prefix_cache": True},
    "thinking_token_budget": lambda rng: {"thinking_token_budget": rng.randint(0, 12)},
    "repetition_detection": lambda rng: {"repetition_detection": [rng.randint(1, 8), 1, rng.randint(3, 6)]},
    "routed_experts_prompt_start": lambda rng: {"routed_experts_prompt_start": 2},
    "min_p": lambda rng: {"temperature": 1.0, "min_p": 0.2},
    "logit_bias": lambda rng: {"logit_bias": {3: 2.0}},
}
"""By name, a function that draws arguments of SamplingParams; `structured_outputs` is a regular expression here."""
KINDS = ("sessions", "embeds", "aborts", "priorities", "resets", "pauses", "reuse")
"""Of requests and events."""
REFUSED = {"min_p", "logit_bias"}
"""What vLLM refuses beside speculation."""
ALONE = {"structured_outputs"} | REFUSED
BESIDE = {"logprobs", "seed", "extra_args"}
"""All that a request with one of ALONE may have beside it."""
NOT_IN_SESSIONS = {"stop", "n", "output_kind", "prompt_logprobs", "max_tokens", "thinking_token_budget"} | ALONE
NEED_TEXT = {"stop", "structured_outputs", "bad_words", "skip_special_tokens"}


def arms_of(seed):
    """Half of the arms, in turns: one synchronous and one asynchronous, one for each verification."""
    return (ARMS[0], ARMS[3]) if seed % 2 else (ARMS[1], ARMS[2])


def draw(seed, without=()):
    """The schedule of a seed, without these FAMILIES and KINDS."""
    rng = random.Random(seed)
    families, kinds = ([name for name in names if name not in without] for names in (FAMILIES, KINDS))
    setup = {
        "k": rng.choice([1, 3, 8, 15]),
        "sam": {
            "switch": rng.choice(["batch", "batch", "auto"]),
            "threshold": rng.choice([1, 3, 6, 64]),
            "min_prob": rng.choice([0, 0, 0.1]),
            "rule": rng.choice(["blend", "blend", "newest", "suffix"]),
        },
        "blocks": rng.choice([11, 16, 24, 100]),  # a request of MAX_LEN tokens needs 10
        "tokens": rng.choice([16, 32, 64, 512]),
        "seqs": rng.choice([3, 8, MAX_SEQS]),
        "policy": rng.choice(["fcfs", "priority"]) if "priorities" in kinds else "fcfs",
        "long_prefill": rng.choice([0, 0, 20]),
        "feed_all": rng.random() < 0.3,
        "drain": rng.random() < 0.5,
    }
    shared = [draw_prompt(rng) for _ in range(3)]
    waves, events, keys = [], [], itertools.count()
    for number in range(rng.randint(1, 3)):
        spread, wave = rng.choice([0, 10, 60]), []
        for _ in range(rng.randint(1, 8)):
            ask = draw_ask(rng, next(keys), families, kinds, shared, spread)
            if setup["policy"] == "priority":
                ask.priority = rng.randint(0, 2)
            if "reuse" in kinds and rng.random() < 0.3:
                reuse(rng, ask, wave, waves)
            wave.append(ask)
        waves.append(wave)
        for kind, whats in (("resets", ["reset", "reset", "two resets"]), ("pauses", ["pause"])):
            if kind in kinds and rng.random() < 0.5:  # at any time, or when the prompt of a request is read
                step = rng.choice([rng.randint(0, 50), rng.choice(wave).at + rng.randint(0, 4)])
                events.append((number, step, rng.choice(whats)))
    setup["blocks"] = max(setup["blocks"], enough_beside_sessions(itertools.chain(*waves)))
    return Schedule(seed, setup, waves, events)


def enough_beside_sessions(asks):
    """Blocks for the longest request beside all sessions: vLLM takes none from a session that waits, and may stand
    still."""
    longest = [
        len(ask.prompt) + 20 + sum(len(prompt) + length for _, prompt, length in ask.turns) for ask in asks if ask.turns
    ]
    return sum(-(-length // BLOCK) for length in longest) + -(-MAX_LEN // BLOCK) + 1


def draw_prompt(rng):
    return [rng.randrange(THINK) for _ in range(rng.randint(2, 25))] * rng.choice([1, 1, 2, 3])


def draw_ask(rng, key, families, kinds, shared, spread):
    prompt = rng.choice(shared) if rng.random() < 0.4 else draw_prompt(rng)
    if rng.random() < 0.1:
        prompt = (prompt * MAX_LEN)[: rng.randint(MAX_LEN - 40, MAX_LEN - 1)]
    params = {"temperature": 0.0, "max_tokens": rng.choice([1, 2, 8, 30, 60, 100]), "ignore_eos": True}
    ask = Ask(key, str(key), list(prompt), params, rng.randint(0, spread))
    chosen = {name for name in families if rng.random() < 0.09}
    if "sessions" in kinds and rng.random() < 0.15:
        at = 0
        for _ in range(rng.randint(1, 4)):
            at += rng.choice([0, 0, 5, 40])
            ask.turns.append((at, [rng.randrange(THINK) for _ in range(rng.randint(1, 20))], rng.choice([1, 2, 5, 20])))
        ask.prompt, params["max_tokens"], params["output_kind"] = prompt[:30], rng.choice([1, 5, 20]), "DELTA"
        chosen -= NOT_IN_SESSIONS
    elif alone := sorted(chosen & ALONE):
        chosen = {alone[0]} | chosen & BESIDE
    elif "embeds" in kinds and rng.random() < 0.1:
        ask.embeds = True
        chosen -= {"prompt_logprobs"}
    if chosen & NEED_TEXT:
        chosen -= {"detokenize"}
    if "thinking_token_budget" in chosen:
        ask.prompt = ask.prompt[: MAX_LEN - 40] + [THINK]
    for name in sorted(chosen):
        params |= FAMILIES[name](rng)
    if "min_tokens" in params:  # vLLM never ends an answer that has no room for them
        params["min_tokens"] = min(params["min_tokens"], params["max_tokens"] or MAX_LEN, MAX_LEN - len(ask.prompt))
    if ask.turns:
        params.pop("min_tokens", None)  # a turn may be shorter
    if ask.draws:
        params.setdefault("seed", rng.randrange(1 << 40))
    if "aborts" in kinds and rng.random() < 0.15:
        ask.abort = rng.randint(1, 40)
    return ask


def reuse(rng, ask, wave, waves):
    """Name it as one of an earlier wave, or as one of its own wave when that is aborted."""
    taken = collections.Counter(other.name for other in wave)
    aborted = [other for other in wave if other.abort is not None and taken[other.name] == 1]
    ended = [other for other in itertools.chain(*waves) if not taken[other.name]]
    if aborted and rng.random() < 0.6:
        before = rng.choice(aborted)
        ask.name, ask.at = before.name, before.at + before.abort
    elif ended:
        ask.name = rng.choice(ended).name


def cases():
    """By name, schedules of one kind each, which random ones seldom have as plainly."""
    setup = {"k": 3, "sam": {"switch": "batch", "threshold": 64, "min_prob": 0, "rule": "blend"}, "policy": "fcfs"}
    setup |= {"blocks": 100, "tokens": 64, "seqs": 8, "long_prefill": 0, "feed_all": True, "drain": True}

    def ask(key, prompt, length, turns=(), embeds=False, **params):
        params = {"temperature": 0.0, "ignore_eos": True, "max_tokens": length} | params
        return Ask(
            key, str(key), prompt, params | ({"output_kind": "DELTA"} if turns else {}), 0, 0, None, list(turns), embeds
        )

    beside = [ask(key, [7 + key, 3, 9, 4] * 4, 60) for key in (1, 2)]
    twelve, long = [5, 6, 7, 8] * 3, list(range(1, 41))
    sessions = [ask(3, [11, 5, 6, 8, 11, 5, 6], 20, [(0, [12, 5, 6, 8], 3), (0, [3] * n, 30)]) for n in range(1, 7)]
    sessions += [
        ask(3, twelve, 30, [(40, [at, 2, 3] * 4, 5), (60, twelve, 9)], stop_token_ids=[at * 9]) for at in range(4)
    ]
    embeds = [ask(2, long[:n], 20, embeds=True, **params) for n, params in ((9, {}), (40, {"repetition_penalty": 1.3}))]
    resets = [[(0, at, what)] for what, steps in (("reset", range(5)), ("two resets", (1, 2))) for at in steps]
    again = []
    for at in range(3, 9):
        aborted, named_alike = ask(3, long, 60), ask(4, twelve, 20)
        aborted.abort, named_alike.name, named_alike.at = at, aborted.name, at
        again.append([*beside, aborted, named_alike])

    def twice(params_of):
        """Eight requests of different lengths and arrivals, then again with the parameters of one another."""
        waves = []
        for number in range(2):
            wave = [
                ask(10 * number + at, [at, 9 - at, 3] * 3 + [THINK], 12 + 9 * (at % 4), **params_of(at + 3 * number))
                for at in range(8)
            ]
            for at, each in enumerate(wave):
                each.at = 2 * at
            waves.append(wave)
        thresholds = [setup | {"sam": setup["sam"] | {"threshold": threshold}} for threshold in (64, 3)]
        return [Schedule(0, each, copy.deepcopy(waves), []) for each in thresholds]

    asked_for = ({"logprob_token_ids": [3, 40]}, {"logprobs": 2}, {}, {"logprob_token_ids": [7]})
    return {
        "thinking budgets": twice(lambda at: {"thinking_token_budget": at} if at % 5 else {}),
        "log-probabilities": twice(lambda at: asked_for[at % 4]),
        "ids": [Schedule(0, setup, [wave], []) for wave in again],
        "turns": [
            Schedule(0, setup | {"sam": setup["sam"] | {"threshold": threshold}}, [[*beside, session]], [])
            for threshold in (64, 1)  # with 1, tokens are read late
            for session in sessions
        ],
        "embeds": [
            Schedule(0, setup, [[ask(1, twelve, 40, stop_token_ids=[stop])], [last]], [])
            for stop, last in itertools.product((30, 46), embeds)
        ],
        "prompt log-probabilities": [
            Schedule(0, setup | {"tokens": size}, [[ask(3, long, 9, prompt_logprobs=2), *beside]], events)
            for size, events in itertools.product((64, 16), resets)
        ],
    }


def one_by_one(schedule):
    """The same requests, each alone and to its end."""
    asks = [copy.deepcopy(ask) for ask in itertools.chain(*schedule.waves)]
    for ask in asks:
        ask.at, ask.abort, ask.turns = 0, None, [(0, *turn[1:]) for turn in ask.turns]
    return Schedule(schedule.seed, {"drain": True}, [[ask] for ask in asks], [])


# ---------------------------------------------------------------- engines


@dataclass
class Answer:
    """One sequence of a request. logprobs: of each token {token: (log-probability, rank)}."""

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
    """The SamplingParams of an Ask's."""
    from vllm import SamplingParams
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

    params = {**params, "output_kind": RequestOutputKind[params.get("output_kind", "CUMULATIVE")]}
    if "structured_outputs" in params:
        params["structured_outputs"] = StructuredOutputsParams(regex=params["structured_outputs"])
    if "repetition_detection" in params:
        params["repetition_detection"] = RepetitionDetectionParams(*params["repetition_detection"])
    return SamplingParams(**params)


class Engine:
    """An engine whose core is in this process; `covered` counts what happened in it."""

    def __init__(self, model, arm=None, covered=None):
        from vllm.config.reasoning import ReasoningConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        when, self.verify = arm.split() if arm else ("sync", "seeded")
        speculative = {"method": "sam", "num_speculative_tokens": MAX_K, "sam": {"verify": self.verify}}
        arguments = EngineArgs(
            model=str(model),
            dtype="float32",
            enforce_eager=True,
            seed=0,
            max_model_len=MAX_LEN,
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=1024,
            block_size=BLOCK,
            num_gpu_blocks_override=BLOCKS,
            enable_prefix_caching=arm is not None,
            enable_prompt_embeds=True,
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
        """Counts preemptions, turns of sessions, and steps by what they held."""
        scheduler, covered = self.core.scheduler, self.covered
        preempt, update = scheduler._preempt_request, scheduler.update_from_output
        begin_turn = scheduler._update_request_as_session

        def preempting(*args, **kwargs):
            covered["preemptions"] += 1
            return preempt(*args, **kwargs)

        def updating(planned, output):
            drafts = {name: draft for name, draft in planned.scheduled_spec_decode_tokens.items() if draft}
            kind = (
                "empty steps"
                if not planned.num_scheduled_tokens
                else "steps with drafts"
                if drafts
                else "steps without"
            )
            covered[kind] += 1
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
        """Make it an engine of these settings; it has no requests."""
        from noting_pool import note_answers
        from sam_core.engines.vllm.runner1_async import AsyncDrafts
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
            self.runner.drafter.async_drafts = AsyncDrafts(self.runner, self.runner.drafter.tp_group)
        note_answers(self.runner.drafter, setup["feed_all"])
        self.engine.reset_prefix_cache()
        self.blocks = scheduler.kv_cache_manager.block_pool
        self.held = self.blocks.get_new_blocks(self.blocks.get_num_free_blocks() - setup["blocks"])
        self.blocks.num_gpu_blocks = setup["blocks"] + 1  # one is vLLM's own

    def clean_up(self):
        """The answers that were indexed; raises AssertionError if a request is left in the drafter."""
        from noting_pool import noted_answers

        self.blocks.free_blocks(self.held)
        self.blocks.num_gpu_blocks = BLOCKS
        left = self.runner.drafter.stats()["requests"]
        assert not left, f"{left} requests are left in the drafter"
        assert self.blocks.get_num_free_blocks() == BLOCKS - 1, "blocks of the cache were not given back"
        return noted_answers(self.runner.drafter)

    def run(self, schedule):
        """Results of all requests, by their keys."""
        self.results, self.current = {}, {}
        for number, wave in enumerate(schedule.waves):
            self.run_wave(
                wave, {step: what for at, step, what in schedule.events if at == number}, schedule.setup["drain"]
            )
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
            for output in self.engine.step():
                self.collect(self.current[output.request_id], output)
            has_ended = not self.engine.has_unfinished_requests() and (not drain or self.is_idle())
            if has_ended and not todo and (resume is None or step >= resume):
                return
        raise AssertionError(f"{sorted(self.engine.output_processor.request_states)} do not end in {MAX_STEPS} steps")

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
        """Counts those of the request that has had this name."""
        for counts, what in ((self.verified, "verified"), (self.accepted, "accepted")):
            n = sum(counts.pop(f"{child}{name}", 0) for child in ("", "0_", "1_", "2_"))
            if n and name in self.current:
                self.covered.update({f"{what} {family}": n for family in self.current[name].families()} | {what: n})


# ---------------------------------------------------------------- comparison


def first_difference(expected, got):
    return next((at for at, both in enumerate(zip(expected, got)) if both[0] != both[1]), min(len(expected), len(got)))


def differs(ask, expected, got, verify):
    """What is wrong with a request's result, or None."""
    if expected.refused or got.refused:
        if bool(expected.refused) == bool(got.refused) or REFUSED & ask.params.keys():
            return None
        return f"refused only with {'plain' if expected.refused else 'sam'}: {expected.refused or got.refused}"
    if got.aborted:
        expected = cut_as(expected, got)
    if len(expected.answers) != len(got.answers):
        return f"{len(got.answers)} answers, not {len(expected.answers)}"
    if ask.draws and verify == "rejection":
        return None if got.aborted or all(answer.finish for answer in got.answers) else "an answer does not end"
    for mine, theirs in zip(got.answers, expected.answers, strict=True):
        for name in ("tokens", "text"):
            a, b = getattr(theirs, name), getattr(mine, name)
            if a != b:
                at = first_difference(a, b)
                return (
                    f"{name} differ at {at}: plain {a[at : at + 8]!r} of {len(a)}, sam {b[at : at + 8]!r} of {len(b)}"
                )
        if (mine.finish, mine.stop) != (theirs.finish, theirs.stop):
            return f"ends by {mine.finish} {mine.stop!r}, not by {theirs.finish} {theirs.stop!r}"
        if problem := logprobs_differ(theirs.logprobs, mine.logprobs):
            return f"logprobs: {problem}"
    if not got.aborted and (problem := logprobs_differ(expected.prompt_logprobs, got.prompt_logprobs)):
        return f"prompt_logprobs: {problem}"
    return None


def cut_as(expected, got):
    """`expected` as far as an aborted request was answered."""
    answers = copy.deepcopy(expected.answers[: len(got.answers)])
    for mine, theirs in zip(got.answers, answers, strict=False):
        theirs.tokens, theirs.text = theirs.tokens[: len(mine.tokens)], theirs.text[: len(mine.text)]
        if theirs.logprobs is not None and mine.logprobs is not None:
            theirs.logprobs = theirs.logprobs[: len(mine.logprobs)]
        theirs.finish, theirs.stop = mine.finish, mine.stop
    return Result(answers)


def logprobs_differ(expected, got):
    if (expected is None) != (got is None) or expected is not None and len(expected) != len(got):
        return f"{'none' if got is None else len(got)}, not {'none' if expected is None else len(expected)}"
    for at, (a, b) in enumerate(zip(expected or (), got or (), strict=True)):
        if (a is None) != (b is None):
            return f"entry {at} is {b}, not {a}"
        if a is not None and (
            a.keys() != b.keys() or any(abs(a[t][0] - b[t][0]) > 1e-3 or a[t][1] != b[t][1] for t in a)
        ):
            return f"entry {at} is {b}, not {a}"
    return None


def wrongly_indexed(asks, expected, results, noted, verify):
    """What is wrong with the answers that were indexed, or None.

    Those of some requests need not be there, or may go on behind what was seen of them: of aborted ones and stop
    strings. Of a session one turn is there. But no other text is.
    """
    noted, loose = collections.Counter(map(tuple, noted)), []
    for ask in asks:
        result = results[ask.key]
        if result.refused:
            continue
        for at, whole in enumerate(expected[ask.key].answers):
            seen = tuple(result.answers[at].tokens) if at < len(result.answers) else ()
            if result.aborted or ask.turns or "stop" in ask.params:
                unknown = "stop" in ask.params or (ask.draws and verify == "rejection")
                loose.append((seen, None if unknown else tuple(whole.tokens), bool(ask.turns)))
            elif noted[seen]:
                noted[seen] -= 1
            else:
                near = max(noted, key=lambda other: first_difference(seen, other), default=())
                at = first_difference(seen, near)
                return (
                    f"the answer of request {ask.key} was not indexed: the nearest to its {len(seen)} tokens has {len(near)} "
                    f"and differs at {at}: {near[at : at + 8]}, not {seen[at : at + 8]}"
                )
    texts = list(noted.elements())
    if len(texts) > len(loose):
        return f"{len(texts)} answers are indexed for {len(loose)} requests: {texts}"
    if texts:
        fits = np.array([[may_be(text, *one) for one in loose] for text in texts])
        for at, chosen in zip(*linear_sum_assignment(fits, maximize=True), strict=True):
            if not fits[at, chosen]:
                return f"indexed is what no request answered: {texts[at][:12]} ... of {len(texts[at])}"
    return None


def may_be(text, seen, whole, is_session):
    """Whether a text may be what was indexed of an answer. seen: what its client has had; whole: all of it, None if
    unknown."""
    if is_session:  # one of its turns
        return whole is None or any(whole[at : at + len(text)] == text for at in range(len(whole) + 1))
    if whole is None:
        return text[: len(seen)] == seen[: len(text)]
    return whole[: len(text)] == text


# ---------------------------------------------------------------- the program


class Driver:
    """Compares arms with an engine without speculation."""

    def __init__(self, model, arms, checks_indexes=True):
        self.model, self.covered, self.checks_indexes = model, collections.Counter(), checks_indexes
        self.engines = dict.fromkeys([None, *arms])
        self.answered = (None, None)  # the last schedule, and what plain answered

    def engine(self, arm):
        if self.engines[arm] is None:
            self.engines[arm] = Engine(self.model, arm, self.covered)
        return self.engines[arm]

    def results(self, schedule, arm):
        """What an engine answers, and what it indexed; or a sentence where it fails, and then a new one takes its
        place."""
        engine = self.engine(arm)
        try:
            if not arm:
                return engine.run(schedule), []
            engine.set_up(schedule.setup)
            results = engine.run(schedule)
            for name in list(engine.current):
                engine.count_drafts(name)
            return results, engine.clean_up()
        except Exception as error:
            self.engines[arm] = None  # to shut it down would end what all engines of a process share
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"

    def faults(self, schedule, arm):
        """Sentences that say where an arm differs."""
        if self.answered[0] is not schedule:
            self.answered = schedule, self.results(one_by_one(schedule), None)
        plain = self.answered[1]
        if isinstance(plain, str):
            return ["plain: " + plain]
        mine = self.results(schedule, arm)
        if isinstance(mine, str):
            return [mine]
        (expected, _), (results, noted) = plain, mine
        asks = [*itertools.chain(*schedule.waves)]
        faults = [
            f"request {ask.key}: {problem}: {ask}"
            for ask in asks
            if (problem := differs(ask, expected[ask.key], results[ask.key], self.engine(arm).verify))
        ]
        if (
            self.checks_indexes
            and not faults
            and (problem := wrongly_indexed(asks, expected, results, noted, self.engine(arm).verify))
        ):
            faults.append(problem)
        for ask in asks:
            self.covered.update({f"ran {name}": 1 for name in ask.families()})
        return faults

    def shrink(self, schedule, arm, seconds=60):
        """A schedule with fewer requests, parameters and events that this arm still fails."""
        end = time.monotonic() + seconds

        def fails(candidate):
            return time.monotonic() < end and self.faults(candidate, arm)

        shrunk = True
        while shrunk:
            shrunk = False
            for candidate in smaller(schedule):
                if fails(candidate):
                    schedule, shrunk = candidate, True
                    break
        return schedule


def smaller(schedule):
    """Schedules that lack one request, event, parameter or habit of this one."""
    for number, wave in enumerate(schedule.waves):
        for at in range(len(wave)):
            candidate = copy.deepcopy(schedule)
            del candidate.waves[number][at]
            yield candidate
    for at in range(len(schedule.events)):
        candidate = copy.deepcopy(schedule)
        del candidate.events[at]
        yield candidate
    for number, wave in enumerate(schedule.waves):
        for at, ask in enumerate(wave):
            for name in ask.params.keys() - {"temperature", "max_tokens", "ignore_eos", "seed"}:
                candidate = copy.deepcopy(schedule)
                del candidate.waves[number][at].params[name]
                yield candidate
            shared = sum(other.name == ask.name for other in wave) > 1
            for name, value in (("turns", []), ("embeds", False), *(() if shared else (("abort", None), ("at", 0)))):
                if getattr(ask, name) != value:
                    candidate = copy.deepcopy(schedule)
                    setattr(candidate.waves[number][at], name, value)
                    yield candidate


def save_model(folder, head_dim):
    """A tiny Qwen3 with a tokenizer whose tokens are WORDS, written without spaces between them."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=head_dim)
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="z"))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)


def keep_settings():
    """SamProposers that are made from now on keep their settings, for `renewed`."""
    from sam_core.proposer import SamProposer

    make = SamProposer.__init__

    def making(drafter, k, sam, **settings):
        make(drafter, k, sam, **settings)
        drafter.settings = settings

    SamProposer.__init__ = making


def renewed(drafter, k, sam):
    """A drafter as this one was at first, with other options."""
    from sam_core.proposer import SamProposer

    new = copy.copy(drafter)
    SamProposer.__init__(new, k, sam, **drafter.settings)
    return new


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--arm", action="append", choices=ARMS)
    parser.add_argument("--without", action="append", default=[], choices=[*FAMILIES, *KINDS, "indexes"])
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--cases", nargs="*", metavar="NAME", help="first the schedules of these cases(), or of all")
    args = parser.parse_args()
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    import torch
    from vllm.platforms import current_platform

    torch.set_num_threads(1)
    keep_settings()
    if current_platform.is_cpu():
        import asynchronous_cpu
        from vllm.utils.torch_utils import async_tensor_h2d

        asynchronous_cpu.allow()
        async_tensor_h2d.__defaults__ = (False,)  # no pinned memory, which needs a driver; thinking budgets ask for it
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, 32 if current_platform.is_cpu() else 128)
        driver = Driver(folder, args.arm or ARMS, "indexes" not in args.without)
        start = time.monotonic()
        for name, schedules in cases().items() if args.cases is not None else ():
            if args.cases and name not in args.cases:
                continue
            faults = [
                f"{schedule}, {arm}: {fault}"
                for at, schedule in enumerate(schedules)
                for arm in args.arm or arms_of(at)
                for fault in driver.faults(schedule, arm)
            ]
            print(json.dumps({"case": name, "faults": faults, "accepted": driver.covered["accepted"]}), file=channel)
            driver.covered.clear()
        for seed in range(args.first, args.first + args.count):
            schedule = draw(seed, args.without)
            for arm in args.arm or arms_of(seed):
                if not (faults := driver.faults(schedule, arm)):
                    continue
                record = {"seed": seed, "arm": arm, "faults": faults}
                if args.shrink:
                    small = driver.shrink(schedule, arm)
                    record |= {"shrunk": str(small), "faults": driver.faults(small, arm) or faults}
                print(json.dumps(record), file=channel)
            print(f"seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        print(json.dumps({"covered": dict(sorted(driver.covered.items()))}), file=channel)
    channel.close()
    os._exit(0)


if __name__ == "__main__":
    main()
