# SPDX-License-Identifier: Apache-2.0
"""The recipe of a model whose layers keep a state, with a vLLM that drafts for them and one that does not."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS

LATER = Path(sys.prefix) / "releases" / "0.32.0"
SPECULATION = "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config."


def dry_run(vllm, *overrides):
    """Dry-run the recipe. vllm: folder of another release's Python files, or None."""
    recipe = "llm_rl/qwen3/dapo_qwen3_5_27b_8gpu.yaml"
    path = os.pathsep.join(map(str, filter(None, [vllm, os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-m", "llm_rl.launch", recipe, *overrides, "--dry-run"]
    env = {**os.environ, "PYTHONPATH": path, "PIN": "gpu"}
    return subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True)


def test_it_composes_with_a_vllm_that_drafts():
    done = dry_run(LATER)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.splitlines()[-1])
    for setting in ("method=sam", "num_speculative_tokens=3", "sam.switch=batch", "sam.threshold=32"):
        assert f"{SPECULATION}{setting}" in words
    assert "actor_rollout_ref.rollout.enable_prefix_caching=false" in words


@pytest.mark.parametrize(
    ("vllm", "sam", "sentence"),
    [
        (None, "batch", "install vLLM 0.32 or later, or set sam=off"),
        (LATER, "auto", "sam=auto needs adaptive verification, which vLLM lacks for the delta nets of Qwen3.5-27B"),
    ],
)
def test_it_is_refused_where_nothing_would_be_drafted(vllm, sam, sentence):
    done = dry_run(vllm, f"sam={sam}")
    assert done.returncode == 1 and sentence in done.stderr and done.stderr.count("\n") == 1
