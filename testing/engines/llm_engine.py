# SPDX-License-Identifier: Apache-2.0
"""A real engine of the pinned vLLM, multi-process as users run it."""

import os

import pace
from sam_core.engines.vllm.step_log import StepLog
from sessions import add_turn

GREEDY = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
COLUMNS = ("start", "seconds", "running", "tokens", "drafted", "accepted")
"""Columns of the StepLog's rows."""


class Log(StepLog):
    """A StepLog that also counts preemptions. vLLM's own counters belong to the engine that was started last."""

    preemptions = 0

    def record(self, scheduler_stats, iteration_stats, *args, **kwargs):
        super().record(scheduler_stats, iteration_stats, *args, **kwargs)
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs


class Engine:
    """vLLM's LLMEngine with a Log: one row per engine step."""

    def __init__(self, model, sam=None, k=3, drafter=None, **settings):
        """drafter: method and model of a model drafter, which drafts k tokens."""
        drafter = drafter or {"method": "sam"}
        speculative = None if sam is None else {**drafter, "num_speculative_tokens": k, "sam": sam}
        sizes = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
        fixed = {"model": str(model), "disable_log_stats": False}
        defaults = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True, **sizes}
        self.start({**defaults, **settings, **fixed}, speculative)

    def start(self, settings, speculative):
        """settings: arguments of EngineArgs."""
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core import EngineCoreProc

        EngineCoreProc.allow = pace.allow
        self.log = Log()
        self.engine = self.make(EngineArgs(speculative_config=speculative, **settings))
        self.requests = 0
        self.rows, self.outputs = [], []

    def make(self, arguments):
        """Return vLLM's engine."""
        from vllm.v1.engine.llm_engine import LLMEngine

        return LLMEngine.from_engine_args(arguments, stat_loggers=[self.log])

    def run(
        self,
        prompts,
        max_tokens=64,
        stagger=0,
        abort=(),
        each=None,
        interrupt=None,
        after=8,
        adapters=None,
        priorities=None,
        **sampling,
    ):
        """Answer prompts.

        stagger: engine outputs between arrivals; abort: requests to abort after 5 tokens; interrupt: called with vLLM's
        engine after `after` outputs; sampling: settings of all requests; each: additional settings of each request,
        also cache_salt; adapters: LoRARequest or None for each; priorities: a number for each. The core only makes an
        output on request, so numbers of outputs do not depend on load.

        Returns the token ids of each answer. `self.rows` has the engine's steps of this run, `self.log.preemptions` its
        preemptions, `self.outputs` vLLM's last RequestOutput of each request, or None.
        """
        from vllm import SamplingParams

        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        sampling = GREEDY | sampling
        waiting = list(enumerate(prompts))
        names, answers, finished, outputs = {}, {}, {}, 0
        with pace.kept_with(self.engine):
            self.log.path = os.devnull
            self.log._rows, self.log.preemptions = [], 0
            while waiting or self.engine.has_unfinished_requests():
                while waiting and (not stagger or outputs >= stagger * waiting[0][0] or not names):
                    i, prompt = waiting.pop(0)
                    name = str(self.requests)
                    self.requests += 1
                    own = dict(each[i]) if each else {}
                    salt = {"cache_salt": own.pop("cache_salt")} if "cache_salt" in own else {}
                    params = SamplingParams(max_tokens=lengths[i], **(sampling | own))
                    adapter = adapters and adapters[i]
                    priority = priorities[i] if priorities else 0
                    asked = {"prompt_token_ids": prompt, **salt}
                    self.engine.add_request(name, asked, params, lora_request=adapter, priority=priority)
                    names[name] = i
                if stagger and waiting and not self.engine.has_unfinished_requests():
                    outputs = stagger * waiting[0][0]
                    continue
                for output in self.engine.step():
                    i = names[output.request_id]
                    answers[i], finished[i] = list(output.outputs[0].token_ids), output
                    if i in abort and len(answers[i]) >= 5 and not output.finished:
                        self.engine.abort_request([output.request_id])
                outputs += 1
                if interrupt and outputs >= after:
                    interrupt(self.engine)
                    interrupt = None
        self.rows, self.log._rows, self.log.path = self.log._rows, [], None
        self.outputs = [finished.get(i) for i in range(len(prompts))]
        return [answers.get(i, []) for i in range(len(prompts))]

    def run_session(self, turns, max_tokens):
        """Answer the turns of a session (vLLM's StreamingInput). turns: lists of token ids; max_tokens: one per turn.

        Returns the tokens of all turns' answers.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        name, answer = f"session {self.requests}", []
        self.requests += 1
        self.log.path, self.log._rows = os.devnull, []
        for turn, length in zip([*turns, []], [*max_tokens, 1], strict=True):  # as AsyncLLM ends a session
            params = SamplingParams(max_tokens=length, output_kind=RequestOutputKind.DELTA, **GREEDY)
            add_turn(self.engine, name, turn, params)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                answer += output.outputs[0].token_ids
        self.rows, self.log._rows, self.log.path = self.log._rows, [], None
        return answer

    def count(self, column):
        return sum(row[COLUMNS.index(column)] for row in self.rows)

    def stop(self):
        self.engine.engine_core.shutdown()

    def drafter(self):
        return self.engine.collective_rpc("sam_stats")[0]
