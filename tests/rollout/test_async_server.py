# SPDX-License-Identifier: Apache-2.0
"""verl's asynchronous server passes the speculation on and reports what the engine did."""

import json

import pytest
from ranks import HERE, SETTINGS, sam, start

from sam_core import Pool


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def served(model, prompts, folder):
    engine = {"enable_sleep_mode": False, "num_gpu_blocks_override": 64, "block_size": 128}
    engine |= sam(history=str(folder))
    settings = SETTINGS | {"engine_kwargs": {"vllm": engine}}
    words = [str(HERE / "async_server.py"), str(model), json.dumps(settings), json.dumps(prompts)]
    printed, _ = start(*words).communicate(timeout=300)
    assert printed, "async_server.py failed: see its standard error"
    return json.loads(printed.splitlines()[-1])


def test_speculation_reaches_the_engine(served):
    for counters in served["counters"]:
        assert counters["drafted"] > 0
        assert counters["accepted"] > 0


def test_counters_are_those_of_each_rollout(served):
    for answers, counters in zip(served["answers"], served["counters"], strict=True):
        assert counters["tokens"] == sum(map(len, answers))
        assert counters["sam_proposed"] >= counters["drafted"]
    assert served["counters"][1]["sam_proposed_history"] > 0  # the second time it is asked the same


def test_history_is_the_replicas_own(served, folder):
    assert [path.name for path in folder.iterdir()] == ["replica-0"]
    assert Pool.describe(folder / "replica-0" / "engine-0/pool")["texts"] >= len(served["answers"][0])
