# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own, so that engines of different platforms live side by side.

usage: engine_server.py LLMEngine|AsyncLLM SETTINGS   (JSON: arguments of EngineArgs; `reasoning_end`: see thinking.py)
One JSON object a line on stdin, {"method": name, **arguments of the Server's method}; its answer is one on stdout,
{"result": ...} or {"error": text}. The first line says which platform vLLM chose. Everything else that is printed goes
to stderr.
"""

import collections
import gc
import json
import os
import sys
import time
import traceback

import noting_pool
import stop_checks
from ascend_engine import OLD
from engine_checks import random_seed
from thinking import reasoning

gc.unfreeze = lambda: None  # else an engine that ends would search all that its processes were forked with for garbage


def operator_calls(worker):
    """Runs in a worker: calls of the stand-in's operators by name."""
    import torch_npu

    return dict(torch_npu.CALLS)


def experts(worker):
    """Runs in a worker: how many experts of a layer it holds, and how many graphs it replayed."""
    import torch_npu

    layer = worker.model_runner.get_model().model.layers[0].mlp.experts
    return [len(layer.w13_weight), torch_npu.npu.NPUGraph.replays]


def routed_experts(output):
    """The experts of each token of a prompt and its answer but the last, by layer; None unless the engine records
    them."""
    recorded = getattr(output.outputs[0], "routed_experts", None)
    return None if recorded is None else recorded.tolist()


def pool_stats(worker):
    """Runs in a worker: counters of the proposer's Pool."""
    return worker.model_runner.drafter.pool.stats()


def scheduling(worker):
    """Runs in a worker: whether its runner is runner 2, and whether it is scheduled asynchronously."""
    runner = worker.model_runner
    return [".worker.gpu." in type(runner).__module__, runner.vllm_config.scheduler_config.async_scheduling]


def classes(worker):
    """Runs in a worker: its runner's class, sampler's and drafter's."""
    runner = worker.model_runner
    parts = (runner, runner.rejection_sampler, runner.drafter)
    return [f"{type(part).__module__}.{type(part).__name__}" for part in parts]


def keep_off(worker, threshold=0):
    """Runs in a worker: from now on the switch is off, also for one request alone; or it has this threshold."""
    worker.model_runner.drafter.switch.threshold = threshold


def free_drafts(worker):
    """Runs in a worker: from now on each request gets a draft of k tokens, which takes no time."""
    runner = worker.model_runner
    k = runner.drafter.k
    runner.drafter.propose = lambda *args: [[0] * k for _ in range(runner.input_batch.num_reqs)]


def never_pays(worker):
    """Runs in a worker: from now on switch auto finds no drafts worth their cost, and none to explore."""
    switch = worker.model_runner.drafter.switch
    switch.MIN_GAIN_ON = switch.MIN_GAIN_OFF = float("inf")
    switch._credit = -float("inf")


def note_answers(worker, feed_all):
    """Runs in a worker: from now on notes the answers that its drafter indexes."""
    noting_pool.note_answers(worker.model_runner.drafter, feed_all)


def noted_answers(worker):
    """Runs in a worker: what note_answers noted since the last time."""
    return noting_pool.noted_answers(worker.model_runner.drafter)


def note_outputs(worker):
    """Runs in a worker: from now on notes the output tokens of requests that leave the batch, as far as they are
    read."""
    runner = worker.model_runner
    complete, runner.noted_outputs = runner.async_drafts._complete_output, []

    def noting(req_id):
        complete(req_id)
        runner.noted_outputs.append(runner.requests[req_id].output_token_ids.copy())

    runner.async_drafts._complete_output = noting


def noted_outputs(worker):
    """Runs in a worker: what note_outputs noted."""
    return worker.model_runner.noted_outputs


def load_weights(worker, folder):
    """Runs in a worker: reads the weights in this folder, as verl's rollout writes those of the trainer."""
    from safetensors.torch import load_file

    worker.model_runner.get_model().load_weights(load_file(os.path.join(folder, "model.safetensors")).items())


def refuse_draft_calls(worker):
    """Runs in a worker: from now on a call that asks it for drafts ends the engine."""
    worker.take_draft_token_ids = None


def collected_objects(worker):
    """Runs in a worker: objects that a full collection reads."""
    return len(gc.get_objects())


def watch_graphs(worker):
    """Runs in a worker: from now on notes of each step what STEP_COLUMNS names; False where that is done already."""
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
    """Runs in a worker: what watch_graphs noted since the last time, and the graphs replayed since the start."""
    import torch_npu

    steps, worker.model_runner.steps = worker.model_runner.steps, []
    return steps, torch_npu.npu.NPUGraph.replays


def shape_of(scheduled):
    """Requests and draft tokens of a SchedulerOutput."""
    return len(scheduled.num_scheduled_tokens), sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))


def standin_clock():
    """A function: seconds that the stand-in has taken so far, inside its operators and by its device at each torch
    call."""
    standin = sys.modules.get("torch_npu")
    if not standin:
        return lambda: 0.0
    factor = standin.delay_factor()
    return lambda: standin.SECONDS[0] + factor * standin.DELAY[0]


def time_operators(worker):
    """Runs in a worker: from now on notes of each step its requests, drafted tokens and the stand-in's seconds."""
    seconds = standin_clock()
    runner, execute = worker.model_runner, worker.model_runner.execute_model
    runner.timed, before = [], [0, 0, seconds()]

    def noting(scheduled, *args, **kwargs):
        runner.timed.append([*before[:2], seconds() - before[2]])
        before[:] = *shape_of(scheduled), seconds()
        return execute(scheduled, *args, **kwargs)

    runner.execute_model = noting


def operator_seconds(worker):
    """Runs in a worker: what time_operators noted since the last time."""
    steps, worker.model_runner.timed = worker.model_runner.timed, []
    return steps


PARTS = {  # of a step, by the object whose methods they are
    "scheduler": ("schedule", "update_from_output", "update_draft_token_ids"),
    "runner": ("_update_states", "_prepare_inputs", "_model_forward", "_sample", "_bookkeeping_sync"),
    "drafter": ("propose",),
}
if OLD:  # one method runs the model, samples and notes the tokens
    PARTS["runner"] = ("_update_states", "_prepare_inputs", "_generate_process_reqs_hidden_states")
    PARTS |= {"sampler": ("forward",), "rejection_sampler": ("verify", "parse_output")}


def time_parts(worker):
    """Runs in a worker that shares its process with the engine's core: from now on notes of each step its requests,
    drafted tokens, and the seconds of the step and of its PARTS, without the stand-in's."""
    seconds, core, runner = standin_clock(), calling_core(), worker.model_runner
    step, parts, shape = core.step_fn, collections.Counter(), []
    objects = {"scheduler": core.scheduler, "runner": runner}
    objects |= {name: getattr(runner, name, None) for name in ("drafter", "sampler", "rejection_sampler")}
    runner.parts, execute = [], runner.execute_model

    def timed(name, function):
        def timing(*args, **kwargs):
            start = time.perf_counter() - seconds()
            try:
                return function(*args, **kwargs)
            finally:
                parts[name] += time.perf_counter() - seconds() - start

        return timing

    def noting(scheduled, *args, **kwargs):
        shape[:] = shape_of(scheduled)
        return execute(scheduled, *args, **kwargs)

    def stepping():
        parts.clear()
        result = whole()
        runner.parts.append([*shape, dict(parts)])
        return result

    for name, methods in PARTS.items():
        for method in methods:
            if function := getattr(objects[name], method, None):
                setattr(objects[name], method, timed(f"{name}.{method}", function))
    whole = timed("step", step)
    runner.execute_model, core.step_fn = noting, stepping


def parts_timed(worker):
    """Runs in a worker: what time_parts noted since the last time."""
    steps, worker.model_runner.parts = worker.model_runner.parts, []
    return steps


def calling_core():
    """The EngineCore that called what runs in its worker, in its own process."""
    from vllm.v1.engine.core import EngineCore

    frame = sys._getframe()
    while not isinstance(core := frame.f_locals.get("self"), EngineCore):
        frame = frame.f_back
    return core


def meter_steps(worker):
    """Runs in a worker that shares its process with the engine's core: from now on counts each step (meter.py)."""
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
    """Runs in a worker: of each step since the last time its requests, tokens, drafts among them, and the events."""
    steps, worker.model_runner.metered = worker.model_runner.metered, []
    return steps


class Server:
    def __init__(self, settings):
        from sam_core.engines.vllm.step_log import StepLog
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        if end := settings.pop("reasoning_end", None):
            settings["reasoning_config"] = reasoning(end)
        self.log = StepLog()
        self.log.path = "kept in memory"
        if OLD:  # refuses stat_loggers
            self.engine = LLMEngine.from_engine_args(EngineArgs(**settings))
            self.engine.logger_manager.per_engine_logger_dict[0].append(self.log)
        else:
            self.engine = LLMEngine.from_engine_args(EngineArgs(**settings), stat_loggers=[self.log])
        self.requests = 0

    def run(self, prompts, max_tokens, stagger, abort, sampling, renew=None, reset=False, after=8):
        """Answer prompts of token ids.

        Args:
            max_tokens: tokens of each answer.
            stagger: engine outputs between arrivals, 0: all at once.
            abort: indexes of requests that end after 5 tokens, or, with renew, in its pause.
            sampling: further arguments of SamplingParams, for all requests or a list with those of each; and `regex`,
                which the answer matches.
            renew: the argument of `renew`, which is called after `after` outputs.
            reset: whether vLLM's cache is reset then, and the requests that run compute their texts again.

        Returns:
            answers: token ids of each.
            logprobs: of each, for every token [[token, log-probability], ...] or None.
            ends: of each, its text, finish_reason and stop_reason; requests with `stop` have stop_checks' tokenizer.
            routed_experts: of each, as the function of this name returns them.
            rows: the StepLog's, one for each engine step.
            preemptions: in this run.
        """
        from vllm import SamplingParams

        if not OLD:
            from vllm.sampling_params import StructuredOutputsParams

        self.log._rows = []
        preempted = self.preemptions()
        waiting = list(enumerate(prompts))
        names, answers, logprobs, ends, routed, outputs, interrupted = {}, {}, {}, {}, {}, 0, False
        sampling = [sampling] * len(prompts) if isinstance(sampling, dict) else sampling
        for arguments in sampling:
            if "logit_bias" in arguments:  # JSON has no integer keys
                arguments["logit_bias"] = {int(token): bias for token, bias in arguments["logit_bias"].items()}
            if regex := arguments.pop("regex", None):
                arguments["structured_outputs"] = StructuredOutputsParams(regex=regex)
            if "stop" in arguments:
                arguments["detokenize"], self.engine.output_processor.tokenizer = True, stop_checks.tokenizer()
        while waiting or self.engine.has_unfinished_requests():
            while waiting and (not stagger or outputs >= stagger * waiting[0][0] or not names):
                i, prompt = waiting.pop(0)
                name = str(self.requests)
                self.requests += 1
                names[name] = i
                self.engine.add_request(
                    name,
                    {"prompt_token_ids": prompt},
                    SamplingParams(
                        **{"temperature": 0.0, "ignore_eos": True, "detokenize": False, "max_tokens": max_tokens[i]}
                        | sampling[i]
                    ),
                )
            if waiting and not self.engine.has_unfinished_requests():
                outputs = stagger * waiting[0][0]
                continue
            for output in self.engine.step():
                i = names[output.request_id]
                answers[i] = list(output.outputs[0].token_ids)
                logprobs[i] = output.outputs[0].logprobs
                ends[i] = [getattr(output.outputs[0], name) for name in ("text", "finish_reason", "stop_reason")]
                routed[i] = routed_experts(output)
                if not renew and i in abort and len(answers[i]) >= 5 and not output.finished:
                    self.engine.abort_request([output.request_id])
            outputs += 1
            if outputs >= after and not interrupted:
                interrupted = True
                if renew:
                    self.renew(renew, [name for name, i in names.items() if i in abort])
                if reset:
                    assert self.engine.reset_prefix_cache(reset_running_requests=True)
        return {
            "answers": [answers.get(i, []) for i in range(len(prompts))],
            "logprobs": [
                logprobs.get(i)
                and [[[token, entry.logprob] for token, entry in place.items()] for place in logprobs[i]]
                for i in range(len(prompts))
            ],
            "ends": [ends.get(i) for i in range(len(prompts))],
            "routed_experts": [routed.get(i) for i in range(len(prompts))],
            "rows": self.log._rows,
            "preemptions": self.preemptions() - preempted,
        }

    def renew(self, weights, abort=()):
        """Read the weights in this folder: in a pause if requests run, which go on after it, else asleep.

        abort: names of requests that end in the pause, in a step that computes nothing.
        """
        core = self.engine.engine_core
        if self.engine.has_unfinished_requests():  # vLLM would go on with them once the first memory is back
            core.call_utility("pause_scheduler", "keep", True)
            self.engine.abort_request(list(abort))
            self.engine.collective_rpc(load_weights, args=(weights,))
            core.call_utility("resume_scheduler")
            return
        self.engine.sleep(2)
        self.engine.wake_up(["weights"])
        self.engine.collective_rpc(load_weights, args=(weights,))
        self.engine.wake_up(["kv_cache"])

    def preemptions(self):
        return sum(metric.value for metric in self.engine.get_metrics() if metric.name == "vllm:num_preemptions")

    def counters(self):
        """The proposer's, of each rank."""
        return self.engine.collective_rpc("sam_stats")

    def random_seed(self):
        """Of each rank."""
        return self.engine.collective_rpc(random_seed)

    def pools(self):
        return self.engine.collective_rpc(pool_stats)

    def calls(self):
        return self.engine.collective_rpc(operator_calls)

    def watch_graphs(self):
        return self.engine.collective_rpc(watch_graphs)

    def steps_and_replays(self):
        return self.engine.collective_rpc(steps_and_replays)

    def meter_steps(self):
        self.engine.collective_rpc(meter_steps)

    def metered_steps(self):
        return self.engine.collective_rpc(metered_steps)[0]

    def scheduling(self):
        """Of each rank."""
        return self.engine.collective_rpc(scheduling)

    def classes(self):
        return self.engine.collective_rpc(classes)

    def never_pays(self):
        self.engine.collective_rpc(never_pays)

    def keep_off(self, threshold=0):
        self.engine.collective_rpc(keep_off, args=(threshold,))

    def free_drafts(self):
        self.engine.collective_rpc(free_drafts)

    def collected_objects(self):
        """In the first rank."""
        return self.engine.collective_rpc(collected_objects)[0]

    def note_answers(self, feed_all=False):
        self.engine.collective_rpc(note_answers, args=(feed_all,))

    def noted_answers(self):
        """Of the first rank."""
        return self.engine.collective_rpc(noted_answers)[0]

    def note_outputs(self):
        self.engine.collective_rpc(note_outputs)

    def noted_outputs(self):
        """Of each rank."""
        return self.engine.collective_rpc(noted_outputs)

    def refuse_draft_calls(self):
        self.engine.collective_rpc(refuse_draft_calls)

    def time_operators(self):
        self.engine.collective_rpc(time_operators)

    def operator_seconds(self):
        """Of the first rank."""
        return self.engine.collective_rpc(operator_seconds)[0]

    def time_parts(self):
        self.engine.collective_rpc(time_parts)

    def parts_timed(self):
        return self.engine.collective_rpc(parts_timed)[0]

    def stop(self):
        self.engine.engine_core.shutdown()


class AsyncServer:
    """An AsyncLLM, as verl's servers run it: each request is a task of one event loop, and the worker is a process."""

    def __init__(self, settings):
        import asyncio

        from sam_core.engines.vllm.step_log import StepLog
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.log = StepLog()
        self.log.path = "kept in memory"
        self.loop = asyncio.new_event_loop()
        self.requests = 0

        async def start():
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**settings), stat_loggers=[self.log])

        self.engine = self.loop.run_until_complete(start())

    def run(self, prompts, max_tokens, stagger, abort, sampling):
        """As a Server's, of requests that all come at once and run to their ends."""
        import asyncio

        from vllm import SamplingParams

        assert not stagger and not abort, "an AsyncServer's requests come at once and run to their ends"
        self.log._rows = []
        sampling = [sampling] * len(prompts) if isinstance(sampling, dict) else sampling
        plain = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}

        async def generate(prompt, length, arguments):
            self.requests += 1
            parameters = SamplingParams(max_tokens=length, **plain | arguments)
            async for output in self.engine.generate({"prompt_token_ids": prompt}, parameters, str(self.requests)):
                last = output
            return list(last.outputs[0].token_ids), routed_experts(last)

        async def generate_all():
            return await asyncio.gather(*map(generate, prompts, max_tokens, sampling))

        answers, routed = zip(*self.loop.run_until_complete(generate_all()), strict=True)
        return {
            "answers": answers,
            "logprobs": [],
            "ends": [],
            "routed_experts": routed,
            "rows": self.log._rows,
            "preemptions": 0,
        }

    def scheduling(self):
        """Of each rank."""
        return self.loop.run_until_complete(self.engine.collective_rpc(scheduling))

    def drafters(self):
        """Counters of all engines, and those of the first alone."""
        from sam_core.engines.vllm.step_log import drafter_counters

        first = self.loop.run_until_complete(self.engine.collective_rpc("sam_stats"))[0]
        return [self.loop.run_until_complete(drafter_counters(self.engine)), first]

    def note_engines(self, routed):
        """From now on notes which data-parallel engine each request is sent to. routed: False to let vLLM choose by
        load."""
        client, self.sent = self.engine.engine_core, []
        choose = type(client).get_core_engine_for_request

        def noting(request):
            engine = choose(client, request)
            self.sent.append([request.prompt_token_ids, client.core_engines.index(engine)])
            return engine

        client.get_core_engine_for_request = noting
        if not routed:
            client.sam_routes = None

    def noted_engines(self):
        """[prompt, index of the engine] of each request."""
        return self.sent

    def keep_off(self):
        self.loop.run_until_complete(self.engine.collective_rpc(keep_off))

    def free_drafts(self):
        self.loop.run_until_complete(self.engine.collective_rpc(free_drafts))

    def calls(self):
        return self.loop.run_until_complete(self.engine.collective_rpc(operator_calls))

    def experts(self):
        return self.loop.run_until_complete(self.engine.collective_rpc(experts))

    def time_operators(self):
        self.loop.run_until_complete(self.engine.collective_rpc(time_operators))

    def operator_seconds(self):
        return self.loop.run_until_complete(self.engine.collective_rpc(operator_seconds))[0]

    def stop(self):
        self.engine.shutdown()


def main():
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(result):
        channel.write(json.dumps(result) + "\n")

    try:
        from vllm.platforms import current_platform

        if os.environ.get("ASYNCHRONOUS_CPU"):
            import asynchronous_cpu

            asynchronous_cpu.allow()
        server = {"LLMEngine": Server, "AsyncLLM": AsyncServer}[sys.argv[1]](json.loads(sys.argv[2]))
        answer({"result": type(current_platform).__name__})
        for line in sys.stdin:
            request = json.loads(line)
            answer({"result": getattr(server, request.pop("method"))(**request)})
    except Exception:
        answer({"error": traceback.format_exc()})
        raise
    server.stop()
    os._exit(0)  # the workers have ended; what Python does at its own end takes seconds


if __name__ == "__main__":
    main()
