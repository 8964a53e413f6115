# SPDX-License-Identifier: Apache-2.0
"""Models, prompts and the reference engine; see ascend_engine for how engines of two platforms live side by side."""

import json
from pathlib import Path

import pytest
import tiny_qwen3
from ascend_engine import MODULES, PATHS, Engine, start
from started import started

HERE = Path(__file__).resolve().parent
PATHS.append(str(HERE.parent / "common"))
MODULES.append("waits")


def pytest_addoption(parser):
    parser.addoption("--schedules", type=int, help="how many random schedules run (test_schedules.py)")
    parser.addoption("--first-schedule", type=int, default=0, metavar="SEED", help="the first one's seed")


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Makes a tiny Qwen3 with attention heads of this shape."""

    def make(seed=0, **shape):
        folder = tmp_path_factory.mktemp("qwen3")
        tiny_qwen3.save(folder, seed, **shape)
        return folder

    return make


@pytest.fixture(scope="session")
def model(make_model):
    """Heads of 128, as every Qwen3 has: npu_apply_rotary_pos_emb."""
    return make_model(num_attention_heads=2, num_key_value_heads=1, head_dim=128)


cpu = started(Engine, platform="cpu")
"""vLLM's own CPU backend: the reference."""


plain = started(Engine)
"""vllm-ascend without speculation."""


sam = started(Engine, sam={"threshold": 8}, k=3)
"""The article's switch: k = 3 while at most 8 requests run."""


without = started(Engine, additional_config={"sam_verify": "seeded"})
"""Seeded sampling without speculation."""


graphs = started(
    Engine,
    sam={"verify": "seeded", "threshold": 5},
    max_model_len=256,
    max_num_seqs=16,
    compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 8, 12, 16, 24]},
)
"""Seeded verification with captured graphs of decoding: sizes 4 to 24, drafts of 3 tokens up to 5 requests."""


@pytest.fixture(scope="session")
def prompts():
    """64 prompts of 5 to 40 tokens; the second half repeats the first."""
    return tiny_qwen3.repeated_prompts(32)


@pytest.fixture(scope="session")
def npu_unit():
    """Results of the checks in npu_unit.py by name: None, or the text of what was raised."""
    out, _ = start("npu", str(HERE / "npu_unit.py")).communicate()
    assert out, "npu_unit.py failed: see its standard error"
    return json.loads(out)


@pytest.fixture
def checked(request, npu_unit):
    """The check of npu_unit.py with the test's name, which is all of such a test."""
    assert npu_unit[request.node.originalname.replace("test_", "check_", 1)] is None
