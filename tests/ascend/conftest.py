# SPDX-License-Identifier: Apache-2.0
"""Models, prompts and engines. ascend_engine explains how engines of two platforms run side by side."""

import json
from pathlib import Path

import pytest
import tiny_qwen3
from ascend_engine import PATHS, Engine, start
from started import prompts, started  # noqa: F401  (prompts is a fixture)

HERE = Path(__file__).resolve().parent
PATHS.append(str(HERE.parent / "common"))


def pytest_addoption(parser):
    parser.addoption("--schedules", type=int, help="how many random schedules run (test_schedules.py)")
    parser.addoption("--first-schedule", type=int, default=0, metavar="SEED", help="the first one's seed")


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Return a function that saves a tiny Qwen3 with attention heads of a given shape."""

    def make(seed=0, **shape):
        folder = tmp_path_factory.mktemp("qwen3")
        tiny_qwen3.save(folder, seed, **shape)
        return folder

    return make


@pytest.fixture(scope="session")
def model(make_model):
    """A tiny Qwen3 with heads of size 128, as in every Qwen3; npu_apply_rotary_pos_emb needs it."""
    return make_model(num_attention_heads=2, num_key_value_heads=1, head_dim=128)


cpu = started(Engine, platform="cpu")
"""Engine on vLLM's own CPU backend, the reference."""


plain = started(Engine)
"""Engine on vllm-ascend without speculation."""


sam = started(Engine, sam={"threshold": 8}, k=3)
"""Engine with the article's switch: k = 3 while at most 8 requests run."""


without = started(Engine, additional_config={"sam_verify": "seeded"})
"""Engine with seeded sampling and without speculation."""


graphs = started(
    Engine,
    sam={"verify": "seeded", "threshold": 5},
    max_model_len=256,
    max_num_seqs=16,
    compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 8, 12, 16, 24]},
)
"""Engine with seeded verification and decoding graphs of 4 to 24 tokens. It drafts 3 tokens up to 5 requests."""


@pytest.fixture(scope="session")
def npu_unit():
    """Return the results of the checks in npu_unit.py by name: None, or the text of the exception."""
    out, _ = start("npu", str(HERE / "npu_unit.py")).communicate()
    assert out, "npu_unit.py failed: see its standard error"
    return json.loads(out)


@pytest.fixture
def checked(request, npu_unit):
    """Assert that the check of npu_unit.py with the test's name passed; the test itself does nothing else."""
    assert npu_unit[request.node.originalname.replace("test_", "check_", 1)] is None
