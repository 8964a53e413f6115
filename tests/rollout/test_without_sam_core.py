# SPDX-License-Identifier: Apache-2.0
"""A patched verl without the package sam_core: rollouts that do not ask for it run. tests/ascend has those that do."""

import re

import pytest
from ranks import HERE, Rollout, served, start

PATCHES = HERE.parents[1] / "patches" / "vllm-0.11" / "verl"
WITHOUT = {"WITHOUT_SAM_CORE": "1"}
LOAD = "import importlib, sys, no_sam_core; no_sam_core.hide(); [*map(importlib.import_module, sys.argv[1:])]"


def test_every_patched_module_loads(tmp_path):
    text = "".join(patch.read_text() for patch in PATCHES.iterdir())
    modules = sorted({file.replace("/", ".") for file in re.findall(r"^\+\+\+ b/(\S+)\.py$", text, re.M)})
    assert "verl.trainer.ppo.metric_utils" in modules
    (tmp_path / "load.py").write_text(LOAD)
    process = start(str(tmp_path / "load.py"), *modules)
    process.communicate()
    assert process.wait() == 0


def test_the_synchronous_rollout_runs_and_counts_nothing(model, prompts):
    rollout = Rollout(model, environment=WITHOUT)
    (done,) = rollout.ask("generate", prompts=prompts)
    rollout.stop()
    assert all(done["answers"]) and not done["meta_info"]


@pytest.mark.slow
def test_the_asynchronous_rollout_runs_and_counts_nothing(model, prompts):
    for answers, counters in served(model, prompts, {}, **WITHOUT):
        assert len(answers) == len(prompts) and counters is None
