# SPDX-License-Identifier: Apache-2.0
"""A patched verl without the package sam_core: its trainers say what is missing, the modules that all import load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMON = Path(__file__).resolve().parents[1] / "common"
HIDDEN = """
import json, types
from no_sam_core import hide
hide()
"""
DIFFERENCES = """
import torch
from verl.utils.debug.metrics import calculate_debug_metrics
ones = torch.ones(2, 3)
batch = {"rollout_log_probs": -ones, "old_log_probs": -ones, "response_mask": ones, "responses": ones}
print(json.dumps(calculate_debug_metrics(types.SimpleNamespace(batch=batch))))
"""
TRAINER = """
try:
    import {}
except ImportError as error:
    print(json.dumps(str(error)))
"""


def answer(code):
    done = subprocess.run([sys.executable, "-c", HIDDEN + code], cwd=COMMON, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_differences_of_log_probabilities_have_no_histogram():
    metrics = answer(DIFFERENCES)
    assert metrics["training/rollout_probs_diff_max"] == 0
    assert not [name for name in metrics if "log_prob_diff" in name]


@pytest.mark.parametrize(
    "module",
    [
        "trainer.ppo.v1",
        "experimental.one_step_off_policy.ray_trainer",
        "experimental.fully_async_policy.fully_async_rollouter",
    ],
)
def test_trainers_name_the_package(module):
    assert "needs the package sam_core, which is not installed here" in answer(TRAINER.format(f"verl.{module}"))
