# SPDX-License-Identifier: Apache-2.0
"""verl's asynchronous server passes the speculation's settings to the engine and reports the engine's counters."""

import pytest
from ranks import Rollout, sam

from sam_core import Pool

pytestmark = pytest.mark.slow  # the servers start Ray; recipe/dapo generates synchronously


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def served(model, prompts, folder):
    """The server's answers and counters for the same prompts, requested twice."""
    server = Rollout(model, kind="AsyncServer", engine={"enable_sleep_mode": False} | sam(history=str(folder)))
    given = [server.ask("generate", prompts=prompts, name=name)[0] for name in "ab"]
    server.ask("stop")
    server.stop()
    return given


def test_speculation_reaches_the_engine(served):
    for answers, counters in served:
        assert counters["drafted"] > 0 and counters["accepted"] > 0
        assert counters["tokens"] == sum(map(len, answers))
        assert counters["sam_proposed"] >= counters["drafted"]
    assert served[1][1]["sam_proposed_history"] > 0  # the second requests repeat the first ones


def test_history_is_the_replicas_own(served, folder):
    assert [path.name for path in folder.iterdir()] == ["replica-0"]
    assert Pool.describe(folder / "replica-0" / "engine-0/pool")["texts"] >= len(served[0][0])
