# SPDX-License-Identifier: Apache-2.0
"""Real engines of the pinned vLLM on the CPU, multi-process as users run them; each starts once for all tests that share it."""

import os
import random

os.environ.update(
    OMP_NUM_THREADS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="1",
    VLLM_USE_V2_MODEL_RUNNER="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import pytest
from sam_core.stats import StepLog

VOCAB = 64


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A Qwen3 of 0.2 M parameters, untrained but with weights large enough for a peaked distribution."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.08,
        tie_word_embeddings=False,
        eos_token_id=VOCAB - 1,
        bos_token_id=None,
        dtype="float32",
    )
    folder = tmp_path_factory.mktemp("qwen3")
    network = Qwen3ForCausalLM(config)
    torch.nn.init.normal_(network.lm_head.weight, std=0.5)
    network.save_pretrained(folder)
    return folder


class Engine:
    """vLLM's LLMEngine with a StepLog: one row an engine step."""

    def __init__(self, model, sam=None, k=3, **settings):
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        speculative = None if sam is None else {"method": "sam", "num_speculative_tokens": k, "sam": sam}
        settings = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 2048} | settings
        self.log = StepLog()
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

    def run(self, prompts, max_tokens=64, stagger=0, abort=(), **sampling):
        """Answer prompts; `stagger` engine outputs lie between arrivals; the requests in `abort` end after 5 tokens.

        Returns the token ids of each answer; `self.rows` holds the engine's steps of this run.
        """
        from vllm import SamplingParams

        lengths = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompts)
        sampling = {"temperature": 0.0, "ignore_eos": True, "detokenize": False} | sampling
        self.log.path = "kept in memory"
        self.log._rows = []
        waiting = list(enumerate(prompts))
        names, answers, outputs = {}, {}, 0
        while waiting or self.engine.has_unfinished_requests():
            while waiting and (not stagger or outputs >= stagger * waiting[0][0] or not names):
                i, prompt = waiting.pop(0)
                name = str(self.requests)
                self.requests += 1
                params = SamplingParams(max_tokens=lengths[i], **sampling)
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
    """No speculation: the reference."""
    engine = Engine(model)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def sam(model):
    """The article's switch: k = 3 while at most 8 requests run."""
    engine = Engine(model, sam={"threshold": 8})
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def prompts():
    """64 prompts of 5 to 40 tokens; the second half repeats the first."""
    rng = random.Random(0)
    first = [[rng.randrange(VOCAB - 1) for _ in range(rng.randrange(5, 41))] for _ in range(32)]
    return first + first
