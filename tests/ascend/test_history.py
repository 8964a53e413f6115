# SPDX-License-Identifier: Apache-2.0
"""A restarted engine drafts from the answers of the previous engine, and gives the same answers."""

import math
import os

import pytest
from ascend_engine import OLD, Engine
from engine_checks import settled, speculated
from sam_core.files import lock

from sam_core import Pool


def test_history_outlives_the_engine(model, plain, prompts, tmp_path):
    """With vLLM 0.23 the engine has a data-parallel rank, and the name of its history folder contains the rank."""
    few, rank, pool = prompts[:6], 0 if OLD else 1, Pool()
    answers, path = plain.run(few), tmp_path / f"engine-{rank}" / "pool"
    for prompt, answer in zip(few, answers, strict=True):
        slot = pool.open(prompt)
        pool.append(slot, answer)
        pool.close(slot)
    path.parent.mkdir()
    pool.save(path)
    sam = {"threshold": 64, "history": str(tmp_path)}
    engine = Engine(model, sam=sam, environment={"VLLM_DP_RANK": str(rank)})
    assert engine.run(few) == answers
    speculated(engine)
    assert engine.drafter()["accepted_history"] > 50, "it drafted from its own texts alone"
    assert engine.ask("random_seed")[0] != 0, "it draws the random numbers that the history may depend on"
    settled(engine)
    engine.stop()
    os.close(lock(path.with_name("lock"), math.inf))  # the engine's process holds the lock until it ends
    assert Pool.describe(path)["texts"] == 2 * len(few), "what it answered itself was not saved"


@pytest.mark.skipif(not OLD, reason="the engine of the test before has one")
def test_rank_of_data_parallelism_names_the_history(checked): ...
