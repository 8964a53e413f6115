# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM as released, with the plugin and the second runner (see triton_interpreter.device)."""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "interpreter"))
os.environ.update(
    VLLM_PLUGINS="sam,device",  # spawned processes load the plugin `device`
    TRITON_INTERPRET="1",
    OMP_NUM_THREADS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_CI_ENV="1",  # no warm-up
    VLLM_ENABLE_V1_MULTIPROCESSING="1",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # for collective_rpc with a function
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import noting_pool
import pytest
import tiny_qwen3
from cpu_engine import Engine
from schedule_draws import WORDS
from started import started
from thinking import reasoning
from triton_interpreter.device import simulate_device

SEEDED = {"verify": "seeded", "threshold": 6}
AUTO = {"verify": "seeded", "switch": "auto"}
TIGHT = {"max_num_batched_tokens": 48, "block_size": 32, "num_gpu_blocks_override": 11, "enable_prefix_caching": False}
TIGHT["scheduling_policy"] = "priority"
"""Settings of an engine with so few KV cache blocks that it preempts requests, and prompt chunks of 48 tokens."""


def appended(engine):
    """Return the number of tokens that were appended to the drafter's pool."""
    return engine.engine.collective_rpc(lambda worker: worker.model_runner.speculator.proposer.texts.pool.stats())[0][
        "appended"
    ]


def note_answers(engine):
    """Begin to note the answers that the drafter indexes."""
    engine.engine.collective_rpc(lambda worker: noting_pool.note_answers(worker.model_runner.speculator.proposer))


def noted_answers(engine):
    """Return the answers noted since the last call, sorted."""
    noted = engine.engine.collective_rpc(
        lambda worker: noting_pool.noted_answers(worker.model_runner.speculator.proposer)
    )
    return sorted(noted[0])


def pause_at_random(worker, seed=0):
    """Make drafting pause in a random half of the later steps, so that planned drafts may be missing, and drafts may
    exist in steps without plans. Seed None restores normal pauses. Runs in a worker."""
    speculator = worker.model_runner.speculator
    pauses, draw = getattr(speculator, "sam", speculator).pauses, random.Random(seed)
    pauses.__dict__.pop("begin", None)
    if seed is None:
        return
    begin = pauses.begin

    def begin_at_random(*args, **kwargs):
        begin(*args, **kwargs)
        pauses.pause = draw.random() < 0.5

    pauses.begin = begin_at_random


@pytest.fixture(scope="session", autouse=True)
def device():
    simulate_device()
    return simulate_device


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save(tmp_path_factory, seed=0)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the folder of the same model with other weights."""
    return save(tmp_path_factory, seed=1)


def save(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_qwen3.save(folder, seed, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    tiny_qwen3.save_tokenizer(folder, WORDS)
    return folder


def start(model, sam=None, k=3, drafter=None, **settings):
    sizes = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    return Engine(
        model, sam, k, drafter, **(sizes | {"reasoning_config": reasoning(), "skip_tokenizer_init": False} | settings)
    )


@pytest.fixture(scope="session")
def plain(model, device):
    """Yield an engine with the second runner and without speculation, the reference."""
    import vllm

    engine = start(model)
    assert engine.engine.vllm_config.use_v2_model_runner
    print(f"vLLM {vllm.__version__}")
    yield engine
    engine.stop()


synchronous = started(start, sam=SEEDED | {"min_prob": 0.1}, async_scheduling=False)


asynchronous = started(start, sam=SEEDED, **TIGHT)
"""Engine that schedules asynchronously and drafts while at most 6 requests run."""


auto = started(
    start, sam=AUTO, k=5, per_request_spec_decode_metrics="detailed", **TIGHT | {"max_num_batched_tokens": 40}
)
"""Engine like `asynchronous`, but with switch `auto`, which verifies as many draft tokens as pay."""


@pytest.fixture(scope="session")
def prompts():
    """8 prompts of 5 to 40 tokens; the second half repeats the first."""
    return tiny_qwen3.repeated_prompts(4)
