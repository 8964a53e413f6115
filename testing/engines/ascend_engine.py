# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own: vllm-ascend's over the stand-in for torch_npu, and vLLM's CPU backend next to
it."""

import atexit
import contextlib
import functools
import importlib.metadata
import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ports import PORTS

from llm_rl import forks

HERE = Path(__file__).resolve().parent
STANDIN = HERE.parent
PATHS = [str(HERE)]
"""Folders from which all processes import; tests add theirs."""
VERSION = importlib.metadata.version("vllm_ascend").partition(".post")[0]  # also the version of vLLM
OLD = VERSION == "0.11.0"
DECODE = "_npu_paged_attention" if OLD else "npu_fused_infer_attention_score"  # the operator for one token per request
MODULES = ["forked", "vllm.platforms", "vllm.v1.engine.llm_engine", "sam_core.engines.vllm.step_log"]
if not OLD:  # what vllm-ascend's patches import
    MODULES += ["compressed_tensors", "vllm.entrypoints.openai.chat_completion.serving"]
MODELS = ["inspection", "vllm.model_executor.models.qwen3", "vllm.v1.core.sched.scheduler"]
WORKER = [f"vllm_ascend.worker.{name}" for name in ("worker_v1" if OLD else "worker", "model_runner_v1")]
"""Modules of vllm-ascend. Otherwise each engine's processes would import MODELS and WORKER anew, 3 s a start."""
COLUMNS = ("start", "seconds", "running", "tokens", "drafted", "accepted")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "all" if OLD else "nobind",  # both: no binding
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # without it 0.11 proposes drafts and never verifies one
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # collective_rpc of a function
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_USE_AOT_COMPILE": "0",
}


def start(platform, *arguments, environment=MappingProxyType({})):
    """Start a Python process in which vLLM uses `platform`, npu or cpu. Its stdin and stdout are text pipes."""
    command, environment = [python(platform), *arguments], {**variables(platform), **environment}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@functools.cache
def python(platform):
    """The Python program of a platform's processes, which import MODULES and the modules of an engine's processes."""
    imported = MODELS if platform == "cpu" else [*MODELS, *WORKER, "vllm_ascend.patch.worker"]
    stack = contextlib.ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sam-forks-")))
    stack.enter_context(forks.server(folder, [*MODULES, *imported], variables(platform)))
    atexit.register(stack.close)
    return folder / "python"


def variables(platform):
    path = [*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "VLLM_PLUGINS": "", **ENVIRONMENT}
    if platform != "cpu":
        environment |= {"PYTHONPATH": os.pathsep.join([str(STANDIN), *path]), "VLLM_VERSION": VERSION}
        del environment["VLLM_PLUGINS"]
    if platform == "metered":  # npu, with torch_npu/meter.py
        environment["STANDIN_METER"] = "1"
    if platform == "a3":  # npu, with the A3's operators for experts
        environment["STANDIN_A3"] = "1"
    return environment


class Step(NamedTuple):
    """A step: the numbers of tokens that its requests had, the number of requests, and the graph with its size."""

    lengths: list[int]
    requests: int
    mode: str
    graph_tokens: int
    graph_requests: int | None


class Engine:
    """An engine_server. What its `run` returns are attributes afterwards.

    It runs eagerly unless a compilation_config is among the settings. Engines start side by side: the first question to
    one waits until it is up. A dead engine raises AssertionError with its traceback.

    front_end: the engine_server's, "LLMEngine" or "AsyncLLM".
    environment: further variables of its processes.
    """

    def __init__(
        self,
        model,
        platform="npu",
        sam=None,
        k=3,
        *,
        front_end="LLMEngine",
        environment=MappingProxyType({}),
        **settings,
    ):
        settings = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "seed": 0} | settings
        if sam is not None:
            settings["speculative_config"] = {"method": "sam", "num_speculative_tokens": k, "sam": sam}
        blocks = 1024 if OLD and platform == "cpu" else 128  # blocks of 16 or of 128 tokens
        settings = {"num_gpu_blocks_override": blocks} | settings
        settings = {"skip_tokenizer_init": True, "dtype": "float32"} | settings | {"model": str(model)}
        settings["enforce_eager"] = "compilation_config" not in settings
        environment = dict(environment)
        if "data_parallel_size" not in settings:  # with it vLLM reserves the next ports for its master
            environment["VLLM_PORT"] = str(next(PORTS))
        words = [str(HERE / "engine_server.py"), front_end, json.dumps(settings)]
        self.process = start(platform, *words, environment=environment)
        self.platform = "CpuPlatform" if platform == "cpu" else "NPUPlatform"
        self.up = False

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the engine's process ended without an answer: see its standard error"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def ask(self, method, **arguments):
        if not self.up:
            assert self.answer() == self.platform
            self.up = True
        self.process.stdin.write(json.dumps({"method": method, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def run(self, prompts, max_tokens=64, stagger=0, abort=(), each=None, renew=None, **sampling):
        """Return answers of token ids; for the arguments see engine_server. each: further sampling arguments of
        each request."""
        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        each = [sampling | own for own in each or [{}] * len(prompts)]
        arguments = {"stagger": stagger, "abort": list(abort)} | ({"renew": str(renew)} if renew else {})
        done = self.ask("run", prompts=prompts, max_tokens=lengths, each=each, **arguments)
        vars(self).update(done)
        return done["answers"]

    def count(self, column):
        return sum(row[COLUMNS.index(column)] for row in self.rows)

    def steps(self):
        """The first rank's steps since the last call, and how many graphs they replayed; the first call starts this."""
        if self.ask("watch_graphs")[0]:
            self.replays = 0
        steps, replays = self.ask("steps_and_replays")[0]
        before, self.replays = self.replays, replays
        return [Step(*step) for step in steps], replays - before

    def drafter(self):
        """The proposer's counters on the rank that drafts."""
        return self.ask("counters")[0]

    def pool(self):
        """Counters of the drafting rank's Pool."""
        return self.ask("pools")[0]

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
