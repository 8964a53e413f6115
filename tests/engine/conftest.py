# SPDX-License-Identifier: Apache-2.0
"""Real engines of the pinned vLLM on the CPU, in several processes as users run them. Each starts once for all tests
that use it."""

import os

os.environ |= {"VLLM_PLUGINS": "", "VLLM_USE_V2_MODEL_RUNNER": "0"}  # vLLM's own platform, not vllm-ascend's
os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # for collective_rpc with a function

import pytest
import tiny_qwen3
from cpu_engine import Engine
from started import prompts, started  # noqa: F401  (prompts is a fixture)
from vllm.v1.worker.cpu import shm  # noqa: F401  (before modules import functions that it replaces)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny Qwen3."""
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    return folder


plain = started(Engine, long_prefill_token_threshold=300)
"""Engine without speculation, the reference. It reads prompts of more than 300 tokens in parts."""
sam = started(Engine, sam={"threshold": 8})
"""Engine with the article's switch: k = 3 while at most 8 requests run."""
