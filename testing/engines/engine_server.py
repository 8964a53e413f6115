# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own, so that engines of different platforms live side by side.

usage: engine_server.py LLMEngine|AsyncLLM SETTINGS   (JSON: arguments of EngineArgs)
One JSON object a line on stdin, {"method": name, **arguments}; its answer is one on stdout, {"result": ...} or
{"error": text}. The name is that of a Server's method, or of a function here that runs in the worker of each rank; the
result is then a list. The first line says which platform vLLM chose. Everything else that is printed goes to stderr.
"""

import collections
import gc
import json
import os
import sys
import traceback

import noting_pool
import tiny_qwen3
from ascend_engine import OLD
from llm_engine import GREEDY, Engine

gc.unfreeze = lambda: None  # else an engine that ends would search all that its processes were forked with for garbage


def random_seed(worker):
    """Runs in a worker: returns the seed of its random numbers, initially the engine's seed 0."""
    import torch

    return torch.initial_seed()


def calls(worker):
    """Runs in a worker: returns the numbers of calls of the stand-in's operators by name."""
    import torch_npu

    return dict(torch_npu.CALLS)


def experts(worker):
    """Runs in a worker: returns how many experts of a layer it holds, and how many graphs it replayed."""
    import torch_npu

    layer = worker.model_runner.get_model().model.layers[0].mlp.experts
    return [len(layer.w13_weight), torch_npu.npu.NPUGraph.replays]


def routed_experts(output):
    """The experts by layer of each token but the last of a prompt and its answer; None if the engine records none."""
    recorded = getattr(output.outputs[0], "routed_experts", None)
    return None if recorded is None else recorded.tolist()


def pools(worker):
    """Runs in a worker: returns the counters of the proposer's Pool."""
    return worker.model_runner.drafter.texts.pool.stats()


def counters(worker):
    """Runs in a worker: returns the counters of the proposer."""
    return worker.sam_stats()


def scheduling(worker):
    """Runs in a worker: returns whether it has runner 2, and whether it is scheduled asynchronously."""
    runner = worker.model_runner
    return [".worker.gpu." in type(runner).__module__, runner.vllm_config.scheduler_config.async_scheduling]


def keep_off(worker, threshold=0):
    """Runs in a worker: sets the threshold of the switch; at 0 the switch is off even for a single request."""
    worker.model_runner.drafter.switch.threshold = threshold


def never_pays(worker):
    """Runs in a worker: from now on switch auto chooses no drafts, not even to explore."""
    import numpy as np

    worker.model_runner.drafter.switch._choose = lambda contexts, *_: np.zeros(len(contexts), np.int32)


def note_answers(worker, feed_all=False):
    """Runs in a worker: starts to record the answers that its drafter indexes."""
    noting_pool.note_answers(worker.model_runner.drafter, feed_all)


def noted_answers(worker):
    """Runs in a worker: returns the answers recorded since the last call."""
    return noting_pool.noted_answers(worker.model_runner.drafter)


def note_outputs(worker):
    """Runs in a worker: starts to record the output tokens of requests that leave the batch, as far as they have
    been read."""
    runner = worker.model_runner
    complete, runner.noted_outputs = runner.async_drafts._complete_output, []

    def noting(req_id):
        complete(req_id)
        runner.noted_outputs.append(runner.requests[req_id].output_token_ids.copy())

    runner.async_drafts._complete_output = noting


def noted_outputs(worker):
    """Runs in a worker: returns what note_outputs recorded."""
    return worker.model_runner.noted_outputs


def load_weights(worker, folder):
    """Runs in a worker: loads the weights in this folder, as verl's rollout loads those of the trainer."""
    from safetensors.torch import load_file

    worker.model_runner.get_model().load_weights(load_file(os.path.join(folder, "model.safetensors")).items())


def refuse_draft_calls(worker):
    """Runs in a worker: from now on the engine fails if it asks this worker for drafts."""
    worker.take_draft_token_ids = None


def collected_objects(worker):
    """Runs in a worker: returns the number of objects that a full garbage collection reads."""
    return len(gc.get_objects())


def watch_graphs(worker):
    """Runs in a worker: starts to record the STEP_COLUMNS of each step. Returns False if that has already started."""
    runner = worker.model_runner
    if hasattr(runner, "steps"):
        return False
    runner.steps, determine = [], runner._determine_batch_execution_and_padding

    def noting(**arguments):
        found = determine(**arguments)
        lengths = sorted(set(arguments["num_scheduled_tokens_np"].tolist()))
        runner.steps.append([lengths, arguments["num_reqs"], found[0].name, found[1].num_tokens, found[1].num_reqs])
        return found

    runner._determine_batch_execution_and_padding = noting
    return True


def steps_and_replays(worker):
    """Runs in a worker: returns the steps recorded since the last call, and the graphs replayed since the start."""
    import torch_npu

    steps, worker.model_runner.steps = worker.model_runner.steps, []
    return steps, torch_npu.npu.NPUGraph.replays


def shape_of(scheduled):
    """The numbers of requests and draft tokens of a SchedulerOutput."""
    return len(scheduled.num_scheduled_tokens), sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))


def note_plans(worker):
    """Runs in a worker: starts to record the numbers of requests and draft tokens of each scheduled step."""
    runner, execute = worker.model_runner, worker.model_runner.execute_model
    runner.noted_plans = []

    def noting(scheduled, *args, **kwargs):
        runner.noted_plans.append(shape_of(scheduled))
        return execute(scheduled, *args, **kwargs)

    runner.execute_model = noting


def noted_plans(worker):
    """Runs in a worker: returns what note_plans recorded."""
    return worker.model_runner.noted_plans


def calling_core():
    """The EngineCore that called the function running in its worker, which must share its process."""
    from vllm.v1.engine.core import EngineCore

    frame = sys._getframe()
    while not isinstance(core := frame.f_locals.get("self"), EngineCore):
        frame = frame.f_back
    return core


def meter_steps(worker):
    """Runs in a worker that shares its process with the engine's core: starts to meter each step (meter.py)."""
    from torch_npu.meter import METER

    core = calling_core()
    runner, step, execute = worker.model_runner, core.step_fn, worker.model_runner.execute_model
    runner.metered = []

    def noting(scheduled, *args, **kwargs):
        requests, drafted = shape_of(scheduled)
        METER.shape = [requests, scheduled.total_num_scheduled_tokens, drafted]
        return execute(scheduled, *args, **kwargs)

    def counted():
        METER.events, METER.shape = collections.Counter(), None
        try:
            return step()
        finally:
            events, METER.events = METER.events, None
            if METER.shape:
                runner.metered.append([*METER.shape, [[*event, count] for event, count in events.items()]])

    runner.execute_model, core.step_fn = noting, counted


def metered_steps(worker):
    """Runs in a worker: returns requests, tokens, draft tokens and events of each step since the last call."""
    steps, worker.model_runner.metered = worker.model_runner.metered, []
    return steps


class Server(Engine):
    def __init__(self, settings):
        self.start(settings, settings.pop("speculative_config", None))

    def make(self, arguments):
        if not OLD:
            return super().make(arguments)
        from vllm.v1.engine.llm_engine import LLMEngine

        engine = LLMEngine.from_engine_args(arguments)  # 0.11 refuses stat_loggers
        engine.logger_manager.per_engine_logger_dict[0].append(self.log)
        return engine

    def run(self, prompts, max_tokens, stagger, abort, each, renew=None):
        """Answer prompts of token ids.

        Args:
            max_tokens, stagger, abort, each: see Engine.run.
            renew: the argument of `renew`, which is called after 8 outputs.

        Returns:
            answers: token ids of each answer.
            logprobs: of each answer, for every token [[token, log-probability], ...] or None.
            ends: of each answer, text, finish_reason and stop_reason; with `stop` its tokens are tiny_qwen3.LETTERS.
            routed_experts: of each answer, as the function routed_experts returns them.
            rows: the rows of the StepLog, one for each engine step.
            preemptions: their number in this run.
        """
        for arguments in each:
            if "logit_bias" in arguments:  # JSON has no integer keys
                arguments["logit_bias"] = {int(token): bias for token, bias in arguments["logit_bias"].items()}
            if "stop" in arguments:
                arguments["detokenize"] = True
                self.engine.output_processor.tokenizer = tiny_qwen3.tokenizer(tiny_qwen3.LETTERS)
        interrupt = (lambda engine: self.renew(renew)) if renew else None
        answers = super().run(prompts, max_tokens, stagger, abort, each, interrupt)
        outputs = [output and output.outputs[0] for output in self.outputs]
        return {
            "answers": answers,
            "logprobs": [
                output
                and output.logprobs
                and [[[token, entry.logprob] for token, entry in place.items()] for place in output.logprobs]
                for output in outputs
            ],
            "ends": [output and [output.text, output.finish_reason, output.stop_reason] for output in outputs],
            "routed_experts": [output and routed_experts(output) for output in self.outputs],
            "rows": self.rows,
            "preemptions": self.log.preemptions,
        }

    def renew(self, weights):
        """Load the weights in this folder while running requests are paused or, without requests, in sleep mode."""
        core = self.engine.engine_core
        if self.engine.has_unfinished_requests():  # vLLM would go on with them once the first memory is back
            core.call_utility("pause_scheduler", "keep", True)
            self.in_workers(load_weights, {"folder": weights})
            core.call_utility("resume_scheduler")
            return
        self.engine.sleep(2)
        self.engine.wake_up(["weights"])
        self.in_workers(load_weights, {"folder": weights})
        self.engine.wake_up(["kv_cache"])

    def in_workers(self, function, arguments):
        """Return what a function of this module returns in the worker of each rank."""
        return self.engine.collective_rpc(function, kwargs=arguments)


class AsyncServer:
    """An AsyncLLM, as verl's servers run it: each request is a task of one event loop, and the worker is a process."""

    def __init__(self, settings):
        import asyncio

        from sam_core.engines.vllm.step_log import StepLog
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.log = StepLog()
        self.log.path = os.devnull
        self.loop = asyncio.new_event_loop()
        self.requests = 0

        async def start():
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings), stat_loggers=[self.log])

        self.engine = self.loop.run_until_complete(start())

    def run(self, prompts, max_tokens, stagger, abort, each):
        """Like Server.run, for requests that all arrive at once and run to their ends."""
        import asyncio

        from vllm import SamplingParams

        assert not stagger and not abort, "an AsyncServer's requests come at once and run to their ends"
        self.log._rows = []

        async def generate(prompt, length, arguments):
            self.requests += 1
            parameters = SamplingParams(max_tokens=length, **GREEDY | arguments)
            async for output in self.engine.generate({"prompt_token_ids": prompt}, parameters, str(self.requests)):
                last = output
            return list(last.outputs[0].token_ids), routed_experts(last)

        async def generate_all():
            return await asyncio.gather(*map(generate, prompts, max_tokens, each))

        answers, routed = zip(*self.loop.run_until_complete(generate_all()), strict=True)
        return {"answers": answers, "routed_experts": routed, "rows": self.log._rows}

    def in_workers(self, function, arguments):
        """Like Server.in_workers."""
        return self.loop.run_until_complete(self.engine.collective_rpc(function, kwargs=arguments))

    def stop(self):
        self.engine.shutdown()


def main():
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(result):
        channel.write(json.dumps(result) + "\n")

    try:
        from vllm.platforms import current_platform

        server = {"LLMEngine": Server, "AsyncLLM": AsyncServer}[sys.argv[1]](json.loads(sys.argv[2]))
        answer({"result": type(current_platform).__name__})
        for line in sys.stdin:
            request = json.loads(line)
            method = request.pop("method")
            function = globals().get(method)
            found = server.in_workers(function, request) if function else getattr(server, method)(**request)
            answer({"result": found})
    except Exception:
        answer({"error": traceback.format_exc()})
        raise
    server.stop()
    os._exit(0)  # the workers have ended; what Python does at its own end takes seconds


if __name__ == "__main__":
    main()
