# SPDX-License-Identifier: Apache-2.0
"""An engine that is started again drafts from what the one before it had answered, and answers the same."""

import time

import history
from conftest import Engine, speculated


def test_history_outlives_the_engine(model, plain, prompts, tmp_path, monkeypatch):
    """The engine has a data-parallel rank, by which its files are named."""
    monkeypatch.setenv("VLLM_DP_RANK", "1")
    expected, folder = plain.run(prompts[:6]), tmp_path / "history"
    history.leave(folder, 1, prompts[:6], expected)
    engine = Engine(model, sam={"threshold": 64, "history": str(folder)})
    assert engine.run(prompts[:6]) == expected
    speculated(engine)
    assert engine.drafter()["accepted_history"] > 50
    while engine.drafter()["requests"]:  # it hears of the last end in a step of its own
        time.sleep(0.1)
    engine.stop()
    assert history.texts(folder, 1) == 12
