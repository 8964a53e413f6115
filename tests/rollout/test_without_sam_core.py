# SPDX-License-Identifier: Apache-2.0
"""A patched verl without the package sam_core: rollouts that do not ask for it run. tests/ascend has those that do."""

import re

import pytest
from ranks import HERE, Rollout, served, start

PATCHES = HERE.parents[1] / "patches" / "vllm-0.11" / "verl"
WITHOUT = {"WITHOUT_SAM_CORE": "1"}
LOAD = (
    "import importlib, sys; from no_sam_core import hide; hide(); "
    "[importlib.import_module(name) for name in sys.argv[1:]]"
)


def test_every_patched_module_loads(tmp_path):
    files = {
        file for patch in PATCHES.iterdir() for file in re.findall(r"^\+\+\+ b/(\S+)\.py$", patch.read_text(), re.M)
    }
    modules = sorted(file.replace("/", ".") for file in files)
    assert "verl.trainer.ppo.metric_utils" in modules
    script = tmp_path / "load.py"
    script.write_text(LOAD)
    process = start(str(script), *modules)
    process.communicate(timeout=300)
    assert process.wait(60) == 0


def test_the_synchronous_rollout_runs_and_counts_nothing(model, prompts):
    rollout = Rollout(model, environment=WITHOUT)
    (done,) = rollout.ask("generate", prompts=prompts)
    rollout.stop()
    assert all(done["answers"]) and not done["meta_info"]


@pytest.mark.slow
def test_the_asynchronous_rollout_runs_and_counts_nothing(model, prompts):
    for answers, counters in served(model, prompts, {}, **WITHOUT):
        assert len(answers) == len(prompts) and counters is None
