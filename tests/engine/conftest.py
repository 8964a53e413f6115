# SPDX-License-Identifier: Apache-2.0
"""Real engines of the pinned vLLM on the CPU, multi-process as users run them; each starts once for all tests that share it."""

import os
import random

os.environ.update(
    VLLM_PLUGINS="",  # vLLM's own platform, not vllm-ascend's
    OMP_NUM_THREADS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="1",
    VLLM_USE_V2_MODEL_RUNNER="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import forked  # noqa: F401
import pytest
import tiny_qwen3
from one_text import write_corpus
from sam_core.engines.vllm.step_log import StepLog
from tiny_qwen3 import VOCAB

KNOWN_PROMPT = [11, 47, 5, 29, 53, 17]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny Qwen3."""
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    return folder


class Log(StepLog):
    """Counts preemptions as well; vLLM's own counters are those of the engine that was started last."""

    preemptions = 0

    def record(self, scheduler_stats, iteration_stats, *args, **kwargs):
        super().record(scheduler_stats, iteration_stats, *args, **kwargs)
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs


class Engine:
    """vLLM's LLMEngine with a Log: one row an engine step."""

    def __init__(self, model, sam=None, k=3, **settings):
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        speculative = None if sam is None else {"method": "sam", "num_speculative_tokens": k, "sam": sam}
        settings = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 2048} | settings
        self.log = Log()
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(model),
                skip_tokenizer_init=True,
                dtype="float32",
                enforce_eager=True,
                speculative_config=speculative,
                disable_log_stats=False,
                **settings,
            ),
            stat_loggers=[self.log],
        )
        self.requests = 0
        self.rows = []

    def run(self, prompts, max_tokens=64, stagger=0, abort=(), each=None, **sampling):
        """Answer prompts; `stagger` engine outputs lie between arrivals; the requests in `abort` end after 5 tokens.

        `sampling` holds for all requests, `each` has more settings for each of them.

        Returns the token ids of each answer; `self.rows` holds the engine's steps of this run, `self.log.preemptions` its
        preemptions.
        """
        from vllm import SamplingParams

        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        sampling = {"temperature": 0.0, "ignore_eos": True, "detokenize": False} | sampling
        self.log.path = "kept in memory"
        self.log._rows, self.log.preemptions = [], 0
        waiting = list(enumerate(prompts))
        names, answers, outputs = {}, {}, 0
        while waiting or self.engine.has_unfinished_requests():
            while waiting and (not stagger or outputs >= stagger * waiting[0][0] or not names):
                i, prompt = waiting.pop(0)
                name = str(self.requests)
                self.requests += 1
                params = SamplingParams(max_tokens=lengths[i], **(sampling | (each[i] if each else {})))
                self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
                names[name] = i
            if stagger and waiting and not self.engine.has_unfinished_requests():
                outputs = stagger * waiting[0][0]
                continue
            for output in self.engine.step():
                i = names[output.request_id]
                answers[i] = list(output.outputs[0].token_ids)
                if i in abort and len(answers[i]) >= 5 and not output.finished:
                    self.engine.abort_request([output.request_id])
            outputs += 1
        self.rows, self.log._rows, self.log.path = self.log._rows, [], None
        return [answers[i] for i in range(len(prompts))]

    def count(self, column):
        return sum(
            row[("start", "seconds", "running", "tokens", "drafted", "accepted").index(column)] for row in self.rows
        )

    def stop(self):
        self.engine.engine_core.shutdown()

    def drafter(self):
        return self.engine.collective_rpc("sam_stats")[0]


@pytest.fixture(scope="session")
def plain(model):
    """No speculation: the reference. Prompts of more than 300 tokens are read in parts."""
    engine = Engine(model, long_prefill_token_threshold=300)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def sam(model):
    """The article's switch: k = 3 while at most 8 requests run."""
    engine = Engine(model, sam={"threshold": 8})
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def tight(model, plain, tmp_path_factory):
    """So little KV cache that requests are preempted, chunks of 48 tokens, a context of 128; a corpus of one answer.

    Samples by seed and position.
    """
    path = tmp_path_factory.mktemp("corpus") / "corpus"
    write_corpus(path, KNOWN_PROMPT + plain.run([KNOWN_PROMPT])[0])
    engine = Engine(
        model,
        sam={"threshold": 64, "corpus": str(path), "verify": "seeded"},
        k=4,
        max_model_len=128,
        max_num_seqs=16,
        max_num_batched_tokens=48,
        block_size=16,
        num_gpu_blocks_override=24,
        enable_prefix_caching=False,
    )
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def prompts():
    """64 prompts of 5 to 40 tokens; the second half repeats the first."""
    rng = random.Random(0)
    first = [[rng.randrange(VOCAB - 1) for _ in range(rng.randrange(5, 41))] for _ in range(32)]
    return first + first
