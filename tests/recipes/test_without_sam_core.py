# SPDX-License-Identifier: Apache-2.0
"""A patched verl without the package sam_core: every module loads, and a trainer without speculation trains."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llm_rl import launch

HERE = Path(__file__).resolve().parent
COMMON = HERE.parent / "common"
PATCHES = launch.ROOT / "patches" / Path(sys.prefix).name
HIDDEN = """
import json, types
from no_sam_core import hide
hide()
"""
LOAD = """
import importlib, traceback
failed = {}
for name in %r:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = traceback.format_exc()

import torch
from verl.utils.debug.metrics import calculate_debug_metrics
ones = torch.ones(2, 3)
batch = {"rollout_log_probs": -ones, "old_log_probs": -ones, "response_mask": ones, "responses": ones}
print(json.dumps([failed, calculate_debug_metrics(types.SimpleNamespace(batch=batch))]))
"""


def answer(code):
    done = subprocess.run([sys.executable, "-c", HIDDEN + code], cwd=COMMON, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def patched_modules(module):
    """Names of the modules whose files the patches on verl or vLLM change."""
    texts = [patch.read_text() for patch in sorted(PATCHES.glob(f"{module}/*.patch"))]
    files = {file for text in texts for file in re.findall(r"^\+\+\+ b/(\S+)\.py$", text, re.M)}
    return sorted(file.replace("/", ".").removesuffix(".__init__") for file in files)


def test_every_patched_module_loads():
    """And differences of log-probabilities have no histogram."""
    modules = patched_modules("verl")
    assert "verl.trainer.ppo.v1.trainer_sync" in modules
    failed, metrics = answer(LOAD % modules)
    assert failed == {}
    assert metrics["training/rollout_probs_diff_max"] == 0
    assert not [name for name in metrics if "log_prob_diff" in name]


@pytest.mark.slow
def test_a_run_without_speculation_trains_and_counts_nothing(train, tmp_path):
    folder = tmp_path / "run"
    path = [str(HERE / "without_sam_core"), str(COMMON), *filter(None, [os.environ.get("PYTHONPATH")])]
    train(folder, "sam=off", "sam_options.verify=rejection", "steps=1", PYTHONPATH=os.pathsep.join(path))
    (step,) = launch.read_steps(folder / "steps.jsonl")
    assert step["data"]["actor/grad_norm"] > 0
    assert not [name for name in step["data"] if name.startswith(("rollout/spec", "rollout_corr/log_prob_diff"))]
