# SPDX-License-Identifier: Apache-2.0
"""A patched verl without the package sam_core: every module loads, and a trainer without speculation trains."""

import importlib
import multiprocessing
import re
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from no_sam_core import hide

from llm_rl import launch

PATCHES = launch.ROOT / "patches" / Path(sys.prefix).name / "verl"


def load(modules):
    """Without sam_core: the tracebacks of those that do not load."""
    hide()
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]
    failed = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            failed[name] = traceback.format_exc()
    return failed


def test_every_patched_module_loads():
    """In a fork, which has torch and vLLM already."""
    import verl.trainer.ppo.v1.trainer_base  # noqa: F401

    text = "".join(patch.read_text() for patch in PATCHES.iterdir())
    files = {file.removesuffix("/__init__") for file in re.findall(r"^\+\+\+ b/(\S+)\.py$", text, re.M)}
    modules = sorted(file.replace("/", ".") for file in files)
    assert "verl.trainer.ppo.v1.trainer_sync" in modules
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(load, modules).result() == {}


@pytest.mark.slow
def test_a_run_without_speculation_trains_and_counts_nothing(train, tmp_path):
    folder = tmp_path / "run"
    train(folder, "sam=off", "sam_options.verify=rejection", "steps=1", site="without_sam_core")
    (step,) = launch.read_steps(folder / "steps.jsonl")
    assert step["data"]["actor/grad_norm"] > 0
    assert not [name for name in step["data"] if name.startswith(("rollout/spec", "rollout_corr/log_prob_diff"))]
