# SPDX-License-Identifier: Apache-2.0
"""Real engines on a GPU, of the patched vLLM or of an unpatched vLLM with the plugin.

Each engine starts once for all tests that use it.

With VLLM_BATCH_INVARIANT kernels sum in a fixed order, so the logits of a row do not depend on the rest of the batch,
and texts can be compared token for token.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import tiny_qwen3
from llm_engine import Engine
from sam_core.engines.vllm import hooks
from started import prompts  # noqa: F401  (a fixture)

SECOND = not hooks.is_patched(Path(importlib.util.find_spec("vllm").origin).parent)
"""Whether vLLM is unpatched; the plugin then uses the second runner."""
os.environ.update(
    VLLM_PLUGINS="sam" if SECOND else "",
    VLLM_BATCH_INVARIANT="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="1",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # for collective_rpc with a function
    VLLM_WORKER_MULTIPROC_METHOD="spawn",
    VLLM_USE_V2_MODEL_RUNNER="1" if SECOND else "0",  # the runner of engines with sam
    VLLM_USE_FLASHINFER_SAMPLER="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

GRAPHS = {"mode": "NONE", "cudagraph_mode": "FULL"}
ENGINES = {
    "plain": {},
    "batch": {"sam": {"threshold": 8}},
    "batch, synchronous": {"sam": {"threshold": 8}, "async_scheduling": False},
    "batch, eager": {"sam": {"threshold": 8}, "enforce_eager": True},
    "auto": {"sam": {"switch": "auto"}, "k": 6},
    "plain, seeded": {} if SECOND else {"additional_config": {"sam_verify": "seeded"}},
    "batch, seeded": {"sam": {"threshold": 64, "verify": "seeded"}},
    "auto, seeded": {"sam": {"switch": "auto", "verify": "seeded"}, "k": 6},
}


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny Qwen3 whose heads are as wide as FlashAttention's kernels."""
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_qwen3.save(folder, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    return folder


@pytest.fixture(scope="session")
def engine(model):
    """Yield a function that returns the engine of a name in ENGINES, and starts it if necessary."""
    started = {}

    def of(name):
        if name not in started:
            settings = {"dtype": "bfloat16", "enforce_eager": False, "kv_cache_memory_bytes": 1 << 30}
            settings |= {"gpu_memory_utilization": 0.01}  # only a check of free memory, as the cache's size is given
            settings |= ENGINES[name]
            if not settings["enforce_eager"]:
                settings["compilation_config"] = GRAPHS
            started[name] = Engine(model, **settings)
        return started[name]

    yield of
    for each in started.values():
        each.stop()
