# SPDX-License-Identifier: Apache-2.0
"""A patched verl without the package sam_core: every module loads, and a trainer without speculation trains."""

import importlib
import multiprocessing
import os
import re
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from no_sam_core import hide

from llm_rl import launch

HERE = Path(__file__).resolve().parent
COMMON = HERE.parent / "common"
PATCHES = launch.ROOT / "patches" / Path(sys.prefix).name


def load(modules):
    """Without sam_core: the tracebacks of those that do not load, and verl's metrics of a batch."""
    hide()
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]
    failed = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            failed[name] = traceback.format_exc()
    from verl.utils.debug.metrics import calculate_debug_metrics

    ones = torch.ones(2, 3)
    batch = {"rollout_log_probs": -ones, "old_log_probs": -ones, "response_mask": ones, "responses": ones}
    return failed, calculate_debug_metrics(SimpleNamespace(batch=batch))


def patched_modules(module):
    """Names of the modules whose files the patches on verl or vLLM change."""
    texts = [patch.read_text() for patch in sorted(PATCHES.glob(f"{module}/*.patch"))]
    files = {file for text in texts for file in re.findall(r"^\+\+\+ b/(\S+)\.py$", text, re.M)}
    return sorted(file.replace("/", ".").removesuffix(".__init__") for file in files)


def test_every_patched_module_loads():
    """And differences of log-probabilities have no histogram. In a fork, which has torch and vLLM already."""
    import verl.trainer.ppo.v1.trainer_base  # noqa: F401

    modules = patched_modules("verl")
    assert "verl.trainer.ppo.v1.trainer_sync" in modules
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        failed, metrics = pool.submit(load, modules).result()
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
