# SPDX-License-Identifier: Apache-2.0
"""A patched verl without the package sam_core: rollouts that do not ask for it run, and those that do end with a sentence."""

import json
import re

import pytest
from ranks import HERE, SETTINGS, sam, start

NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}}
JOB = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "0"}


def test_every_patched_module_loads():
    texts = [patch.read_text() for patch in sorted((HERE.parents[1] / "patches" / "vllm-0.11").glob("verl/*.patch"))]
    files = {file for text in texts for file in re.findall(r"^\+\+\+ b/(\S+)\.py$", text, re.M)}
    modules = sorted(file.replace("/", ".") for file in files)
    assert "verl.trainer.ppo.metric_utils" in modules
    out, _ = start(str(HERE / "without_sam_core.py"), "load", json.dumps(modules), **JOB).communicate(timeout=300)
    assert json.loads(out) == {"loaded": modules}


@pytest.fixture
def answered(model, prompts):
    def ask(mode, **engine):
        engine = {"num_gpu_blocks_override": 64, "block_size": 128} | engine
        words = [mode, str(model), json.dumps(SETTINGS | {"engine_kwargs": {"vllm": engine}}), json.dumps(prompts)]
        out, _ = start(str(HERE / "without_sam_core.py"), *words, **JOB).communicate(timeout=300)
        assert out, "without_sam_core.py failed: see its standard error"
        return json.loads(out)

    return ask


@pytest.mark.parametrize("engine", [{}, NGRAM], ids=["plain", "ngram"])
def test_the_synchronous_rollout_runs_and_counts_nothing(answered, prompts, engine):
    done = answered("sync", **engine)
    assert "error" not in done, done["error"]
    assert len(done["answers"]) == len(prompts)
    assert all(done["answers"])
    assert not done["meta_info"]
    assert "response_length/mean" in done["logged"]
    assert not [name for name in done["logged"] if name.startswith("rollout/spec/")]


def test_the_asynchronous_rollout_runs_and_counts_nothing(answered, prompts):
    done = answered("async", enable_sleep_mode=False)
    assert "error" not in done, done["error"]
    assert [len(turn) for turn in done["answers"]] == 2 * [len(prompts)]
    assert done["counters"] == [None, None]


@pytest.mark.parametrize(
    "engine, what",
    [
        (sam(), "speculative method 'sam'"),
        (sam(history="folder", verify="seeded"), "speculative method 'sam'"),
        ({"additional_config": {"sam_verify": "seeded"}}, "additional_config.sam_verify"),
    ],
    ids=["sam", "history", "seeded"],
)
def test_what_asks_for_the_package_says_that_it_is_missing(answered, engine, what):
    assert f"{what} needs the package sam_core, which is not installed here" in answered("sync", **engine)["error"]
